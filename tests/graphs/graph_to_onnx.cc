#include "tests/graphs/graph_to_onnx.h"

#include <limits>

#include "peer/backend/reference/reference_kernels.h"
#include "tests/backend/run_graph.h"
#include "tests/onnx/models.h"

namespace weft::test {
namespace {

using dag::Attr;
using dag::DType;
using dag::Graph;
using dag::Ints;
using dag::Layout;
using dag::Op;
using dag::OpKind;
using dag::Tensor;
using dag::ValueId;
using onnx::testing::attribute;
using onnx::testing::ModelMaker;
namespace pb = onnx::pb;

int32_t onnx_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return pb::TensorProto::FLOAT;
    case DType::F64:
      return pb::TensorProto::DOUBLE;
    case DType::F16:
      return pb::TensorProto::FLOAT16;
    case DType::BF16:
      return pb::TensorProto::BFLOAT16;
    case DType::I8:
      return pb::TensorProto::INT8;
    case DType::U8:
      return pb::TensorProto::UINT8;
    case DType::I16:
      return pb::TensorProto::INT16;
    case DType::U16:
      return pb::TensorProto::UINT16;
    case DType::I32:
      return pb::TensorProto::INT32;
    case DType::U32:
      return pb::TensorProto::UINT32;
    case DType::I64:
      return pb::TensorProto::INT64;
    case DType::U64:
      return pb::TensorProto::UINT64;
    case DType::Bool:
      return pb::TensorProto::BOOL;
  }
  return 0;
}

// Ops whose ONNX operator has the same operands and no attributes.
const char* same_operator(OpKind kind) {
  switch (kind) {
    case OpKind::LessEqual:
      return "LessOrEqual";
    case OpKind::GreaterEqual:
      return "GreaterOrEqual";
    case OpKind::Neg:
    case OpKind::Abs:
    case OpKind::Sign:
    case OpKind::Exp:
    case OpKind::Log:
    case OpKind::Sqrt:
    case OpKind::Reciprocal:
    case OpKind::Sin:
    case OpKind::Cos:
    case OpKind::Tan:
    case OpKind::Asin:
    case OpKind::Acos:
    case OpKind::Atan:
    case OpKind::Sinh:
    case OpKind::Cosh:
    case OpKind::Asinh:
    case OpKind::Acosh:
    case OpKind::Atanh:
    case OpKind::Tanh:
    case OpKind::Sigmoid:
    case OpKind::Relu:
    case OpKind::Erf:
    case OpKind::Softplus:
    case OpKind::Floor:
    case OpKind::Ceil:
    case OpKind::Round:
    case OpKind::Not:
    case OpKind::IsNaN:
    case OpKind::IsInf:
    case OpKind::Add:
    case OpKind::Sub:
    case OpKind::Mul:
    case OpKind::Div:
    case OpKind::Pow:
    case OpKind::Min:
    case OpKind::Max:
    case OpKind::And:
    case OpKind::Or:
    case OpKind::Xor:
    case OpKind::Equal:
    case OpKind::Less:
    case OpKind::Greater:
    case OpKind::Where:
      return to_string(kind).data();
    default:
      return nullptr;
  }
}

class Writer {
 public:
  explicit Writer(const Model& model)
      : model_(model), graph_(model.graph), written_(graph_.values().size()) {}

  // The file's bytes; `shown`: the values that it returns, by name.
  std::string run(std::map<std::string, ValueId>& shown) {
    for (const Op& op : graph_.ops()) written_[op.outputs[0].index] = op.inputs.empty() ? leaf(op) : node(op);
    std::vector<bool> read(graph_.values().size(), false);
    for (const Op& op : graph_.ops())
      for (const ValueId input : op.inputs)
        if (input.valid() && written_[op.outputs[0].index]) read[input.index] = true;
    for (uint32_t v = 0; v < written_.size(); ++v) {
      if (!written_[v] || read[v] || graph_.producer(ValueId{v}).inputs.empty()) continue;
      maker_.output(name(ValueId{v}), onnx_type(graph_.spec(ValueId{v}).dtype));
      shown.emplace(name(ValueId{v}), ValueId{v});
    }
    return maker_.bytes();
  }

  static std::string name(ValueId value) { return "v" + std::to_string(value.index); }

 private:
  void store(const std::string& as, const Tensor& tensor) {
    pb::TensorProto& proto = *maker_.graph().add_initializer();
    proto.set_name(as);
    proto.set_data_type(onnx_type(tensor.dtype()));
    for (const int64_t dim : tensor.shape()) proto.add_dims(dim);
    proto.set_raw_data(tensor.bytes().data(), tensor.bytes().size());
  }

  bool leaf(const Op& op) {
    const ValueId value = op.outputs[0];
    if (op.kind == OpKind::Input)
      maker_.input(name(value), graph_.spec(value).shape, onnx_type(graph_.spec(value).dtype));
    else
      store(name(value),
            op.kind == OpKind::Constant ? graph_.constant(op) : model_.weights.at(graph_.value(value).name));
    return true;
  }

  bool node(const Op& op) {
    for (const ValueId input : op.inputs)
      if (input.valid() && !written_[input.index]) return false;
    const dag::Attributes& a = op.attributes;
    if (const char* same = same_operator(op.kind)) return emit(same, op), true;
    switch (op.kind) {
      case OpKind::Cast: {
        const auto to = static_cast<DType>(a.get_int(Attr::DType));
        attribute(emit("Cast", op), "to", int64_t{onnx_type(to)});
        return true;
      }
      case OpKind::Mod:
        attribute(emit("Mod", op), "fmod", a.get_int(Attr::Fmod));
        return true;
      case OpKind::Transpose:
        attribute(emit("Transpose", op), "perm", a.get_ints(Attr::Perm));
        return true;
      case OpKind::Reshape:
        attribute(emit("Reshape", op, {a.get_ints(Attr::Shape)}), "allowzero", int64_t{1});
        return true;
      case OpKind::Expand:
        emit("Expand", op, {a.get_ints(Attr::Shape)});
        return true;
      case OpKind::Slice:
        return slice(op), true;
      case OpKind::Concat:
      case OpKind::Gather:
      case OpKind::GatherElements:
      case OpKind::Softmax:
      case OpKind::LogSoftmax:
        attribute(emit(std::string(to_string(op.kind)), op), "axis", a.get_int(Attr::Axis));
        return true;
      case OpKind::ReduceSum:
        if (a.get_ints(Attr::Axes).empty()) return false;
        attribute(emit("ReduceSum", op, {a.get_ints(Attr::Axes)}), "keepdims", a.get_int(Attr::KeepDims));
        return true;
      case OpKind::ReduceMean:
      case OpKind::ReduceMax:
      case OpKind::ReduceMin:
      case OpKind::ReduceProd: {
        if (a.get_ints(Attr::Axes).empty()) return false;
        pb::NodeProto& made = emit(std::string(to_string(op.kind)), op);
        attribute(made, "axes", a.get_ints(Attr::Axes));
        attribute(made, "keepdims", a.get_int(Attr::KeepDims));
        return true;
      }
      case OpKind::MatMul:
        if (a.get_int(Attr::TransA) != 0 || a.get_int(Attr::TransB) != 0) return false;
        emit("MatMul", op);
        return true;
      case OpKind::Conv: {
        pb::NodeProto& made = emit("Conv", op);
        for (const auto& [what, attr] :
             {std::pair{"strides", Attr::Strides}, {"dilations", Attr::Dilations}, {"pads", Attr::Pads}})
          if (a.has(attr)) attribute(made, what, a.get_ints(attr));
        attribute(made, "group", a.get_int(Attr::Groups, 1));
        return true;
      }
      case OpKind::LayerNorm: {
        if (op.inputs.size() < 2 || !op.inputs[1].valid()) return false;
        pb::NodeProto& made = emit("LayerNormalization", op);
        attribute(made, "axis", a.get_int(Attr::Axis));
        attribute(made, "epsilon", static_cast<float>(a.get_double(Attr::Epsilon)));
        return true;
      }
      default:
        return false;
    }
  }

  pb::NodeProto& emit(const std::string& op_type, const Op& op, const std::vector<Ints>& integers = {}) {
    std::vector<std::string> inputs;
    for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? name(input) : "");
    for (const Ints& list : integers) {
      inputs.push_back("i" + std::to_string(next_++));
      maker_.ints(inputs.back(), list);
    }
    return maker_.node(op_type, inputs, {name(op.outputs[0])});
  }

  void slice(const Op& op) {
    const Ints &starts = op.attributes.get_ints(Attr::Starts), &sizes = op.attributes.get_ints(Attr::Sizes),
               &steps = op.attributes.get_ints(Attr::Steps);
    Ints ends, axes;
    for (size_t d = 0; d < starts.size(); ++d) {
      const int64_t end = starts[d] + sizes[d] * steps[d];
      ends.push_back(end < 0 ? std::numeric_limits<int64_t>::min() : end);
      axes.push_back(static_cast<int64_t>(d));
    }
    emit("Slice", op, {starts, ends, axes, steps});
  }

  const Model& model_;
  const Graph& graph_;
  std::vector<bool> written_;
  ModelMaker maker_;
  int next_ = 0;
};

}  // namespace

void expect_same_after_onnx(const Model& model) {
  std::map<std::string, ValueId> shown;
  const std::string bytes = Writer(model).run(shown);
  if (shown.empty()) return;
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  const auto imported = onnx::testing::import_bytes(bytes, options);
  ASSERT_TRUE(imported.has_value()) << imported.error().message;

  dag::GraphCopy copy(model.graph, dag::op_table());
  for (uint32_t i = 0; i < model.graph.ops().size(); ++i) copy.copy(dag::OpId{i});
  for (const auto& [name, value] : shown)
    copy.builder().output(name, copy.mapped(value), dag::OutputRole::Prediction);
  const auto expected = onnx::testing::run_graph(copy.finish(), model.weights, model.inputs);
  ASSERT_TRUE(expected.has_value()) << expected.error().message;

  std::map<std::string, Tensor> inputs;
  for (const ValueId input : model.graph.inputs())
    inputs.emplace(Writer::name(input), model.inputs.at(model.graph.value(input).name));
  const auto actual = onnx::testing::run_graph(imported->graph, imported->weights, inputs);
  ASSERT_TRUE(actual.has_value()) << actual.error().message;
  for (const auto& [name, tensor] : *expected)
    EXPECT_LE(peer::relative_error(actual->at(name), tensor), 1e-5)
        << to_string(model.graph.producer(shown.at(name)).kind) << " " << to_string(tensor.spec());
}

}  // namespace weft::test
