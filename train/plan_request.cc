#include "train/plan_request.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "dag/fresh_statistics.h"
#include "dag/state.h"
#include "plan/local_rounds.h"
#include "train/prepare.h"
#include "train/replica_warnings.h"

namespace weft::train {

namespace {

// A map says how many there are at least; a number how many there are at most.
uint32_t exact_least(const configs::Job& job) {
  return job.replica_choice.count_max > 0 ? job.replicas.count : 1;
}

std::string why_one(const configs::Job& job, const dag::Graph& training) {
  if (!job.placement.pins.empty()) return "a pin names one peer, and each replica computes these ops";
  if (!dag::fresh_statistics(training))
    return "the model reads running statistics (BatchNorm) in training, which no two replicas have at once";
  return {};
}

}  // namespace

// What was agreed last, the outer momentum, what an overlapped round began with, what a replica owes, and the
// mean's owner.
uint32_t agreed_slots(const replicas::ReplicaTerms& terms) {
  if (!terms.are_local()) return 0;
  return 1 + (terms.outer.type == replicas::OuterType::Nesterov ? 1 : 0) + (terms.overlap() ? 1 : 0) +
         (terms.codec.kind == compress::Kind::Dense ? 0 : 2);
}

Status check_for_peers(const configs::Job& job) {
  if (job.init)
    return fail(
        job.error(ErrorCode::Unsupported, "init",
                  "`init` is read where a job is submitted, and the model travels with these weights"));
  const uint32_t most = std::max(job.replicas.count, job.replica_choice.count_max);
  const bool are_several = job.replicas.are_local() ? most > 1 : exact_least(job) > 1;
  if (!are_several || job.placement.pins.empty()) return {};
  return fail(
      job.error(ErrorCode::Unsupported, "placement.pin[0]",
                (job.may_grow() ? "each replica" : "each of the " + std::to_string(most) + " replicas") +
                    " computes these ops on a peer of its own, and a pin names one; leave it "
                    "out, or say replicas: 1"));
}

Status check_agreed(const configs::Job& job, const dag::Graph& training) {
  if (!job.replicas.are_local()) {
    const std::string why = why_one(job, training);
    if (exact_least(job) == 1 || exact_replicas_max(job) == 1 || why.empty()) return {};
    return fail(job.error(ErrorCode::Unsupported, "replicas.min",
                          "with sync: step they are one pipeline: " + why +
                              "; let them make local steps: sync: "
                              "{every: 30}, or leave out `min`"));
  }
  for (const dag::StateKey& key : dag::trained_state(training, job.optimizer)) {
    const dag::TensorSpec& spec = training.spec(training.find_initializer(key.name)->value);
    if (spec.dtype != dag::DType::F32)
      return fail(job.error(ErrorCode::Unsupported, "sync",
                            "'" + to_string(key) + "' is " + dag::to_string(spec) +
                                ", and replicas agree about float32 alone"));
  }
  return {};
}

plan::PlanRequest plan_request(const configs::Job& job, const dag::Graph& graph,
                               std::vector<std::shared_ptr<const dag::Lowered>> classes,
                               std::optional<uint64_t> copy_rate) {
  const bool trains = job.task == configs::Task::Train;
  plan::PlanRequest request;
  request.graph = &graph;
  request.classes = std::move(classes);
  request.microbatches = microbatches_at_once(job);
  request.samples = trains ? job.batch_size : 0;
  request.stages = job.placement.stages;
  request.optimizer_slots = static_cast<uint32_t>(optimizer_slots(job.optimizer).size());
  request.slot_type = job.optimizer.slots;
  request.gradient_sums = job.gradient_ranges > 1 ? 2 : 1;
  request.agreed_slots = trains ? agreed_slots(job.replicas) : 0;
  request.clips_norm = trains && job.decides_together();
  request.evaluates = trains && job.test.has_value();
  if (trains) request.copies = copy_rate;
  request.equal_bits = job.placement.equal_bits;
  request.strategy = job.placement.strategy;
  request.owner_share_max = job.placement.owner_share_max;
  request.compression = job.compression;
  return request;
}

namespace {
// As many as pay, of those that the job allows: without a codec it comes to the same bits.
std::optional<plan::ReplicasRequest> exact_replicas_request(const configs::Job& job,
                                                            const plan::PlanRequest& pipeline) {
  const uint32_t most = exact_replicas_max(job);
  if (most == 1 || !why_one(job, *pipeline.graph).empty()) return std::nullopt;
  return plan::ReplicasRequest{.pipeline = pipeline,
                               .count = exact_least(job),
                               .count_max = most,
                               .codec = job.replicas.codec,
                               .ranges = job.gradient_ranges,
                               .shares_slots = shares_slots(job)};
}
}  // namespace

std::optional<plan::ReplicasRequest> replicas_request(const configs::Job& job,
                                                      const plan::PlanRequest& pipeline) {
  if (job.task != configs::Task::Train) return std::nullopt;
  if (!job.replicas.are_local()) return exact_replicas_request(job, pipeline);
  return plan::ReplicasRequest{.pipeline = pipeline,
                               .count = job.replicas.count,
                               .count_max = job.replica_choice.count_max,
                               .every = job.replicas.every,
                               .every_max = job.replica_choice.every_max,
                               .codec = job.replicas.codec,
                               .codecs = job.replica_choice.codecs,
                               .shares = job.replicas.shares,
                               .settle_every = job.replicas.settle_every,
                               .fragments = job.replicas.fragments,
                               .by_speed = job.replica_choice.shares,
                               .share_ratio_max = replicas::kShareRatioMax};
}

bool may_divide_tensors(const configs::Job& job) {
  if (!job.replicas.are_local()) return false;
  const std::vector<compress::Codec>& choice = job.replica_choice.codecs;
  return compress::is_by_parts(job.replicas.codec) ||
         std::any_of(choice.begin(), choice.end(), compress::is_by_parts);
}

uint32_t exact_replicas_max(const configs::Job& job) {
  if (job.task != configs::Task::Train || job.replicas.are_local()) return 1;
  return std::min(std::max(job.replicas.count, job.replica_choice.count_max), job.gradient_ranges);
}

bool shares_slots(const configs::Job& job) {
  return job.replica_choice.shares_slots && !optimizer_slots(job.optimizer).empty();
}

std::string describe_one_pipeline(const configs::Job& job, const dag::Graph& training) {
  const std::string why = exact_replicas_max(job) > 1 ? why_one(job, training) : "";
  return why.empty() ? why : "replicas that add each step's gradients are one pipeline here: " + why;
}

namespace {

// How replicas may tell each other what they learnt over slow lines, the gentlest first.
struct Exchange {
  const char* codec;
  uint64_t settle_every;
  const char* sync;
};
constexpr Exchange kExchanges[] = {
    {"int4", 4, "{every: 30, codec: int4, overlap: true}"},
    {"topk:0.02:int4", 1, "{every: 30, codec: \"topk:0.02:int4\"}"},
};

// How many times as many samples a second so many replicas make so, each on a device of its own.
std::optional<double> gain_of(const configs::Job& job, const dag::Graph& training,
                              const plan::PlanRequest& pipeline, const plan::Plan& plan, uint32_t count,
                              const Exchange& exchange) {
  configs::Job with = job;
  with.replicas = {.count = count, .every = 30, .codec = compress::parse(exchange.codec).value()};
  with.replicas.settle_every = exchange.settle_every;
  if (!check_agreed(with, training)) return std::nullopt;
  plan::PlanRequest own = pipeline;
  own.agreed_slots = agreed_slots(with.replicas);
  auto request = replicas_request(with, own);
  request->only_alone = true;
  const auto other = plan::make_replicas_plan(*request);
  if (!other) return std::nullopt;
  return count * seconds(plan.predicted_step) / std::max(1e-12, seconds(other->predicted_step));
}

}  // namespace

std::string describe_replicas_gain(const configs::Job& job, const dag::Graph& training,
                                   const plan::PlanRequest& pipeline, const plan::Plan& plan) {
  constexpr size_t kReplicasTried = 8;
  constexpr double kWorthSaying = 1.5;
  const auto count = static_cast<uint32_t>(std::min(kReplicasTried, pipeline.cluster.devices().size()));
  if (job.task != configs::Task::Train || job.replicas != replicas::ReplicaTerms{} || job.may_grow() ||
      count < 2 || !job.placement.pins.empty())
    return {};
  const Exchange* best = nullptr;
  double gain = 0;
  for (const Exchange& exchange : kExchanges) {
    const auto of = gain_of(job, training, pipeline, plan, count, exchange);
    if (!of || (best != nullptr && *of * plan::kWorthCoarser < gain)) continue;
    best = &exchange;
    gain = *of;
  }
  if (best == nullptr || gain < kWorthSaying) return {};
  char times[32];
  std::snprintf(times, sizeof times, "%.2g", gain);
  std::string sync = best->sync;
  if (has_running_statistics(training)) sync.insert(sync.size() - 1, ", outer: {type: average}");
  return std::to_string(count) + " replicas, which agree every 30 steps, would take " + times +
         " times as many samples a second: replicas: " + std::to_string(count) + ", sync: " + sync +
         "; it changes what is learned";
}

}  // namespace weft::train
