#include "broker/jobs/job_phases.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace weft::broker {

using proto::JobState;

void JobPhases::wait(Job& job, std::string reason, phase::Waiting phase) {
  job.phase = phase;
  book_.set_state(job, JobState::Waiting, std::move(reason));
  step_.jobs = true;
}

namespace {

// How many losses without a step between them pass at once. A service makes no steps, and its peers may well
// be lost together, one after another within a moment: as many as it has stages.
uint32_t losses_at_once(const Job& job) {
  constexpr size_t kMost = 8;
  const bool has_stages = job.serves() && job.previous.plan;
  return has_stages ? static_cast<uint32_t>(std::clamp<size_t>(job.previous.plan->stages.size(), 1, kMost))
                    : 1;
}

// Doubles from the first one that does not pass at once.
Duration pause_after(uint32_t losses, uint32_t at_once, const BrokerOptions& options) {
  constexpr uint32_t kDoublings = 20;
  const uint32_t doublings = losses > at_once ? std::min(losses - at_once - 1, kDoublings) : 0;
  return std::min(options.failure_pause_max, options.failure_pause * (int64_t{1} << doublings));
}

}  // namespace

// One more without a step between them. The first ones may pass at once; what fails again and again is given
// time, and at last given up, unless it serves: somebody may come who can. A service that stood for as long
// as it would be given has had that time, and it counts as a step.
void JobPhases::wait_after_loss(Job& job, const std::string& reason, Duration served) {
  const uint32_t failures = ++job.losses.in_a_row;
  if (failures >= options_.failures_max && !job.serves()) {
    const std::string gone = drop_direct(job);
    return end(job, JobState::Failed,
               "given up after " + std::to_string(failures) +
                   " losses without a step between them: weft resume " + job.text() + " goes on from " +
                   job.points.describe() + gone + "; the last: " + reason);
  }
  phase::Waiting waiting;
  std::string why = reason;
  const uint32_t at_once = losses_at_once(job);
  const Duration pause = pause_after(failures, at_once, options_);
  if (job.serves() && served >= pause) {
    job.losses.in_a_row = 1;
  } else if (failures > at_once) {
    waiting.not_before = step_.now.monotonic + pause;
    why += "; tried again in " + std::to_string(static_cast<int>(std::ceil(seconds(pause)))) + " s";
  }
  job.losses.at_step = job.step;
  wait(job, why, waiting);
}

void JobPhases::release(Job& job, const std::string& reason) {
  if (job.running() != nullptr) step_.record(RunEnded{job.number()});
  if (Crew* crew = job.crew()) {
    const PlannedRun& plan = *crew->plan;
    for (const proto::Secret& ticket : plan.relay_tickets) step_.effect(RevokeRelay{ticket});
    step_.effect(CloseFeed{job.number()});
    for (const PlannedStage& stage : plan.stages)
      pool_.send(stage.peer, proto::ReleaseStage{job.number(), job.plan_version, reason});
    job.previous = {.plan = crew->plan, .memory = crew->memory()};
  }
  pool_.release(job.number());
  job.phase = phase::Waiting{};
  step_.peers = step_.stand_bys = step_.transient = step_.probes = true;
  pool_.changed();
}

void JobPhases::end(Job& job, JobState state, std::string reason) {
  std::vector<PeerId> peers;
  if (const Crew* crew = job.crew())
    for (const PlannedStage& stage : crew->plan->stages) peers.push_back(stage.peer);
  release(job, state == JobState::Finished ? "the job is finished" : reason);
  // Their copies are of no use any more.
  for (const PeerId& peer : peers) pool_.send(peer, proto::StandBy{.run = job.number()});
  reason += drop_direct(job);
  // A model that diverged is as its checkpoint has it: the copy may lead there again.
  if (state == JobState::Finished || job.diverged || job.points.round_at_broker() == nullptr)
    return finish(job, state, std::move(reason));
  job.phase = phase::Keeping{.state = state, .reason = std::move(reason)};
  keep(job);
}

// A copy that peers alone have goes when the job ends: what it is called, and who they are.
std::string JobPhases::drop_direct(Job& job) {
  if (!job.points.is_direct()) return "";
  std::set<std::string> names;
  for (const auto& [blob, holders] : job.points.holders)
    for (const PeerId& holder : holders) names.insert(pool_.at(holder).name);
  std::string who;
  for (const std::string& name : names) who += (who.empty() ? ": " : ", ") + name;
  std::string what = "; " + job.points.describe() + " was with peers alone" + who;
  job.points.drop_round();
  step_.transient = true;
  return what;
}

// ---- copies that become checkpoints

void JobPhases::ask_to_keep(const Job& job) {
  const CheckpointCommitted& copy = *job.points.round_at_broker();
  KeepBlobs request{.job = job.number(), .step = copy.step, .blobs = {}};
  add_blobs(copy.tensors, request.blobs);
  step_.effect(std::move(request));
}

void JobPhases::keep(Job& job) {
  const phase::Keeping& keeping = *job.keeping();
  book_.set_state(job, job.stop_requested ? JobState::Stopping : JobState::Waiting,
                  "keeps " + job.points.describe() + "; " + keeping.reason);
  ask_to_keep(job);
}

void JobPhases::keep_copies() {
  for (auto& [number, job] : book_.jobs()) {
    const CheckpointCommitted* copy = job.points.round_at_broker();
    if (copy == nullptr) continue;
    if (phase::Waiting* waiting = job.waiting(); waiting != nullptr && waiting->keeps != copy->step) {
      waiting->keeps = copy->step;
      ask_to_keep(job);
    } else if (phase::Keeping* keeping = job.keeping();
               keeping != nullptr && keeping->again_at && step_.now.monotonic >= *keeping->again_at) {
      keeping->again_at.reset();
      ask_to_keep(job);
    }
  }
}

void JobPhases::on_kept(const BlobsKept& event) {
  Job* job = book_.find(event.job);
  if (job == nullptr || job->running() != nullptr) return;
  const CheckpointCommitted* copy = job->points.round_at_broker();
  const bool is_it = copy != nullptr && copy->step == event.step;
  if (is_it && event.kept) book_.keep_round(*job);
  std::string failure;
  if (is_it && !event.kept) {
    failure = job->points.describe() + " could not be kept: " + event.kept.error().message;
    step_.log("warning copy_not_kept job=" + job->text() + " what=\"" + failure + "\"");
  }
  phase::Keeping* keeping = job->keeping();
  if (keeping == nullptr) return;
  if (!failure.empty() && event.kept.error().code == ErrorCode::ResourceExhausted) {
    keeping->again_at = step_.now.monotonic + options_.run.checkpoint_retry;
    return book_.set_state(*job, job->state, failure + "; tried again; " + keeping->reason);
  }
  const phase::Keeping end = std::move(*keeping);
  finish(*job, end.state, end.reason + (failure.empty() ? "" : "; " + failure));
}

// Who stops a job is told if something of it is lost.
void JobPhases::finish(Job& job, JobState state, std::string reason) {
  if (const uint64_t kept = job.points.steps_checkpointed(); state == JobState::Stopped && job.step > kept) {
    reason += kept == 0 ? "; what the job learnt is lost"
                        : "; what the job learnt after step " + std::to_string(kept) + " is lost";
    job.step = kept;
  }
  book_.end(job, state, reason);
  step_.jobs = true;
}

}  // namespace weft::broker
