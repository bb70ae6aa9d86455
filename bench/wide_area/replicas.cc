#include "bench/wide_area/replicas.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "bench/wide_area/player.h"
#include "plan/replicas.h"
#include "train/plan_request.h"

namespace weft::bench {

namespace {

constexpr uint64_t kRoundsThatWait = 2;  // each begins with nothing under way, and so takes as long

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void describe(const plan::ReplicasPlan& plan, const plan::ClusterView& cluster, ReplicasRow& row) {
  row.replicas = static_cast<uint32_t>(plan.replicas.size());
  row.shares = plan.shares;
  row.predicted_agreement = plan.agreement;
  std::set<uint32_t> sites;
  for (const plan::Plan& replica : plan.replicas)
    for (const plan::StagePlan& stage : replica.stages) {
      ++row.stages;
      sites.insert(cluster.devices()[stage.devices.front()].site);
    }
  row.sites = static_cast<uint32_t>(sites.size());
}

}  // namespace

ReplicasRow play_replicas(const Model& model, const plan::PlanRequest& pipeline,
                          const ReplicasOptions& options, const compress::Codec& codec, uint64_t settle_every,
                          uint32_t tasks_ahead) {
  const uint32_t fragments = settle_every > 1 ? options.fragments : 1;
  const replicas::ReplicaTerms terms{.every = options.every / fragments,
                                     .codec = codec,
                                     .settle_every = settle_every * fragments,
                                     .fragments = fragments};
  plan::ReplicasRequest request{.pipeline = pipeline,
                                .count = options.count,
                                .count_max = options.count_max,
                                .every = terms.every,
                                .codec = codec,
                                .settle_every = terms.settle_every,
                                .fragments = fragments,
                                .by_speed = options.shares_by_speed,
                                .share_ratio_max = replicas::kShareRatioMax};
  request.pipeline.agreed_slots = train::agreed_slots(terms);
  ReplicasRow row{
      .codec = codec, .every = options.every, .settle_every = settle_every, .fragments = fragments};
  const double before = now();
  const auto plan = plan::make_replicas_plan(request);
  const double planned = now();
  row.planning_seconds = planned - before;
  if (!plan) {
    row.problem = plan.error().message;
    return row;
  }
  describe(*plan, request.pipeline.cluster, row);
  const double samples = model.samples();
  row.predicted_samples_per_second =
      samples * static_cast<double>(plan->steps_at_once()) / seconds(plan->predicted_step);
  row.rounds = std::max(kRoundsThatWait, terms.settle_every);
  const auto played = play_rounds(model, *plan, terms, request.pipeline.cluster,
                                  {.steps = static_cast<uint32_t>(row.rounds), .tasks_ahead = tasks_ahead});
  row.playing_seconds = now() - planned;
  if (!played) {
    row.problem = played.error().message;
    return row;
  }
  row.samples_per_second = samples * static_cast<double>(played->steps) / seconds(played->ends.back());
  row.agreement = played->agreement;
  row.bytes_of_agreement = played->bytes_of_agreement;
  return row;
}

}  // namespace weft::bench
