#include "tests/onnx/operator_cases.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "dag/onnx/tensor_proto.h"
#include "tests/onnx/operator_parts.h"

namespace weft::onnx::testing {

void set_tensor(pb::TensorProto& proto, const dag::TensorSpec& spec, const std::vector<double>& values) {
  const dag::Tensor tensor = dag::from_doubles(spec, values);
  proto.set_data_type(dtype_to_onnx(spec.dtype));
  for (const int64_t dim : spec.shape) proto.add_dims(dim);
  proto.set_raw_data(tensor.bytes().data(), tensor.bytes().size());
}

namespace {

using Words = std::vector<std::string>;

Words split(const std::string& text, char by) {
  Words words;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, by);)
    if (!word.empty() || by != ' ') words.push_back(word);
  return words;
}

dag::TensorSpec read_spec(const std::string& text) {
  const size_t open = text.find('[');
  dag::TensorSpec spec{dag::parse_dtype(text.substr(0, open)).value(), {}};
  for (const auto& dim : split(text.substr(open + 1, text.find(']') - open - 1), ','))
    spec.shape.push_back(std::stoll(dim));
  return spec;
}

std::vector<double> read_numbers(const std::string& text) {
  std::vector<double> numbers;
  for (const auto& word : split(text, ',')) numbers.push_back(std::stod(word));
  return numbers;
}

void set_list(pb::AttributeProto& attribute, const std::string& text) {
  const Words words = split(text, ',');
  if (text.find('"') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::STRINGS);
    for (const auto& word : words) attribute.add_strings(word.substr(1, word.size() - 2));
  } else if (text.find('.') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::FLOATS);
    for (const auto& word : words) attribute.add_floats(std::stof(word));
  } else {
    attribute.set_type(pb::AttributeProto::INTS);
    for (const auto& word : words) attribute.add_ints(std::stoll(word));
  }
}

void add_attribute(pb::NodeProto& node, const std::string& text) {
  const size_t is = text.find('=');
  const std::string value = text.substr(is + 1);
  auto& attribute = *node.add_attribute();
  attribute.set_name(text.substr(0, is));
  if (value.front() == '[') {
    set_list(attribute, value.substr(1, value.size() - 2));
  } else if (value.front() == '"') {
    attribute.set_type(pb::AttributeProto::STRING);
    attribute.set_s(value.substr(1, value.size() - 2));
  } else if (const size_t colon = value.find(':'); colon != std::string::npos) {
    attribute.set_type(pb::AttributeProto::TENSOR);
    set_tensor(*attribute.mutable_t(), read_spec(value), read_numbers(value.substr(colon + 1)));
  } else if (value.find('.') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::FLOAT);
    attribute.set_f(std::stof(value));
  } else {
    attribute.set_type(pb::AttributeProto::INT);
    attribute.set_i(std::stoll(value));
  }
}

void add_input(pb::GraphProto& graph, const std::string& name, const dag::TensorSpec& spec) {
  auto& info = *graph.add_input();
  info.set_name(name);
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(dtype_to_onnx(spec.dtype));
  tensor.mutable_shape();
  for (const int64_t dim : spec.shape) tensor.mutable_shape()->add_dim()->set_dim_value(dim);
}

void add_operand(pb::GraphProto& graph, const std::string& name, const std::string& text, bool is_first) {
  const dag::TensorSpec spec = read_spec(text);
  const size_t is = text.find('=');
  if (is == std::string::npos && (is_first || !is_float(spec.dtype))) return add_input(graph, name, spec);
  auto& tensor = *graph.add_initializer();
  tensor.set_name(name);
  std::vector<double> values;
  for (int64_t i = 0; i < spec.element_count(); ++i)
    values.push_back(0.25 + 0.125 * static_cast<double>(i % 7));
  if (is != std::string::npos) values = read_numbers(text.substr(is + 1));
  set_tensor(tensor, spec, values);
}

pb::ModelProto new_model(int64_t opset) {
  pb::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(opset);
  model.mutable_graph()->set_name("g");
  return model;
}

pb::NodeProto& add_node(pb::GraphProto& graph, const std::string& op, const Words& inputs,
                        const Words& outputs) {
  auto& node = *graph.add_node();
  node.set_op_type(op);
  node.set_name(op);
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}

OperatorCase read_line(const std::string& line) {
  const Words words = split(line, ' ');
  OperatorCase made{words[0], line, new_model(std::stoll(words[1]))};
  auto& graph = *made.model.mutable_graph();
  const auto arrow = std::find(words.begin(), words.end(), "->");
  Words inputs, outputs;
  for (auto word = words.begin() + 2; word != arrow; ++word) {
    inputs.push_back(*word == "-" ? "" : "in" + std::to_string(inputs.size()));
    if (*word != "-") add_operand(graph, inputs.back(), *word, inputs.size() == 1);
  }
  for (const char listed : arrow[1]) {
    outputs.push_back(listed == '-' ? "" : "out" + std::to_string(outputs.size()));
    if (listed != '-') graph.add_output()->set_name(outputs.back());
  }
  const size_t dot = made.op.rfind('.');
  auto& node = add_node(graph, made.op.substr(dot == std::string::npos ? 0 : dot + 1), inputs, outputs);
  if (dot != std::string::npos) node.set_domain(made.op.substr(0, dot));
  for (auto word = arrow + 2; word != words.end(); ++word) add_attribute(node, *word);
  return made;
}

// ---- what needs more than one node

OperatorCase with_graph(const std::string& op, const std::string& what) {
  OperatorCase made{op, op + ": " + what, new_model(17)};
  auto& graph = *made.model.mutable_graph();
  add_input(graph, "x", {dag::DType::F32, {2, 3}});
  graph.add_output()->set_name("y");
  return made;
}

void add_known(pb::GraphProto& graph, const std::string& name, const dag::TensorSpec& spec,
               const std::vector<double>& values) {
  auto& tensor = *graph.add_initializer();
  tensor.set_name(name);
  set_tensor(tensor, spec, values);
}

pb::GraphProto& add_body(pb::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::GRAPH);
  attribute.mutable_g()->set_name(name);
  return *attribute.mutable_g();
}

void add_port(google::protobuf::RepeatedPtrField<pb::ValueInfoProto>& ports, const std::string& name) {
  ports.Add()->set_name(name);
}

OperatorCase if_case(bool known) {
  auto made = with_graph("If", known ? "a known condition" : "both branches");
  auto& graph = *made.model.mutable_graph();
  if (known) {
    add_known(graph, "c", {dag::DType::Bool, {}}, {1});
  } else {
    add_input(graph, "c", {dag::DType::Bool, {}});
  }
  auto& node = add_node(graph, "If", {"c"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto& body = add_body(node, branch);
    const std::string result = std::string(branch) + "_y";
    add_node(body, branch[0] == 't' ? "Relu" : "Neg", {"x"}, {result});
    add_port(*body.mutable_output(), result);
  }
  return made;
}

OperatorCase loop_case() {
  auto made = with_graph("Loop", "a state and a scanned result");
  auto& graph = *made.model.mutable_graph();
  graph.add_output()->set_name("all");
  add_known(graph, "trips", {dag::DType::I64, {}}, {3});
  add_known(graph, "go", {dag::DType::Bool, {}}, {1});
  auto& node = add_node(graph, "Loop", {"trips", "go", "x"}, {"y", "all"});
  auto& body = add_body(node, "body");
  for (const char* name : {"i", "on", "s"}) add_port(*body.mutable_input(), name);
  add_node(body, "Identity", {"on"}, {"still"});
  add_node(body, "Mul", {"s", "s"}, {"next"});
  add_node(body, "Relu", {"next"}, {"part"});
  for (const char* name : {"still", "next", "part"}) add_port(*body.mutable_output(), name);
  return made;
}

OperatorCase scan_case() {
  auto made = with_graph("Scan", "a state, a sequence and a scanned result");
  auto& graph = *made.model.mutable_graph();
  graph.add_output()->set_name("all");
  add_known(graph, "start", {dag::DType::F32, {3}}, {0.5, 1, 1.5});
  auto& node = add_node(graph, "Scan", {"start", "x"}, {"y", "all"});
  add_attribute(node, "num_scan_inputs=1");
  add_attribute(node, "scan_input_axes=[0]");
  add_attribute(node, "scan_input_directions=[1]");
  add_attribute(node, "scan_output_axes=[1]");
  add_attribute(node, "scan_output_directions=[1]");
  auto& body = add_body(node, "body");
  for (const char* name : {"s", "e"}) add_port(*body.mutable_input(), name);
  add_node(body, "Add", {"s", "e"}, {"next"});
  add_node(body, "Relu", {"next"}, {"part"});
  for (const char* name : {"next", "part"}) add_port(*body.mutable_output(), name);
  return made;
}

// Each makes a sequence and takes something out of it.
std::vector<OperatorCase> sequence_cases() {
  std::vector<OperatorCase> all;
  const auto add = [&](const std::string& op, const auto& fill) {
    auto made = with_graph(op, "of a sequence");
    auto& graph = *made.model.mutable_graph();
    add_known(graph, "at", {dag::DType::I64, {}}, {0});
    fill(graph);
    all.push_back(std::move(made));
  };
  add("SequenceConstruct", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceAt", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceEmpty", [](auto& graph) {
    add_attribute(add_node(graph, "SequenceEmpty", {}, {"none"}), "dtype=1");
    add_node(graph, "SequenceInsert", {"none", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceInsert", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceInsert", {"s", "x", "at"}, {"t"});
    add_node(graph, "SequenceAt", {"t", "at"}, {"y"});
  });
  add("SequenceErase", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceErase", {"s", "at"}, {"t"});
    add_node(graph, "SequenceAt", {"t", "at"}, {"y"});
  });
  add("SequenceLength", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceLength", {"s"}, {"y"});
  });
  add("SplitToSequence", [](auto& graph) {
    add_known(graph, "sizes", {dag::DType::I64, {2}}, {1, 2});
    auto& node = add_node(graph, "SplitToSequence", {"x", "sizes"}, {"s"});
    add_attribute(node, "axis=1");
    add_attribute(node, "keepdims=0");
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("ConcatFromSequence", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    auto& node = add_node(graph, "ConcatFromSequence", {"s"}, {"y"});
    add_attribute(node, "axis=0");
    add_attribute(node, "new_axis=1");
  });
  return all;
}

std::vector<OperatorCase> make_cases() {
  std::vector<OperatorCase> all;
  for (const auto& line : split(std::string(operator_lines()), '\n'))
    if (!line.empty()) all.push_back(read_line(line));
  for (auto& made : sequence_cases()) all.push_back(std::move(made));
  all.push_back(if_case(true));
  all.push_back(if_case(false));
  all.push_back(loop_case());
  all.push_back(scan_case());
  return all;
}

}  // namespace

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> all = make_cases();
  return all;
}

}  // namespace weft::onnx::testing
