#include "tests/onnx/models.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>

#include "dag/onnx/tensor_proto.h"

namespace weft::onnx::testing {

ModelMaker::ModelMaker(int64_t opset) {
  proto.set_ir_version(8);
  proto.set_producer_name("weft tests");
  proto.add_opset_import()->set_version(opset);
  graph().set_name("g");
}

ModelMaker& ModelMaker::input(const std::string& name, const std::vector<int64_t>& dims, int32_t type) {
  auto* info = graph().add_input();
  info->set_name(name);
  auto* tensor = info->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (const int64_t dim : dims) {
    auto* entry = tensor->mutable_shape()->add_dim();
    if (dim < 0)
      entry->set_dim_param("batch");
    else
      entry->set_dim_value(dim);
  }
  return *this;
}

ModelMaker& ModelMaker::output(const std::string& name, int32_t type) {
  auto* info = graph().add_output();
  info->set_name(name);
  info->mutable_type()->mutable_tensor_type()->set_elem_type(type);
  return *this;
}

pb::TensorProto& ModelMaker::weight(const std::string& name, const std::vector<int64_t>& dims, float value) {
  auto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(pb::TensorProto::FLOAT);
  size_t count = 1;
  for (const int64_t dim : dims) {
    tensor.add_dims(dim);
    count *= static_cast<size_t>(dim);
  }
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value + 0.01f * static_cast<float>(i);
  tensor.set_raw_data(values.data(), count * sizeof(float));
  return tensor;
}

pb::TensorProto& ModelMaker::ints(const std::string& name, const std::vector<int64_t>& values) {
  auto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(pb::TensorProto::INT64);
  tensor.add_dims(static_cast<int64_t>(values.size()));
  for (const int64_t value : values) tensor.add_int64_data(value);
  return tensor;
}

pb::NodeProto& ModelMaker::node(const std::string& op, const std::vector<std::string>& inputs,
                                const std::vector<std::string>& outputs) {
  auto& node = *graph().add_node();
  node.set_op_type(op);
  node.set_name(op + "_" + std::to_string(graph().node_size()));
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}

namespace {
pb::AttributeProto& add(pb::NodeProto& node, const std::string& name,
                        pb::AttributeProto::AttributeType type) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(type);
  return attribute;
}
}  // namespace

pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, int64_t value) {
  auto& added = add(node, name, pb::AttributeProto::INT);
  added.set_i(value);
  return added;
}
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, float value) {
  auto& added = add(node, name, pb::AttributeProto::FLOAT);
  added.set_f(value);
  return added;
}
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name,
                              const std::vector<int64_t>& values) {
  auto& added = add(node, name, pb::AttributeProto::INTS);
  for (const int64_t value : values) added.add_ints(value);
  return added;
}
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, const std::string& value) {
  auto& added = add(node, name, pb::AttributeProto::STRING);
  added.set_s(value);
  return added;
}

void keep_outside(pb::TensorProto& tensor, const std::string& location, std::optional<int64_t> offset,
                  std::optional<int64_t> length) {
  tensor.clear_raw_data();
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const std::string& value) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("location", location);
  if (offset) add("offset", std::to_string(*offset));
  if (length) add("length", std::to_string(*length));
}

ModelMaker linear_model() {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("w", {4, 3});
  maker.weight("b", {3});
  maker.node("MatMul", {"x", "w"}, {"xw"});
  maker.node("Add", {"xw", "b"}, {"sum"});
  maker.node("Relu", {"sum"}, {"y"});
  return maker;
}

ImportOptions training_options() {
  ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.training = true;
  options.batch = 2;
  return options;
}

Result<OnnxModel> read_bytes(const std::string& bytes, const ImportLimits& limits) {
  return read_model(std::as_bytes(std::span(bytes.data(), bytes.size())), limits);
}

Result<ImportedModel> import_bytes(const std::string& bytes, const ImportOptions& options) {
  WEFT_TRY(const OnnxModel model, read_bytes(bytes, options.limits));
  return import_model(model, options, dag::op_table());
}

int count_kind(const dag::Graph& graph, dag::OpKind kind) {
  int count = 0;
  for (const dag::Op& op : graph.ops()) count += op.kind == kind;
  return count;
}

Result<std::map<std::string, dag::Tensor>> run_graph(const dag::Graph& graph, const dag::Weights& weights,
                                                     const std::map<std::string, dag::Tensor>& inputs) {
  std::vector<dag::Tensor> values(graph.values().size());
  for (const dag::Op& op : graph.ops()) {
    const std::string& name = op.attributes.get_string(dag::Attr::Name);
    dag::Tensor* target = &values[op.outputs[0].index];
    if (op.kind == dag::OpKind::Input) {
      *target = inputs.at(name);
    } else if (op.kind == dag::OpKind::Initializer) {
      *target = weights.find(name)->second;
    } else if (op.kind == dag::OpKind::Constant) {
      *target = graph.constant(op);
    } else {
      std::vector<const dag::Tensor*> operands;
      std::vector<dag::TensorSpec> specs;
      for (const dag::ValueId input : op.inputs)
        operands.push_back(input.valid() ? &values[input.index] : nullptr);
      for (const dag::ValueId output : op.outputs) specs.push_back(graph.spec(output));
      WEFT_TRY(auto results, peer::evaluate_reference(op, operands, specs));
      for (size_t i = 0; i < results.size(); ++i) values[op.outputs[i].index] = std::move(results[i]);
    }
  }
  std::map<std::string, dag::Tensor> outputs;
  for (const dag::GraphOutput& output : graph.outputs()) outputs[output.name] = values[output.value.index];
  return outputs;
}

dag::Tensor from_list(const dag::TensorSpec& spec, const std::vector<double>& values) {
  return dag::from_doubles(spec, values);
}

dag::Tensor wave(const dag::Shape& shape, double phase, double amplitude) {
  const dag::TensorSpec spec{dag::DType::F32, shape};
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = amplitude * std::sin(0.7 * static_cast<double>(i) + phase);
  return dag::from_doubles(spec, values);
}

static dag::Tensor angles(double (*f)(double)) {
  std::vector<double> values;
  for (int position = 0; position < 3; ++position)
    for (const double frequency : {1.0, 0.1}) values.push_back(f(position * frequency));
  return from_list({dag::DType::F32, {3, 2}}, values);
}
dag::Tensor cosines() {
  return angles([](double a) { return std::cos(a); });
}
dag::Tensor sines() {
  return angles([](double a) { return std::sin(a); });
}

void add_input(ModelMaker& maker, const std::string& name, const dag::Tensor& tensor) {
  maker.input(name, tensor.shape(), dtype_to_onnx(tensor.dtype()));
}

Result<std::map<std::string, dag::Tensor>> run_model(const ModelMaker& maker,
                                                     const std::map<std::string, dag::Tensor>& inputs,
                                                     const ImportOptions& options) {
  WEFT_TRY(const ImportedModel model, import_bytes(maker.bytes(), options));
  return run_graph(model.graph, model.weights, inputs);
}

Result<std::vector<dag::Tensor>> run_op(int64_t opset, const std::string& domain, const std::string& op,
                                        const Operands& operands,
                                        const std::function<void(pb::NodeProto&)>& attributes, int results,
                                        const std::set<size_t>& known) {
  ModelMaker maker(opset);
  std::map<std::string, dag::Tensor> inputs;
  ImportOptions options = training_options();
  std::vector<std::string> names, outputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    names.push_back(operands[i] ? "in" + std::to_string(i) : "");
    if (!operands[i]) continue;
    add_input(maker, names.back(), *operands[i]);
    (known.contains(i) ? options.bound_inputs : inputs)[names.back()] = *operands[i];
  }
  for (int i = 0; i < results; ++i) {
    outputs.push_back("out" + std::to_string(i));
    maker.output(outputs.back(), 0);
  }
  auto& node = maker.node(op, names, outputs);
  node.set_domain(domain);
  if (attributes) attributes(node);
  WEFT_TRY(auto values, run_model(maker, inputs, options));
  std::vector<dag::Tensor> tensors;
  for (const auto& name : outputs) tensors.push_back(values.at(name));
  return tensors;
}

void expect_start(const Result<std::vector<dag::Tensor>>& results, const std::vector<double>& expected,
                  double tolerance) {
  ASSERT_TRUE(results.has_value()) << results.error().message;
  const auto values = to_doubles(results->front());
  ASSERT_GE(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], tolerance) << "element " << i;
}

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = std::filesystem::path(WEFT_TEST_TMP) / ("onnx-" + std::to_string(::getpid())) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string gunzip(const std::filesystem::path& path) {
  std::string bytes;
  gzFile file = gzopen(path.c_str(), "rb");
  if (!file) return bytes;
  std::array<char, 65536> part{};
  for (int got = 0; (got = gzread(file, part.data(), part.size())) > 0;)
    bytes.append(part.data(), static_cast<size_t>(got));
  gzclose(file);
  return bytes;
}

}  // namespace weft::onnx::testing
