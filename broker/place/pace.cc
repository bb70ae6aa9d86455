#include "broker/place/pace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/check.h"
#include "broker/run/inner_steps.h"
#include "plan/predict.h"

namespace weft::broker {
namespace {

constexpr Duration kNormRoundTrip = std::chrono::milliseconds(40);  // as the planner takes it
constexpr double kServedRowBytes = 16 << 10;  // a token's, between stages of a served model, about

Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, 1e9)));
}

// What the stage runs for most of the time.
const proto::StageProgram* main_program(const proto::AssignStage& stage) {
  const proto::StageProgram* main = nullptr;
  for (const proto::StageProgram& program : stage.programs)
    if (!main || program.kind == proto::ProgramKind::Train) main = &program;
  return main;
}

}  // namespace

Pace::Pace(const PlannedRun& plan, const std::vector<Candidate>& candidates, plan::ClusterView cluster)
    : candidates_(candidates),
      cluster_(std::move(cluster)),
      microbatches_(std::max(1u, plan.microbatches)),
      beside_(dag::beside_parameter(plan.training.optimizer)),
      clips_norm_(plan.training.decides_together()) {
  for (const PlannedStage& stage : plan.stages) add_stage(stage);
  add_messages(plan);
  if (plan.local_steps) {
    replicas_ = plan.local_steps->terms.count;
    every_ = std::max<uint64_t>(1, plan.local_steps->terms.every);
    waited_for_every_ = plan.local_steps->terms.settle_every;
    shares_ = plan.local_steps->terms.shares;
    add_agreed(plan, plan.local_steps->terms.codec);
  } else if (!plan.exact_ranges.empty()) {
    replicas_ = static_cast<uint32_t>(plan.exact_ranges.size());
    microbatches_of_.resize(replicas_);
    for (const PlannedStage& stage : plan.stages)
      microbatches_of_[stage.assignment->seat.replica] = proto::microbatches_of(*stage.assignment).count;
    add_agreed(plan, {});
  }
  std::map<std::pair<uint32_t, uint32_t>, double> bytes;
  for (const plan::Message& message : messages_)
    bytes[{message.from_stage, message.to_stage}] += static_cast<double>(message.bytes.value);
  for (const auto& [ends, size] : bytes) sent_.push_back({ends.first, ends.second, size});
  const auto count = static_cast<uint32_t>(stages_.size());
  for (uint32_t s = 0; plan.serves() && count > 1 && s < count; ++s)
    sent_.push_back({s, (s + 1) % count, kServedRowBytes});
}

void Pace::add_stage(const PlannedStage& planned) {
  Stage stage{.replica = planned.assignment->seat.replica,
              .groups = {},
              .segment_of_group = {},
              .is_backward = {false},
              .parameters = {},
              .updated = {},
              .in_flight = std::max(1u, planned.assignment->microbatches_in_flight),
              .seconds = planned.microbatch_seconds};
  if (const proto::StageProgram* program = main_program(*planned.assignment)) {
    const dag::Graph& graph = *program->graph;
    stage.groups = plan::group_costs(graph);
    stage.segments = std::max(1u, program->segment_count);
    stage.is_backward.assign(stage.segments, false);
    for (const plan::GroupCost& group : stage.groups) {
      const uint32_t segment = program->segment_of_op[group.begin];
      stage.segment_of_group.push_back(segment);
      if (group.has_kernel && group.phase == dag::Phase::Backward) stage.is_backward[segment] = true;
    }
    const std::vector<std::string> names = updated_parameters(*planned.assignment);
    const std::set<std::string_view> updated(names.begin(), names.end());
    for (const auto& output : graph.outputs())
      if (output.role == dag::OutputRole::Gradient) {
        stage.parameters.push_back(graph.spec(output.value).bytes());
        stage.updated.push_back(updated.contains(output.name));
        stage.last_segment =
            std::max(stage.last_segment, program->segment_of_op[graph.value(output.value).producer.index]);
      }
  }
  stages_.push_back(std::move(stage));
}

// From the segment that makes a value to the first that reads it.
void Pace::add_messages(const PlannedRun& plan) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> reader;  // by edge and stage
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (const proto::StageProgram* program = main_program(*plan.stages[s].assignment)) {
      std::map<uint32_t, uint32_t> edge_of_value;
      for (const proto::EdgeEnd& end : program->receives) {
        edge_of_value[end.value.index] = end.edge;
        reader[{end.edge, s}] = stages_[s].segments - 1;
      }
      const auto& ops = program->graph->ops();
      for (size_t op = 0; op < ops.size(); ++op)
        for (const dag::ValueId input : ops[op].inputs)
          if (const auto at = input.valid() ? edge_of_value.find(input.index) : edge_of_value.end();
              at != edge_of_value.end()) {
            uint32_t& first = reader[{at->second, s}];
            first = std::min(first, program->segment_of_op[op]);
          }
    }
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (const proto::StageProgram* program = main_program(*plan.stages[s].assignment))
      for (const proto::EdgeEnd& end : program->sends) {
        const auto other = plan.find(other_end(end, plan.stages[s].assignment->seat));
        if (!other) continue;
        const auto to = reader.find({end.edge, *other});
        if (to == reader.end()) continue;
        messages_.push_back(
            {.from_stage = s,
             .from_segment = program->segment_of_op[program->graph->value(end.value).producer.index],
             .to_stage = *other,
             .to_segment = to->second,
             .bytes = proto::payload_bytes(program->graph->spec(end.value), end.codec)});
      }
  std::sort(messages_.begin(), messages_.end(), [](const plan::Message& a, const plan::Message& b) {
    return std::tie(a.from_stage, a.from_segment, a.to_stage, a.to_segment, a.bytes.value) <
           std::tie(b.from_stage, b.from_segment, b.to_stage, b.to_segment, b.bytes.value);
  });
}

double Pace::compute_seconds(uint32_t stage, uint32_t candidate) const {
  const plan::Rates& rates = candidates_[candidate].device.rates;
  if (stages_[stage].groups.empty() || !(rates.memory_bytes_per_second > 0)) return stages_[stage].seconds;
  double sum = 0;
  for (const plan::GroupCost& group : stages_[stage].groups) sum += plan::seconds_of(group, rates);
  return sum;
}

// Tensors that go the same ways count as one.
void Pace::add_agreed(const PlannedRun& plan, const compress::Codec& codec) {
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, Bytes> bytes;  // by owner, and who has it
  for (const PlannedStage& planned : plan.stages) {
    const proto::StageProgram* program = main_program(*planned.assignment);
    const proto::AssignStage& stage = *planned.assignment;
    if (!program || stage.seat.replica != 0) continue;
    for (const proto::AgreedTensor& tensor : agreed_tensors(stage)) {
      std::vector<uint32_t> stages;
      for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica)
        if (const auto at = plan.find({tensor.stages[replica], replica})) stages.push_back(*at);
      const dag::Initializer* initializer = program->graph->find_initializer(tensor.name);
      if (stages.size() == replicas_ && initializer != nullptr)
        bytes[{tensor.owner, stages}] +=
            proto::payload_bytes(spec_of(tensor, program->graph->spec(initializer->value)), codec);
    }
  }
  for (const auto& [ways, size] : bytes) agreed_.push_back({size, ways.second, ways.first});
}

double Pace::agreement_seconds(std::span<const uint32_t> placed) const {
  std::vector<plan::AgreedLoad> loads = agreed_;
  for (plan::AgreedLoad& load : loads)
    for (uint32_t& device : load.devices) device = placed[device];
  return plan::agreement_seconds(cluster_, loads) / static_cast<double>(every_ * waited_for_every_);
}

double Pace::part_of(uint32_t replica) const {
  return shares_.empty() ? 1 : static_cast<double>(shares_[replica]) / static_cast<double>(every_);
}

double Pace::step_seconds(std::span<const uint32_t> placed) const {
  double slowest = 0;
  for (uint32_t replica = 0; replica < replicas_; ++replica)
    slowest = std::max(slowest, part_of(replica) * step_seconds(replica, placed));
  return slowest + agreement_seconds(placed);
}

double Pace::step_seconds(uint32_t replica, std::span<const uint32_t> placed) const {
  double busiest = 0, sum = 0;
  const auto add = [&](double busy, double latency) {
    busiest = std::max(busiest, busy);
    sum += busy + latency;
  };
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (stages_[s].replica == replica) add(compute_seconds(s, placed[s]), 0);
  std::vector<double> up(stages_.size(), 0), down(stages_.size(), 0);
  for (const Sent& sent : sent_) {
    if (stages_[sent.from_stage].replica != replica) continue;
    const uint32_t from = placed[sent.from_stage], to = placed[sent.to_stage];
    const plan::LinkView link = cluster_.link(from, to);
    add(sent.bytes / link.bytes_per_second, seconds(link.latency));
    up[sent.from_stage] += sent.bytes / cluster_.devices()[from].uplink;
    down[sent.to_stage] += sent.bytes / cluster_.devices()[to].downlink;
  }
  for (uint32_t s = 0; s < stages_.size(); ++s) busiest = std::max({busiest, up[s], down[s]});
  return sum + (microbatches_of(replica) - 1) * busiest;
}

plan::StageWork Pace::work_of(uint32_t stage, const plan::Rates& rates) const {
  const Stage& of = stages_[stage];
  plan::StageWork work;
  std::vector<double> compute(of.segments, 0);
  for (size_t g = 0; g < of.groups.size(); ++g)
    compute[of.segment_of_group[g]] += plan::seconds_of(of.groups[g], rates);
  if (of.groups.empty()) compute[0] = of.seconds;
  double update = 0;
  for (size_t p = 0; p < of.parameters.size(); ++p) {
    if (of.updated[p]) update += plan::update_seconds(of.parameters[p], beside_, rates);
    if (microbatches_ > 1) compute[of.last_segment] += plan::accumulate_seconds(of.parameters[p], rates);
  }
  for (uint32_t segment = 0; segment < of.segments; ++segment)
    work.segments.push_back({.compute = to_duration(compute[segment]), .backward = of.is_backward[segment]});
  work.update = to_duration(update);
  return work;
}

Duration Pace::predicted_step(std::span<const uint32_t> placed) const {
  double slowest = 0, made = 0;
  for (uint32_t replica = 0; replica < replicas_; ++replica) {
    slowest = std::max(slowest, part_of(replica) * seconds(predicted_step(replica, placed)));
    made += part_of(replica);
  }
  if (!microbatches_of_.empty()) made = 1;  // one step of all
  return to_duration((slowest + agreement_seconds(placed)) / made);
}

Duration Pace::predicted_step(uint32_t replica, std::span<const uint32_t> placed) const {
  plan::Pipeline pipeline;
  plan::PredictRequest request;
  request.pipeline = &pipeline;
  request.cluster = &cluster_;
  request.microbatches = microbatches_of(replica);
  std::vector<uint32_t> own(stages_.size(), 0);  // by stage, its place in the replica's pipeline
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s].replica != replica) continue;
    own[s] = static_cast<uint32_t>(pipeline.stages.size());
    pipeline.stages.push_back(work_of(s, candidates_[placed[s]].device.rates));
    request.devices.push_back(placed[s]);
    request.in_flight.push_back(stages_[s].in_flight);
  }
  for (plan::Message message : messages_) {
    if (stages_[message.from_stage].replica != replica) continue;
    message.from_stage = own[message.from_stage];
    message.to_stage = own[message.to_stage];
    pipeline.messages.push_back(message);
  }
  if (clips_norm_) request.norm_round_trip = kNormRoundTrip;
  return plan::predict(request).step;
}

Reconsidered::Other compare_runs(const Reconsider& request, const PlannedRun& other) {
  const std::vector<Candidate>& candidates = request.request.candidates;
  Reconsidered::Other compared;
  compared.replicas = InnerSteps(other).replicas();
  std::vector<uint32_t> placed;
  for (const PlannedStage& stage : other.stages) {
    const auto at = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const Candidate& candidate) { return candidate.peer == stage.peer; });
    WEFT_CHECK(at != candidates.end());
    placed.push_back(static_cast<uint32_t>(at - candidates.begin()));
    compared.peers.push_back(stage.peer);
  }
  const Pace now(*request.current, candidates, request.request.cluster);
  const Pace then(other, candidates, request.request.cluster);
  compared.as_it_is = now.predicted_step(request.placed);
  compared.as_planned = then.predicted_step(placed);
  return compared;
}

}  // namespace weft::broker
