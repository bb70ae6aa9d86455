#include "plan/cost.h"

#include <algorithm>

#include "dag/op_table.h"

namespace weft::plan {

using dag::Graph;
using dag::Op;
using dag::OpId;
using dag::ValueId;

GroupCost cost_of_group(const Graph& graph, std::span<const OpId> ops, std::span<const ValueId> inputs,
                        std::span<const ValueId> outputs) {
  GroupCost cost;
  if (ops.empty()) return cost;
  const Op& first = graph.op(ops.front());
  cost.begin = ops.front().index;
  cost.end = ops.back().index + 1;
  cost.phase = first.phase;
  if (first.inputs.empty() || (ops.size() == 1 && dag::is_view(graph, first))) return cost;
  cost.has_kernel = true;
  for (const OpId id : ops) {
    const dag::Work work = dag::op_table().row(graph.op(id).kind).work;
    if (work == dag::Work::MatMul) cost.matmul += op_flops(graph, graph.op(id));
    if (work == dag::Work::Convolution) cost.convolution += op_flops(graph, graph.op(id));
  }
  for (const ValueId output : outputs) cost.moved += graph.spec(output).bytes();
  for (const ValueId input : inputs) {
    const bool part =
        ops.size() == 1 && input == first.inputs[0] && dag::op_table().row(first.kind).reads_part;
    cost.moved += part ? std::min(graph.spec(input).bytes(), graph.spec(first.outputs[0]).bytes())
                       : graph.spec(input).bytes();
  }
  return cost;
}

std::vector<GroupCost> group_costs(const Graph& graph) {
  const auto count = static_cast<uint32_t>(graph.ops().size());
  std::vector<uint32_t> group_of_op(count);
  uint32_t groups = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const dag::GroupId own = graph.ops()[i].group;
    const bool joins = i > 0 && own.valid() && graph.ops()[i - 1].group == own;
    group_of_op[i] = joins ? groups - 1 : groups++;
  }
  std::vector<bool> leaves_group(graph.values().size(), false);
  for (const auto& output : graph.outputs()) leaves_group[output.value.index] = true;
  for (uint32_t i = 0; i < count; ++i)
    for (const ValueId input : graph.ops()[i].inputs)
      if (input.valid() && group_of_op[graph.value(input).producer.index] != group_of_op[i])
        leaves_group[input.index] = true;

  std::vector<GroupCost> costs;
  costs.reserve(groups);
  std::vector<OpId> ops;
  std::vector<ValueId> inputs, outputs;
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin;
    ops.clear(), inputs.clear(), outputs.clear();
    for (; end < count && group_of_op[end] == group_of_op[begin]; ++end) {
      ops.push_back(OpId{end});
      const Op& op = graph.ops()[end];
      for (const ValueId input : op.inputs)
        if (input.valid() && graph.value(input).producer.index < begin &&
            std::find(inputs.begin(), inputs.end(), input) == inputs.end())
          inputs.push_back(input);
      for (const ValueId output : op.outputs)
        if (leaves_group[output.index]) outputs.push_back(output);
    }
    costs.push_back(cost_of_group(graph, ops, inputs, outputs));
    begin = end;
  }
  return costs;
}

double seconds_of(const GroupCost& cost, const Rates& rates) {
  if (!cost.has_kernel) return 0;
  const double compute = static_cast<double>(cost.matmul.value) / rates.matmul_flops_per_second +
                         static_cast<double>(cost.convolution.value) / rates.convolution_flops_per_second;
  const double move = static_cast<double>(cost.moved.value) / rates.memory_bytes_per_second;
  return std::max(compute, move) + rates.kernel_seconds;
}

double update_seconds(Bytes parameter, uint32_t optimizer_slots, const Rates& rates) {
  const double passes = 3 + 2.0 * optimizer_slots;  // parameter in and out, gradient in, slots in and out
  return passes * static_cast<double>(parameter.value) / rates.memory_bytes_per_second + rates.kernel_seconds;
}

double accumulate_seconds(Bytes parameter, const Rates& rates) {
  return 3.0 * static_cast<double>(parameter.value) / rates.memory_bytes_per_second + rates.kernel_seconds;
}

}  // namespace weft::plan
