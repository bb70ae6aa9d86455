#include "dag/autodiff.h"

#include <map>
#include <string>
#include <vector>

namespace weft::dag {
namespace {

// Values whose cotangent somebody wants: those a parameter reaches through differentiable ops.
std::vector<bool> reached_by_parameters(const Graph& graph, const OpTable& table) {
  std::vector<bool> reached(graph.values().size(), false);
  for (const Initializer& initializer : graph.initializers())
    if (initializer.role == InitializerRole::Parameter) reached[initializer.value.index] = true;
  for (const Op& op : graph.ops()) {
    if (table.row(op.kind).differentiability == Differentiability::Zero) continue;
    bool any = false;
    for (const ValueId input : op.inputs) any = any || (input.valid() && reached[input.index]);
    for (const ValueId output : op.outputs)
      if (any && is_float(graph.spec(output).dtype)) reached[output.index] = true;
  }
  return reached;
}

// Values that a cotangent can come back to from the loss.
std::vector<bool> reaching_loss(const Graph& graph, const OpTable& table, ValueId loss) {
  std::vector<bool> reaching(graph.values().size(), false);
  reaching[loss.index] = true;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    if (table.row(op.kind).differentiability == Differentiability::Zero) continue;
    bool any = false;
    for (const ValueId output : op.outputs) any = any || reaching[output.index];
    if (any)
      for (const ValueId input : op.inputs)
        if (input.valid()) reaching[input.index] = true;
  }
  return reaching;
}

Status check_rules(const Graph& graph, const OpTable& table, const std::vector<bool>& active) {
  std::map<std::string, int> missing;
  for (const Op& op : graph.ops()) {
    if (op.inputs.empty() || table.row(op.kind).differentiability != Differentiability::Refused) continue;
    bool flows = false;
    for (const ValueId output : op.outputs) flows = flows || active[output.index];
    if (flows) ++missing[std::string(to_string(op.kind))];
  }
  if (missing.empty()) return {};
  std::string text = "no derivative for";
  for (const auto& [name, count] : missing) text += " " + name + " x" + std::to_string(count);
  return fail(ErrorCode::Unsupported, text + ": freeze the parameters before these ops, or replace the ops");
}

}  // namespace

Result<Graph> differentiate(const Graph& graph, const OpTable& table) {
  const GraphOutput* loss = graph.find_output(OutputRole::Loss);
  if (!loss || graph.spec(loss->value).element_count() != 1 || !is_float(graph.spec(loss->value).dtype))
    return fail(ErrorCode::InvalidArgument, "the graph has no scalar float output of role loss to differentiate");

  const std::vector<bool> reached = reached_by_parameters(graph, table);
  std::vector<bool> active = reaching_loss(graph, table, loss->value);
  for (size_t i = 0; i < active.size(); ++i) active[i] = active[i] && reached[i];
  WEFT_TRY_STATUS(check_rules(graph, table, active));

  // The forward graph is copied op for op, so ids of ops and values stay what they were.
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) copy.copy(OpId{i});
  copy.copy_outputs();
  GraphBuilder& builder = copy.builder();
  builder.set_phase(Phase::Backward);

  std::vector<ValueId> cotangents(graph.values().size());  // by forward value
  const auto receive = [&](ValueId value, ValueId term) {
    ValueId& sum = cotangents[value.index];
    builder.set_origin(graph.value(value).producer);
    sum = sum.valid() ? builder.add(OpKind::Add, {sum, term}) : term;
  };

  if (active[loss->value.index]) {
    builder.set_origin(graph.value(loss->value).producer);
    const TensorSpec& spec = graph.spec(loss->value);
    cotangents[loss->value.index] =
        builder.constant(from_doubles(spec, std::vector<double>(1, 1.0)), "d loss");
  }
  for (uint32_t i = static_cast<uint32_t>(graph.ops().size()); i-- > 0;) {
    const Op& op = graph.op(OpId{i});
    const OpRow& row = table.row(op.kind);
    if (row.vjp == nullptr) continue;
    std::vector<ValueId> output_cotangents;
    bool any_output = false;
    for (const ValueId output : op.outputs) {
      output_cotangents.push_back(cotangents[output.index]);
      any_output = any_output || output_cotangents.back().valid();
    }
    std::vector<bool> wanted;
    bool any_input = false;
    for (const ValueId input : op.inputs) {
      wanted.push_back(input.valid() && active[input.index]);
      any_input = any_input || wanted.back();
    }
    if (!any_output || !any_input) continue;

    builder.set_origin(OpId{i});
    VjpContext context(builder, builder.graph().op(OpId{i}), std::move(output_cotangents));
    context.set_wanted(wanted);
    row.vjp(context);
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const ValueId term = context.input_cotangents()[k];
      if (!wanted[k] || !term.valid()) continue;
      WEFT_CHECK_MSG(builder.spec(term) == graph.spec(op.inputs[k]), "a vjp returned another shape than its operand's");
      receive(op.inputs[k], term);
    }
  }

  for (const Initializer& initializer : graph.initializers()) {
    const ValueId gradient = cotangents[initializer.value.index];
    if (initializer.role == InitializerRole::Parameter && gradient.valid())
      builder.output(initializer.name, gradient, OutputRole::Gradient);
  }
  return prune(copy.finish(), table);
}

Graph prune(const Graph& graph, const OpTable& table) {
  std::vector<bool> needed(graph.ops().size(), false);
  for (const GraphOutput& output : graph.outputs()) needed[graph.value(output.value).producer.index] = true;
  for (const ValueId input : graph.inputs()) needed[graph.value(input).producer.index] = true;  // the signature stays
  for (size_t i = graph.ops().size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const ValueId input : graph.ops()[i].inputs)
      if (input.valid()) needed[graph.value(input).producer.index] = true;
  }
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    if (needed[i]) copy.copy(OpId{i});
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
