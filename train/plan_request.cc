#include "train/plan_request.h"

#include <utility>

#include "dag/state.h"
#include "train/prepare.h"

namespace weft::train {

Status check_for_peers(const configs::Job& job) {
  if (!job.replicas.are_local()) return {};
  return fail(job.error(ErrorCode::Unsupported, "sync",
                        "peers do not make local steps yet; `weft local` computes these replicas one after "
                        "the other, and sync: step runs on peers"));
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
  request.gradient_sums = job.gradient_ranges > 1 ? 2 : 1;
  request.clips_norm = trains && job.decides_together();
  request.evaluates = trains && job.test.has_value();
  if (trains) request.copies = copy_rate;
  request.equal_bits = job.placement.equal_bits;
  request.strategy = job.placement.strategy;
  request.owner_share_max = job.placement.owner_share_max;
  request.compression = job.compression;
  return request;
}

}  // namespace weft::train
