#include "dag/graph.h"

#include <algorithm>

#include "dag/op_table.h"

namespace weft::dag {

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::Plain:
      return "plain";
    case Layout::Blocked8:
      return "blocked8";
    case Layout::Blocked16:
      return "blocked16";
  }
  return "unknown";
}

std::string_view to_string(InitializerRole role) {
  switch (role) {
    case InitializerRole::Parameter:
      return "parameter";
    case InitializerRole::Frozen:
      return "frozen";
    case InitializerRole::RunningStatistic:
      return "running_statistic";
    case InitializerRole::Buffer:
      return "buffer";
  }
  return "unknown";
}

std::string_view to_string(OutputRole role) {
  switch (role) {
    case OutputRole::Prediction:
      return "prediction";
    case OutputRole::Loss:
      return "loss";
    case OutputRole::Correct:
      return "correct";
    case OutputRole::Counted:
      return "counted";
    case OutputRole::Gradient:
      return "gradient";
    case OutputRole::StateUpdate:
      return "state_update";
    case OutputRole::Activation:
      return "activation";
    case OutputRole::Cotangent:
      return "cotangent";
  }
  return "unknown";
}

const Initializer* Graph::find_initializer(std::string_view name) const {
  for (const auto& initializer : initializers_)
    if (initializer.name == name) return &initializer;
  return nullptr;
}

InputRole Graph::input_role(ValueId input) const {
  const auto at = std::find(inputs_.begin(), inputs_.end(), input);
  WEFT_CHECK(at != inputs_.end());
  return input_roles_[static_cast<size_t>(at - inputs_.begin())];
}

const GraphOutput* Graph::find_output(OutputRole role, std::string_view name) const {
  for (const auto& output : outputs_)
    if (output.role == role && (name.empty() || output.name == name)) return &output;
  return nullptr;
}

std::vector<std::vector<OpId>> Graph::users() const {
  std::vector<std::vector<OpId>> users(values_.size());
  for (uint32_t i = 0; i < ops_.size(); ++i)
    for (const ValueId input : ops_[i].inputs)
      if (input.valid()) users[input.index].push_back(OpId{i});
  return users;
}

ValueId GraphBuilder::add_leaf(OpKind kind, Attributes attributes, TensorSpec spec, std::string name) {
  WEFT_CHECK(checked_element_count(spec.shape).has_value());
  const OpId op{static_cast<uint32_t>(graph_.ops_.size())};
  const ValueId value{static_cast<uint32_t>(graph_.values_.size())};
  graph_.values_.push_back({std::move(spec), op, 0, Layout::Plain, name});
  graph_.ops_.push_back({kind,
                         std::move(attributes),
                         {},
                         {value},
                         std::move(name),
                         phase_,
                         origin_.valid() ? origin_ : op,
                         GroupId{}});
  return value;
}

ValueId GraphBuilder::input(std::string name, TensorSpec spec, InputRole role) {
  const ValueId value = add_leaf(OpKind::Input, {{Attr::Name, name}}, std::move(spec), name);
  graph_.inputs_.push_back(value);
  graph_.input_roles_.push_back(role);
  return value;
}

ValueId GraphBuilder::initializer(std::string name, TensorSpec spec, InitializerRole role) {
  WEFT_CHECK(graph_.find_initializer(name) == nullptr);
  const ValueId value = add_leaf(OpKind::Initializer, {{Attr::Name, name}}, std::move(spec), name);
  graph_.initializers_.push_back({std::move(name), value, role});
  return value;
}

ValueId GraphBuilder::constant(Tensor tensor, std::string name) {
  TensorSpec spec = tensor.spec();
  const auto index = static_cast<int64_t>(graph_.constants_.size());
  graph_.constants_.push_back(std::move(tensor));
  return add_leaf(OpKind::Constant, {{Attr::Value, index}}, std::move(spec), std::move(name));
}

Result<std::vector<ValueId>> GraphBuilder::try_add(OpKind kind, std::vector<ValueId> inputs,
                                                   Attributes attributes, std::string name) {
  const OpRow& row = table_->row(kind);
  std::vector<const TensorSpec*> specs;
  specs.reserve(inputs.size());
  for (const ValueId input : inputs) {
    WEFT_CHECK(!input.valid() || input.index < graph_.values_.size());
    specs.push_back(input.valid() ? &graph_.values_[input.index].spec : nullptr);
  }
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    std::string text = std::string(to_string(kind)) + (name.empty() ? "" : " '" + name + "'") + "(";
    for (size_t i = 0; i < specs.size(); ++i)
      text += (i ? ", " : "") + (specs[i] ? to_string(*specs[i]) : std::string("-"));
    return fail(code, text + ") " + to_string(attributes) + ": " + why);
  };
  const int count = static_cast<int>(inputs.size());
  if (count < row.inputs_min || count > row.inputs_max)
    return refuse(ErrorCode::InvalidArgument, "takes " + std::to_string(row.inputs_min) + " to " +
                                                  std::to_string(row.inputs_max) + " operands");
  for (int i = 0; i < row.inputs_min; ++i)
    if (!specs[static_cast<size_t>(i)])
      return refuse(ErrorCode::InvalidArgument, "operand " + std::to_string(i) + " is missing");

  WEFT_CHECK_MSG(row.infer != nullptr, "op without a shape rule");
  auto outputs = row.infer(ShapeContext{specs, attributes});
  if (!outputs) return refuse(outputs.error().code, outputs.error().message);
  for (const TensorSpec& spec : *outputs)
    if (auto elements = checked_element_count(spec.shape); !elements)
      return refuse(elements.error().code, elements.error().message);

  const OpId op{static_cast<uint32_t>(graph_.ops_.size())};
  std::vector<ValueId> values;
  for (uint32_t i = 0; i < outputs->size(); ++i) {
    values.push_back({static_cast<uint32_t>(graph_.values_.size())});
    graph_.values_.push_back({std::move((*outputs)[i]), op, i, Layout::Plain, {}});
  }
  graph_.ops_.push_back({kind, std::move(attributes), std::move(inputs), values, std::move(name), phase_,
                         origin_.valid() ? origin_ : op, GroupId{}});
  return values;
}

std::vector<ValueId> GraphBuilder::add_all(OpKind kind, std::vector<ValueId> inputs, Attributes attributes,
                                           std::string name) {
  auto outputs = try_add(kind, std::move(inputs), std::move(attributes), std::move(name));
  if (!outputs) check_failed("op accepted", __FILE__, __LINE__, outputs.error().message.c_str());
  return std::move(*outputs);
}

void GraphBuilder::set_role(std::string_view initializer, InitializerRole role) {
  for (auto& entry : graph_.initializers_)
    if (entry.name == initializer) entry.role = role;
}

void GraphCopy::copy(OpId id) {
  if (op_map_.empty()) op_map_.resize(source_.ops().size());
  const Op& op = source_.op(id);
  builder_.set_phase(op.phase);
  // An origin stands before its backward ops; a pass that dropped it leaves the op to itself.
  builder_.set_origin(op.origin == id ? OpId{} : op_map_[op.origin.index]);
  std::vector<ValueId> outputs;
  switch (op.kind) {
    case OpKind::Input:
      outputs = {builder_.input(op.attributes.get_string(Attr::Name), source_.spec(op.outputs[0]),
                                source_.input_role(op.outputs[0]))};
      break;
    case OpKind::Initializer: {
      const Initializer* initializer = source_.find_initializer(op.attributes.get_string(Attr::Name));
      outputs = {builder_.initializer(initializer->name, source_.spec(op.outputs[0]), initializer->role)};
      break;
    }
    case OpKind::Constant:
      outputs = {builder_.constant(source_.constant(op), op.name)};
      break;
    default: {
      std::vector<ValueId> inputs;
      inputs.reserve(op.inputs.size());
      for (const ValueId input : op.inputs) inputs.push_back(mapped(input));
      outputs = builder_.add_all(op.kind, std::move(inputs), op.attributes, op.name);
    }
  }
  const OpId copied = builder_.graph().value(outputs[0]).producer;
  op_map_[id.index] = copied;
  builder_.set_group(copied, op.group);
  for (size_t i = 0; i < outputs.size(); ++i) {
    map(op.outputs[i], outputs[i]);
    builder_.set_layout(outputs[i], source_.value(op.outputs[i]).layout);
    builder_.set_name(outputs[i], source_.value(op.outputs[i]).name);
  }
}

void GraphCopy::copy_outputs() {
  for (const GraphOutput& output : source_.outputs())
    builder_.output(output.name, mapped(output.value), output.role);
}

}  // namespace weft::dag
