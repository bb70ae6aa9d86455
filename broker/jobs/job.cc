#include "broker/jobs/job.h"

#include <algorithm>

namespace weft::broker {

std::optional<uint32_t> Crew::stage_of(const PeerId& peer) const {
  for (uint32_t s = 0; s < plan->stages.size(); ++s)
    if (plan->stages[s].peer == peer) return s;
  return std::nullopt;
}

std::vector<int64_t> Crew::memory() const {
  std::vector<int64_t> memory = loaded_bytes;
  for (size_t s = 0; s < memory.size(); ++s) memory[s] = std::max(memory[s], stages[s].memory);
  return memory;
}

bool Crew::all_here() const {
  return std::all_of(stages.begin(), stages.end(),
                     [](const StageAtWork& stage) { return stage.here || stage.left_out; });
}

bool Crew::all_ready() const {
  return std::all_of(stages.begin(), stages.end(), [](const StageAtWork& stage) { return stage.ready; });
}

Crew* Job::crew() {
  if (phase::Loading* at = loading()) return &at->crew;
  if (phase::Running* at = running()) return &at->crew;
  return nullptr;
}
const Crew* Job::crew() const { return const_cast<Job*>(this)->crew(); }

bool Job::excludes(const std::string& peer) const {
  const auto& names = submitted.submission->excluded;
  return std::find(names.begin(), names.end(), peer) != names.end();
}

bool Job::may_send(const Peer& peer) const {
  return !(submitted.submission->compresses || has_codecs) || peer.minor >= proto::kProtocolMinorOfCodecs;
}

bool Job::can_skip(const Peer& peer) const {
  return !submitted.submission->skips_steps || peer.minor >= proto::kProtocolMinorOfSkippedSteps;
}

bool Job::is_new_enough(const Peer& peer) const {
  const CheckpointCommitted* point = points.newest();
  const bool gives_again = point != nullptr && point->local && !point->local->given_again.empty();
  return peer.minor >= submitted.submission->peer_minor &&
         (!gives_again || peer.minor >= proto::kProtocolMinorOfLocalSteps);
}

bool Job::knows_ops(const Peer& peer) const {
  const PlannedRun* plan = crew() != nullptr ? crew()->plan.get() : previous.plan.get();
  return plan == nullptr || peer.device.op_set >= plan->op_set;
}

bool Job::suits(const Peer& peer) const {
  return may_send(peer) && can_skip(peer) && is_new_enough(peer) && knows_ops(peer) &&
         peer.device.has(submitted.submission->arithmetic);
}

uint32_t predicted_microbatches(const Job& job, const PlannedRun& plan) {
  std::map<uint32_t, uint32_t> reports;
  for (const auto& report : job.predictions) ++reports[report.microbatch];
  uint32_t count = 0;
  while (reports.contains(count) && reports[count] >= plan.prediction_stages) ++count;
  return count;
}

RunBegin begin_of(const Job& job, const PlannedRun& plan) {
  const uint64_t after = plan.stages[0].assignment->after_step;
  // Where replicas came or went the run counts its steps otherwise than its checkpoint.
  const CheckpointCommitted* durable = job.points.checkpoint();
  const bool begins_there = durable != nullptr && durable->made() == InnerSteps(plan).made(after);
  return {.after_step = after,
          .checkpointed = begins_there ? after : job.points.checkpointed_step(),
          .recorded = job.log.recorded_step,
          .evaluated = job.log.evaluated_step,
          .metrics = job.log.metrics,
          .predicted = predicted_microbatches(job, plan),
          .predictions = job.predictions};
}

// A plan that was recorded before classes were written down is of one fingerprint.
proto::DeviceClass class_of(const PlannedRun& plan, size_t stage) {
  proto::DeviceClass device_class = plan.stages[stage].assignment->device_class;
  if (device_class.fingerprint.empty()) device_class.fingerprint = plan.fingerprint;
  return device_class;
}

bool Job::Losses::rests(const PeerId& peer) const {
  const auto at = late.find(peer);
  return at != late.end() && at->second.is_resting();
}

bool Job::Losses::end_rests(Instant now) {
  bool any = false;
  for (auto& [peer, each] : late) {
    if (!each.is_resting() || now < each.rests_until) continue;
    each.rests_until = {};
    any = true;
  }
  return any;
}

}  // namespace weft::broker
