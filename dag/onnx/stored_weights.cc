#include "dag/onnx/stored_weights.h"

#include <algorithm>
#include <set>

#include "dag/onnx/fewer_bits.h"
#include "dag/onnx/parse.h"
#include "dag/onnx/stored_nodes.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

using dag::DType;
using dag::StoredForm;
using dag::StoredMatrix;
using dag::TensorSpec;
using Use = StoredWeight::Use;

int64_t int_of(const pb::NodeProto& node, std::string_view name, int64_t otherwise) {
  for (const auto& attribute : node.attribute())
    if (attribute.name() == name) return attribute.i();
  return otherwise;
}
bool has(const pb::NodeProto& node, int operand) {
  return operand < node.input_size() && !node.input(operand).empty();
}
bool is_byte(DType dtype) { return dtype == DType::I8 || dtype == DType::U8; }
bool is_up_to_single(DType dtype) { return dtype == DType::F32 || is_half(dtype); }

// What ends a name that only says that there are fewer bits. A name of another kind gets an end: the numbers
// and the weight are two things, and files that merge adapters have both.
constexpr std::string_view kEndings[] = {"_Q4", "_Q8", "_quant", "_quantized"};
std::string whole_name(const HeldSpecs& held, const std::string& numbers) {
  for (const std::string_view ending : kEndings)
    if (numbers.size() > ending.size() && numbers.ends_with(ending))
      if (std::string name = numbers.substr(0, numbers.size() - ending.size()); !held.contains(name))
        return name;
  std::string name = numbers + "_whole";
  while (held.contains(name)) name += "_";
  return name;
}

class Reader {
 public:
  Reader(const OnnxModel::Structure& model, const HeldSpecs& held, const pb::NodeProto& node)
      : model_(model), held_(held), node_(node) {}

  // x, scale, zero point
  std::optional<StoredWeight> dequantized() {
    if (!take(0, 1, 2)) return std::nullopt;
    const auto dims = dims_of(0);
    if (dims.size() != 2 || dims[0] < 1 || dims[1] < 1) return std::nullopt;
    const TensorSpec& scale = weight_.form.scale.spec;
    const int64_t given = int_of(node_, "output_dtype", 0);
    const auto dtype = given == 0 ? Result<DType>(scale.dtype) : dtype_from_onnx(static_cast<int32_t>(given));
    if (!dtype || !is_up_to_single(*dtype) || (*dtype != DType::F32 && *dtype != scale.dtype))
      return std::nullopt;
    int64_t axis = int_of(node_, "axis", 1);
    if (axis < 0) axis += 2;
    if (axis != 0 && axis != 1) return std::nullopt;
    const int64_t block = int_of(node_, "block_size", 0);
    matrix().rows = dims[0], matrix().columns = dims[1];
    if (block > 0) {
      if (dims_of(1).size() != 2) return std::nullopt;
      set_block(axis, std::min(block, dims[static_cast<size_t>(axis)]));
    } else if (scale.element_count() == 1 && scale.rank() <= 1) {
      matrix().block_rows = dims[0], matrix().block_columns = dims[1];
    } else {
      matrix().block_rows = axis == 0 ? 1 : dims[0], matrix().block_columns = axis == 0 ? dims[1] : 1;
    }
    weight_.use = Use::Result;
    weight_.name = node_.output(0);
    return finish(*dtype);
  }

  // Halves that fewer_bits.cc made of a weight, which has its name behind the Cast. Others are weights by
  // themselves.
  std::optional<StoredWeight> cast() {
    if (!take(0, weight_.form.numbers) || int_of(node_, "to", 0) != pb::TensorProto::FLOAT)
      return std::nullopt;
    if (weight_.form.numbers.name != node_.output(0) + std::string(kRoundedHalf)) return std::nullopt;
    const TensorSpec& numbers = weight_.form.numbers.spec;
    if (!is_half(numbers.dtype) || numbers.rank() != 2 || numbers.element_count() == 0) return std::nullopt;
    matrix() = {.rows = numbers.shape[0], .columns = numbers.shape[1], .numbers = numbers.dtype};
    weight_.name = node_.output(0);
    return weight_;
  }

  // a, numbers, scales, zero points, order of groups, bias
  std::optional<StoredWeight> product() {
    if (!take(1, 2, 3) || has(node_, 4)) return std::nullopt;
    const int64_t inner = int_of(node_, "K", 0), block = int_of(node_, "block_size", 0);
    matrix().rows = int_of(node_, "N", 0), matrix().columns = inner;
    if (matrix().rows < 1 || inner < 1 || block < 1 || inner % block != 0) return std::nullopt;
    if (!set_bits_in_bytes(int_of(node_, "bits", 4))) return std::nullopt;
    set_block(1, block);
    // Each row of packed zeros begins a byte.
    if (matrix().has_zero && matrix().bits == 4 && inner / block % 2 != 0) return std::nullopt;
    weight_.use = Use::Factor;
    weight_.name = whole_name(held_, node_.input(1));
    return finish(weight_.form.scale.spec.dtype);
  }

  // table, indices, scales, zero points
  std::optional<StoredWeight> rows() {
    if (!take(0, 2, 3) || int_of(node_, "gather_axis", 0) != 0) return std::nullopt;
    auto dims = dims_of(0);
    if (dims.size() != 2 || dims[0] < 1 || dims[1] < 1) return std::nullopt;
    const int64_t axis = int_of(node_, "quantize_axis", 1), block = int_of(node_, "block_size", 128);
    if ((axis != 1 && axis != -1) || block < 1) return std::nullopt;
    const pb::TensorProto* proto = initializer(node_.input(0));
    if (proto == nullptr || !is_four_bit(*proto)) {  // in whole bytes, as MatMulNBits has them
      if (matrix().numbers != DType::U8 || !set_bits_in_bytes(int_of(node_, "bits", 4))) return std::nullopt;
      dims[1] *= 8 / matrix().bits;
    }
    matrix().rows = dims[0], matrix().columns = dims[1];
    set_block(1, std::min(block, dims[1]));
    if (matrix().has_zero && matrix().bits == 4 && matrix().scale_columns() % 2 != 0) return std::nullopt;
    weight_.use = Use::Table;
    weight_.name = whole_name(held_, node_.input(0));
    return finish(weight_.form.scale.spec.dtype);
  }

 private:
  StoredMatrix& matrix() { return weight_.form.matrix; }
  void set_block(int64_t axis, int64_t block) {
    matrix().block_rows = axis == 0 ? block : 1;
    matrix().block_columns = axis == 1 ? block : 1;
  }
  // Of numbers in bytes whose operator says how many bits each has; without zeros theirs is in the middle.
  bool set_bits_in_bytes(int64_t bits) {
    if (bits != 4 && bits != 8) return false;
    matrix().bits = bits;
    if (!matrix().has_zero) matrix().zero_of_all = bits == 4 ? 8 : 128;
    return true;
  }

  const pb::TensorProto* initializer(const std::string& name) const {
    for (const auto& proto : model_.proto.graph().initializer())
      if (proto.name() == name) return &proto;
    return nullptr;
  }
  std::vector<int64_t> dims_of(int operand) const {
    const pb::TensorProto* proto = initializer(node_.input(operand));
    return proto ? std::vector<int64_t>(proto->dims().begin(), proto->dims().end()) : std::vector<int64_t>();
  }

  bool take(int numbers, int scale, int zero) {
    if (!take(numbers, weight_.form.numbers) || !take(scale, weight_.form.scale)) return false;
    matrix().numbers = weight_.form.numbers.spec.dtype;
    matrix().scale = weight_.form.scale.spec.dtype;
    if (!is_byte(matrix().numbers) || !is_up_to_single(matrix().scale)) return false;
    const pb::TensorProto* proto = initializer(node_.input(numbers));
    // Small ones are held a number in a byte.
    const bool is_packed = proto != nullptr && is_four_bit(*proto) && weight_.form.numbers.spec.rank() == 1;
    matrix().bits = is_packed && proto->dims_size() == 2 ? 4 : 8;
    matrix().has_zero = has(node_, zero);
    return !matrix().has_zero || take(zero, weight_.form.zero);
  }
  bool take(int operand, StoredForm::Part& part) const {
    if (!has(node_, operand)) return false;
    const auto found = held_.find(node_.input(operand));
    if (found == held_.end()) return false;
    part = {found->first, found->second};
    return true;
  }

  std::optional<StoredWeight> finish(DType dtype) {
    weight_.dtype = dtype;
    matrix().rounded = dtype;
    if (matrix().has_zero) matrix().zero_bits = matrix().zero_bits_of(weight_.form.zero.spec.element_count());
    const auto fits = [](const StoredForm::Part& part, const TensorSpec& want) {
      return part.spec.dtype == want.dtype && part.spec.element_count() == want.element_count();
    };
    const StoredForm& form = weight_.form;
    if (!dag::checked_element_count({form.matrix.rows, form.matrix.columns}) ||
        !fits(form.numbers, form.matrix.numbers_spec()) || !fits(form.scale, form.matrix.scale_spec()) ||
        (form.matrix.has_zero && !fits(form.zero, form.matrix.zero_spec())))
      return std::nullopt;
    return weight_;
  }

  const OnnxModel::Structure& model_;
  const HeldSpecs& held_;
  const pb::NodeProto& node_;
  StoredWeight weight_;
};

Result<dag::Tensor> whole(const OnnxModel& model, const StoredForm::Part& part) {
  if (part.name.empty()) return dag::Tensor();
  dag::Tensor tensor(part.spec);
  std::span<std::byte> rest = tensor.mutable_bytes();
  WEFT_TRY_STATUS(model.read_weight(part.name, [&](std::span<const std::byte> bytes) -> Status {
    const size_t count = std::min(bytes.size(), rest.size());
    std::copy_n(bytes.begin(), count, rest.begin());
    rest = rest.subspan(count);
    return {};
  }));
  return tensor;
}

}  // namespace

HeldSpecs held_specs(const OnnxModel::Structure& model) {
  HeldSpecs held;
  for (const auto& proto : model.proto.graph().initializer())
    held.emplace(proto.name(), model.weights.find(proto.name())->second.spec());
  return held;
}

std::optional<StoredWeight> stored_weight_of(const OnnxModel::Structure& model, const HeldSpecs& held,
                                             const pb::NodeProto& node) {
  Reader reader(model, held, node);
  if (node.output_size() != 1) return std::nullopt;
  if (node.domain().empty() || node.domain() == "ai.onnx") {
    if (node.op_type() == "Cast") return reader.cast();
    return node.op_type() == "DequantizeLinear" ? reader.dequantized() : std::nullopt;
  }
  if (node.domain() != "com.microsoft") return std::nullopt;
  if (node.op_type() == "MatMulNBits") return reader.product();
  if (node.op_type() == "GatherBlockQuantized") return reader.rows();
  return std::nullopt;
}

std::map<std::string, StoredWeight, std::less<>> stored_weights(const OnnxModel& model) {
  const HeldSpecs held = held_specs(model.structure());
  std::map<std::string, StoredWeight, std::less<>> weights;
  for (const auto& node : model.structure().proto.graph().node())
    if (auto weight = stored_weight_of(model.structure(), held, node)) weights.emplace(weight->name, *weight);
  return weights;
}

TrainedTensors widened(const OnnxModel& model) {
  TrainedTensors tensors;
  auto weights = stored_weights(model);
  for (const auto& [name, weight] : weights)
    tensors.specs[name] = {DType::F32, {weight.form.matrix.rows, weight.form.matrix.columns}};
  tensors.read = [model, weights = std::move(weights)](const std::string& name,
                                                       const ByteSink& sink) -> Status {
    const StoredForm& form = weights.find(name)->second.form;
    dag::StoredTensors parts;
    WEFT_TRY(parts.numbers, whole(model, form.numbers));
    WEFT_TRY(parts.scale, whole(model, form.scale));
    WEFT_TRY(parts.zero, whole(model, form.zero));
    const int64_t step = std::max<int64_t>(1, (int64_t{1} << 18) / form.matrix.columns);
    for (int64_t row = 0; row < form.matrix.rows; row += step)
      WEFT_TRY_STATUS(
          sink(widened_rows(form.matrix, parts, row, std::min(step, form.matrix.rows - row)).bytes()));
    return {};
  };
  return tensors;
}

namespace {

// A node's place taken by others that read the whole weight.
void read_whole(const pb::NodeProto& node, const StoredWeight& weight, std::vector<pb::NodeProto>& nodes) {
  const auto add = [&](const char* type, std::vector<std::string> inputs, const std::string& output,
                       const std::string& suffix) -> pb::NodeProto& {
    pb::NodeProto& made = nodes.emplace_back();
    made.set_op_type(type);
    if (!node.name().empty()) made.set_name(node.name() + suffix);
    for (std::string& input : inputs) made.add_input(std::move(input));
    made.add_output(output);
    return made;
  };
  switch (weight.use) {
    case Use::Result:
      return;  // the initializer has the name of the result
    case Use::Table:
      add("Gather", {weight.name, node.input(1)}, node.output(0), "");
      return;
    case Use::Factor:
      break;
  }
  const bool has_bias = has(node, 5);
  const std::string turned = node.output(0) + "/transposed",
                    product = has_bias ? node.output(0) + "/product" : node.output(0);
  auto& perm = *add("Transpose", {weight.name}, turned, "/transposed").add_attribute();
  perm.set_name("perm");
  perm.set_type(pb::AttributeProto::INTS);
  perm.add_ints(1);
  perm.add_ints(0);
  add("MatMul", {node.input(0), turned}, product, "");
  if (has_bias) add("Add", {product, node.input(5)}, node.output(0), "/bias");
}

}  // namespace

Result<OnnxModel> with_whole_weights(const OnnxModel& model, const std::vector<std::string>& names) {
  auto made = std::make_shared<OnnxModel::Structure>(model.structure());
  const HeldSpecs held = held_specs(model.structure());
  pb::GraphProto& graph = *made->proto.mutable_graph();
  std::vector<pb::NodeProto> nodes;
  std::map<std::string, StoredWeight> whole;
  for (const auto& node : graph.node()) {
    const auto weight = stored_weight_of(model.structure(), held, node);
    if (!weight || std::find(names.begin(), names.end(), weight->name) == names.end()) {
      nodes.push_back(node);
      continue;
    }
    read_whole(node, *weight, nodes);
    whole.emplace(weight->name, *weight);
  }
  graph.clear_node();
  for (pb::NodeProto& node : nodes) *graph.add_node() = std::move(node);
  std::set<std::string> read;
  for (const auto& node : graph.node()) read.insert(node.input().begin(), node.input().end());
  for (const auto& output : graph.output()) read.insert(output.name());
  // What nothing reads any more goes.
  for (const auto& [name, weight] : whole)
    for (const StoredForm::Part* part : {&weight.form.numbers, &weight.form.scale, &weight.form.zero}) {
      if (part->name.empty() || read.contains(part->name)) continue;
      auto& initializers = *graph.mutable_initializer();
      const auto at = std::find_if(initializers.begin(), initializers.end(),
                                   [&](const auto& proto) { return proto.name() == part->name; });
      if (at == initializers.end()) continue;  // another weight had it, too
      made->forms.erase(made->forms.begin() + (at - initializers.begin()));
      initializers.erase(at);
      made->weights.erase(part->name);
      made->unread.erase(part->name);
    }
  const auto form =
      model.has_external_data() ? OnnxModel::Structure::Form::External : OnnxModel::Structure::Form::Raw;
  for (const auto& [name, weight] : whole) {
    pb::TensorProto& proto = *graph.add_initializer();
    proto.set_name(name);
    proto.set_data_type(dtype_to_onnx(weight.dtype));
    proto.add_dims(weight.form.matrix.rows);
    proto.add_dims(weight.form.matrix.columns);
    if (form == OnnxModel::Structure::Form::External) proto.set_data_location(pb::TensorProto::EXTERNAL);
    made->forms.push_back(form);
    // Zeros of no use: who writes the model gives it other values.
    WEFT_TRY(made->weights[name],
             zeros_without_memory({weight.dtype, {weight.form.matrix.rows, weight.form.matrix.columns}}));
    made->unread[name] = {};
  }
  return OnnxModel(std::move(made));
}

}  // namespace weft::onnx
