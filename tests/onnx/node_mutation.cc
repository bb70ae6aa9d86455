#include <set>

#include "dag/onnx/tensor_proto.h"
#include "tests/fuzz/import_limits.h"
#include "tests/onnx/operator_cases.h"
#include "tests/onnx/operator_parts.h"

namespace weft::onnx::testing {
namespace {

template <typename Graph, typename Visit>
void visit_all_nodes(Graph& graph, const Visit& visit) {
  for (auto& node : *graph.mutable_node()) {
    visit(node);
    for (auto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) visit_all_nodes(*attribute.mutable_g(), visit);
  }
}

template <typename List>
void erase(List& list, int from, int count) {
  list.DeleteSubrange(from, count);
}

bool mutate_inputs(pb::NodeProto& node, Mutation mutation, int place, int form) {
  auto& inputs = *node.mutable_input();
  if (place >= inputs.size()) return false;
  switch (mutation) {
    case Mutation::DropInput:
      if (form > 0) return false;
      erase(inputs, place, 1);
      return true;
    case Mutation::EmptyInput:
      if (form > 0) return false;
      inputs[place].clear();
      return true;
    case Mutation::DoubleInput:
      if (form > 1) return false;
      for (int times = 0; times <= 8 * form; ++times) node.add_input(inputs[place]);
      return true;
    case Mutation::CutInputs:
      if (form > 0) return false;
      erase(inputs, place, inputs.size() - place);
      return true;
    default:
      if (form >= inputs.size() || form == place) return false;
      inputs[place] = std::string(inputs[form]);
      return true;
  }
}

bool mutate_outputs(pb::NodeProto& node, Mutation mutation, int place, int form, pb::GraphProto& graph) {
  auto& outputs = *node.mutable_output();
  if (mutation == Mutation::AddOutput) {
    if (place > 5 || form > 1) return false;
    for (int i = 0; i <= place; ++i) node.add_output("more" + std::to_string(i));
    if (form == 1) graph.add_output()->set_name("more" + std::to_string(place));
    return true;
  }
  if (place >= outputs.size() || form > 0) return false;
  if (mutation == Mutation::DropOutput) erase(outputs, place, 1);
  if (mutation == Mutation::EmptyOutput) outputs[place].clear();
  if (mutation == Mutation::CutOutputs) erase(outputs, place, outputs.size() - place);
  return true;
}

void empty(pb::AttributeProto& attribute) {
  const auto type = attribute.type();
  const std::string name = attribute.name();
  attribute.Clear();
  attribute.set_name(name);
  attribute.set_type(type);
  if (type == pb::AttributeProto::GRAPH) attribute.mutable_g();
  if (type == pb::AttributeProto::TENSOR) attribute.mutable_t();
}

bool change_int(pb::AttributeProto& attribute, int form) {
  constexpr int64_t kValues[] = {
      0, 1, -1, 2, 3, 16, 1 << 20, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  if (form >= static_cast<int>(std::size(kValues))) return false;
  attribute.set_i(kValues[form]);
  return true;
}

bool change_float(pb::AttributeProto& attribute, int form) {
  constexpr float kValues[] = {
      0, -1, 1e30f, 1e-30f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  if (form >= static_cast<int>(std::size(kValues))) return false;
  attribute.set_f(kValues[form]);
  return true;
}

bool change_ints(pb::AttributeProto& attribute, int form) {
  auto& values = *attribute.mutable_ints();
  constexpr int64_t kValues[] = {0, -1, 100, std::numeric_limits<int64_t>::max()};
  if (form == 0) attribute.add_ints(1);
  if (form == 1 && !values.empty()) values.RemoveLast();
  if (form >= 2 && form < 6)
    for (auto& value : values) value = kValues[form - 2];
  if (form >= 6 && form < 10) attribute.add_ints(kValues[form - 6]);
  if (form == 10)
    for (int i = 0; i < 40; ++i) attribute.add_ints(1);
  return form <= 10;
}

bool change_attribute(pb::AttributeProto& attribute, int form) {
  switch (attribute.type()) {
    case pb::AttributeProto::INT:
      return change_int(attribute, form);
    case pb::AttributeProto::FLOAT:
      return change_float(attribute, form);
    case pb::AttributeProto::INTS:
      return change_ints(attribute, form);
    case pb::AttributeProto::FLOATS:
      if (form > 1) return false;
      if (form == 0) attribute.add_floats(1);
      if (form == 1 && attribute.floats_size() > 0) attribute.mutable_floats()->RemoveLast();
      return true;
    case pb::AttributeProto::STRING:
      if (form > 0) return false;
      attribute.set_s("neither");
      return true;
    case pb::AttributeProto::STRINGS:
      if (form > 1) return false;
      if (form == 0) attribute.add_strings("Tanh");
      if (form == 1 && attribute.strings_size() > 0) attribute.mutable_strings()->RemoveLast();
      return true;
    case pb::AttributeProto::GRAPH: {
      auto& body = *attribute.mutable_g();
      if (form == 0) body.add_input()->set_name("one_more");
      if (form == 1 && body.input_size() > 0) body.mutable_input()->RemoveLast();
      if (form == 2 && body.output_size() > 0) body.mutable_output()->RemoveLast();
      if (form == 3 && body.output_size() > 0) *body.add_output() = pb::ValueInfoProto(body.output(0));
      if (form == 4) body.clear_node();
      return form <= 4;
    }
    default:
      return false;
  }
}

bool mutate_attributes(pb::NodeProto& node, Mutation mutation, int place, int form) {
  auto& attributes = *node.mutable_attribute();
  if (place >= attributes.size()) return false;
  if (mutation == Mutation::ChangeAttribute) return change_attribute(attributes[place], form);
  if (form > 0) return false;
  if (mutation == Mutation::DropAttribute) erase(attributes, place, 1);
  if (mutation == Mutation::EmptyAttribute) empty(attributes[place]);
  if (mutation == Mutation::DoubleAttribute) *node.add_attribute() = pb::AttributeProto(attributes[place]);
  return true;
}

bool change_shape(std::vector<int64_t>& shape, int form) {
  const size_t last = shape.empty() ? 0 : shape.size() - 1;
  if (form == 0) shape.clear();
  if (form == 1) shape = {0};
  if (form == 2) shape.push_back(1);
  if (form == 3) shape.insert(shape.begin(), 2);
  if (form == 4 && !shape.empty()) shape.pop_back();
  if (form == 5 && !shape.empty()) shape[0] = 0;
  if (form == 6 && !shape.empty()) shape[last] = 0;
  if (form == 7 && !shape.empty()) shape[0] += 1;
  if (form == 8 && !shape.empty()) shape[last] += 1;
  if (form == 9) shape = std::vector<int64_t>(10, 1);
  if (form == 10 && !shape.empty()) shape[last] = 1;
  return form <= 10;
}

constexpr dag::DType kTypes[] = {dag::DType::F32,  dag::DType::F64, dag::DType::F16, dag::DType::BF16,
                                 dag::DType::I8,   dag::DType::U8,  dag::DType::I32, dag::DType::I64,
                                 dag::DType::Bool, dag::DType::U64};

// Input or initializer `place`: its shape or its type another one.
bool mutate_tensor(pb::GraphProto& graph, Mutation mutation, int place, int form) {
  const bool is_input = place < graph.input_size();
  if (!is_input && place - graph.input_size() >= graph.initializer_size()) return false;
  if (mutation == Mutation::ChangeType && form >= static_cast<int>(std::size(kTypes))) return false;
  if (is_input) {
    auto& type = *graph.mutable_input(place)->mutable_type()->mutable_tensor_type();
    if (mutation == Mutation::ChangeType) {
      type.set_elem_type(dtype_to_onnx(kTypes[form]));
      return true;
    }
    std::vector<int64_t> shape;
    for (const auto& dim : type.shape().dim()) shape.push_back(dim.dim_value());
    if (!change_shape(shape, form)) return false;
    type.mutable_shape()->clear_dim();
    for (const int64_t dim : shape) type.mutable_shape()->add_dim()->set_dim_value(dim);
    return true;
  }
  auto& proto = *graph.mutable_initializer(place - graph.input_size());
  const auto old = tensor_from_proto(proto, fuzz::small_limits());
  if (!old) return false;
  dag::TensorSpec spec = old->spec();
  if (mutation == Mutation::ChangeType) spec.dtype = kTypes[form];
  if (mutation == Mutation::ChangeShape && !change_shape(spec.shape, form)) return false;
  std::vector<double> values = to_doubles(*old);
  if (values.empty()) values.push_back(1);
  const size_t have = values.size(), want = static_cast<size_t>(spec.element_count());
  for (size_t i = have; i < want; ++i) values.push_back(values[i % have]);
  values.resize(want);
  const std::string name = proto.name();
  proto.Clear();
  proto.set_name(name);
  set_tensor(proto, spec, values);
  return true;
}

bool change_opset(pb::ModelProto& model, int form) {
  constexpr int64_t kVersions[] = {6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 21, 23, 24};
  if (form >= static_cast<int>(std::size(kVersions))) return false;
  model.mutable_opset_import(0)->set_version(kVersions[form]);
  return true;
}

void drop_lost_outputs(pb::GraphProto& graph) {
  std::set<std::string> made;
  for (const auto& node : graph.node()) made.insert(node.output().begin(), node.output().end());
  for (int i = graph.output_size(); i-- > 0;)
    if (!made.contains(graph.output(i).name())) erase(*graph.mutable_output(), i, 1);
}

}  // namespace

std::string_view to_string(Mutation mutation) {
  constexpr std::string_view kNames[] = {
      "drop input",       "empty input",    "double input",    "cut inputs",
      "other input",      "drop output",    "empty output",    "add output",
      "cut outputs",      "drop attribute", "empty attribute", "double attribute",
      "change attribute", "change shape",   "change type",     "change opset"};
  return kNames[static_cast<size_t>(mutation)];
}

int count_nodes(const pb::ModelProto& model) {
  pb::ModelProto copy = model;
  int count = 0;
  visit_all_nodes(*copy.mutable_graph(), [&](const auto&) { ++count; });
  return count;
}

bool mutate(pb::ModelProto& model, int node, Mutation mutation, int place, int form) {
  auto& graph = *model.mutable_graph();
  if (mutation == Mutation::ChangeOpset) return place == 0 && node == 0 && change_opset(model, form);
  if (mutation == Mutation::ChangeShape || mutation == Mutation::ChangeType)
    return node == 0 && mutate_tensor(graph, mutation, place, form);
  pb::NodeProto* found = nullptr;
  int at = 0;
  visit_all_nodes(graph, [&](auto& each) {
    if (at++ == node) found = &each;
  });
  if (!found) return false;
  bool changed = false;
  if (mutation <= Mutation::OtherInput) {
    changed = mutate_inputs(*found, mutation, place, form);
  } else if (mutation <= Mutation::CutOutputs) {
    changed = mutate_outputs(*found, mutation, place, form, graph);
  } else {
    changed = mutate_attributes(*found, mutation, place, form);
  }
  drop_lost_outputs(graph);
  return changed;
}

}  // namespace weft::onnx::testing
