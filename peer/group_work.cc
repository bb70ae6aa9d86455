#include "peer/group_work.h"

#include "dag/lifetimes.h"

namespace weft::peer {

namespace {

uint32_t segment_of(const Program& program, std::span<const uint32_t> segment_of_op, size_t group) {
  if (program.runs_once[group]) return kOnceAStep;
  return segment_of_op.empty() ? 0 : segment_of_op[program.groups[group].ops.front().index];
}

// A view takes its operand's group, so that what hangs on a view waits for the bytes.
std::vector<uint32_t> group_of_values(const dag::Graph& graph, const Program& program) {
  std::vector<uint32_t> group_of_value(graph.values().size(), 0);
  for (uint32_t g = 0; g < program.groups.size(); ++g)
    for (const dag::ValueId output : program.groups[g].outputs) group_of_value[output.index] = g;
  for (const dag::Op& op : graph.ops())
    if (!op.inputs.empty() && dag::is_alias(graph, op))
      group_of_value[op.outputs[0].index] = group_of_value[op.inputs[0].index];
  return group_of_value;
}

}  // namespace

std::vector<GroupWork> work_of_groups(const dag::Graph& graph, const Program& program,
                                      std::span<const uint32_t> segment_of_op) {
  std::vector<GroupWork> work(program.groups.size());
  for (size_t g = 0; g < work.size(); ++g) {
    work[g].segment = segment_of(program, segment_of_op, g);
    for (const dag::ValueId output : program.groups[g].outputs) {
      const Place& place = program.places[output.index];
      if (place.residence == Residence::Gradient) work[g].gradients.push_back(place.slot);
    }
  }
  const std::vector<uint32_t> group_of_value = group_of_values(graph, program);
  for (const auto& output : graph.outputs()) {
    if (output.role != dag::OutputRole::StateUpdate) continue;
    for (uint32_t i = 0; i < graph.initializers().size(); ++i)
      if (graph.initializers()[i].name == output.name)
        work[group_of_value[output.value.index]].state_updates.push_back({output.value, i});
  }
  for (const auto& copy : program.gradient_copies) work[copy.after_group].copies.push_back(copy);
  return work;
}

std::vector<uint32_t> segments_of_gradients(const std::vector<GroupWork>& work, const Program& program) {
  std::vector<uint32_t> segments(program.gradients.size(), 0);
  for (const GroupWork& group : work) {
    for (const uint32_t slot : group.gradients) segments[slot] = group.segment;
    for (const auto& copy : group.copies) segments[copy.slot] = group.segment;
  }
  return segments;
}

}  // namespace weft::peer
