#include "bench/wide_area/assignments.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "dag/op_table.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "dag/state.h"
#include "plan/compression.h"
#include "plan/cost.h"
#include "proto/agreed_weights.h"

namespace weft::bench {

namespace {

proto::StageProgram program_of(const Model& model, const plan::Plan& plan, dag::Split& split,
                               uint32_t stage) {
  dag::StageGraph& piece = split.stages[stage];
  proto::StageProgram program;
  program.segment_of_op = std::move(piece.segment_of_op);
  program.segment_count = piece.segment_count;
  std::set<uint32_t> received;
  for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
    const dag::CutEdge& edge = split.cut_edges[e];
    const bool backward = model.graph.producer(edge.value).phase == dag::Phase::Backward;
    // Null peers send noise, which is finite: what would not be goes dense here by what the graph says.
    const compress::Codec codec = plan::may_be_infinite(model.graph, edge.value)
                                      ? compress::Codec{}
                                      : plan::codec_of(plan.codecs, edge.from_stage, edge.to_stage, backward,
                                                       model.graph.spec(edge.value));
    if (edge.to_stage == stage) {
      program.receives.push_back({e, edge.received, edge.from_stage, codec});
      received.insert(edge.received.index);
    }
    if (edge.from_stage == stage) program.sends.push_back({e, edge.sent, edge.to_stage, codec});
  }
  for (const dag::ValueId input : piece.graph.inputs())
    if (!received.contains(input.index)) program.data_inputs.push_back(piece.graph.value(input).name);
  program.graph = std::make_shared<const dag::Graph>(std::move(piece.graph));
  return program;
}

// What each stage has of what replicas agree about, as broker/place/assembly.cc deals it.
void add_local_terms(const plan::ReplicasPlan& plan, const replicas::LocalSteps& local,
                     Assignments& assignments) {
  std::map<std::string_view, std::vector<proto::AgreedTensor>> agreed;
  for (const plan::AgreedWeight& weight : plan.agreed)
    agreed[weight.name].push_back({weight.number, weight.name, weight.owner, weight.stages, weight.elements});
  for (const auto& assignment : assignments) {
    proto::LocalTerms terms{.steps = local};
    for (const dag::StateKey& key : dag::trained_state(*assignment->programs.front().graph, {}))
      if (is_weight(key.slot))
        terms.tensors.insert(terms.tensors.end(), agreed.at(key.name).begin(), agreed.at(key.name).end());
    std::sort(terms.tensors.begin(), terms.tensors.end(),
              [](const auto& a, const auto& b) { return is_before(a, b); });
    assignment->local = std::move(terms);
  }
}

}  // namespace

Result<Assignments> assignments_of(const Model& model, const plan::Plan& plan, uint64_t steps) {
  const auto count = static_cast<uint32_t>(plan.stages.size());
  const std::vector<uint32_t> class_of_stage(count, 0);
  const std::vector<const dag::Lowered*> classes = {model.lowered.get()};
  WEFT_TRY(dag::Split split,
           dag::split({&model.graph, plan.stage_of_op, classes, class_of_stage}, dag::op_table()));
  for (uint32_t s = 0; s < count; ++s)
    if (plan.stages[s].recomputes) dag::recompute(split, s, dag::op_table());
  Assignments assignments;
  for (uint32_t s = 0; s < count; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {s};
    assignment->stage_count = count;
    assignment->training.batch_size = model.samples();
    assignment->training.microbatch_size = model.microbatch_size;
    assignment->training.steps = steps;
    assignment->microbatches_in_flight = plan.stages[s].microbatches_in_flight;
    assignment->programs.push_back(program_of(model, plan, split, s));
    assignments.push_back(std::move(assignment));
  }
  return assignments;
}

Result<Assignments> assignments_of(const Model& model, const plan::ReplicasPlan& plan,
                                   const replicas::LocalSteps& local) {
  Assignments all;
  for (uint32_t replica = 0; replica < plan.replicas.size(); ++replica) {
    WEFT_TRY(Assignments own, assignments_of(model, plan.replicas[replica], last_inner_step(local)));
    for (auto& assignment : own) {
      assignment->seat.replica = replica;
      all.push_back(std::move(assignment));
    }
  }
  add_local_terms(plan, local, all);
  return all;
}

StageSeconds seconds_of(const proto::StageProgram& program, const plan::Rates& rates, uint32_t slots) {
  const dag::Graph& graph = *program.graph;
  StageSeconds seconds{std::vector<double>(program.segment_count, 0),
                       std::vector<double>(program.segment_count, 0), 0};
  for (const plan::GroupCost& group : plan::group_costs(graph))
    if (group.has_kernel)
      seconds.segments[program.segment_of_op[group.begin]] += plan::seconds_of(group, rates);
  const auto passes = [&](int count, Bytes bytes) {
    return count * static_cast<double>(bytes.value) / rates.memory_bytes_per_second;
  };
  for (const dag::GraphOutput& output : graph.outputs()) {
    const Bytes bytes = graph.spec(output.value).bytes();
    const uint32_t segment = program.segment_of_op[graph.value(output.value).producer.index];
    if (output.role == dag::OutputRole::StateUpdate) seconds.segments[segment] += passes(2, bytes);
    if (output.role != dag::OutputRole::Gradient) continue;
    seconds.accumulate[segment] += plan::accumulate_seconds(bytes, rates);
    seconds.update += passes(1, bytes) + plan::update_seconds(bytes, {.slots = slots}, rates);
  }
  return seconds;
}

}  // namespace weft::bench
