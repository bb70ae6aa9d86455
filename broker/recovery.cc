// When a peer is lost, fails, or is too slow: back to the last snapshot, with somebody else for its stage.
#include <algorithm>
#include <cstdio>

#include "broker/candidates.h"
#include "broker/job_sink.h"
#include "broker/pace.h"

namespace weft::broker {

using proto::JobState;

const CheckpointCommitted* Broker::recovery_point(const Job& job) {
  if (job.round) return &*job.round;
  return job.checkpoints.empty() ? nullptr : &job.checkpoints.back();
}

std::string Broker::describe_recovery_point(const Job& job) const {
  const CheckpointCommitted* point = recovery_point(job);
  if (point == nullptr) return "the start";
  return (job.round ? "the copy of step " : "the checkpoint of step ") + std::to_string(point->step);
}

void Broker::drop_recovery_point(Job& job) {
  if (job.round) {
    job.round = std::exchange(job.round_at_broker, std::nullopt);
    job.round_is_direct = false;
    job.holders.clear();
    transient_dirty_ = true;
  } else if (!job.checkpoints.empty()) {
    job.checkpoints.pop_back();
  }
}

RunBegin Broker::begin_of(const Job& job, const PlannedRun& plan) const {
  const CheckpointCommitted* point = recovery_point(job);
  return {.after_step = point == nullptr ? 0 : point->step,
          .checkpointed = job.checkpoints.empty() ? 0 : job.checkpoints.back().step,
          .recorded = job.recorded_step,
          .evaluated = job.evaluated_step,
          .metrics = job.metrics,
          .predicted = predicted_microbatches(job, plan),
          .predictions = job.predictions};
}

std::vector<int64_t> Broker::memory_of(const Job& job) {
  std::vector<int64_t> memory = job.stage_bytes;
  for (size_t s = 0; s < memory.size(); ++s) memory[s] = std::max(memory[s], job.seats[s].memory);
  return memory;
}

// A plan that was recorded before classes were written down is of one fingerprint.
proto::DeviceClass Broker::class_of(const PlannedRun& plan, size_t stage) const {
  proto::DeviceClass device_class = plan.stages[stage].assignment->device_class;
  if (device_class.fingerprint.empty()) device_class.fingerprint = plan.fingerprint;
  return device_class;
}

// Which of the candidates, by index, takes each stage of the plan; `by_pace`: those with whom a step takes
// least, else whether it can be done at all.
std::optional<std::vector<uint32_t>> Broker::place_previous(const Job& job, const PlannedRun& plan,
                                                            const std::vector<int64_t>& memory,
                                                            const std::vector<Candidate>& candidates,
                                                            bool by_pace) const {
  std::vector<StageToPlace> stages;
  for (size_t s = 0; s < plan.stages.size(); ++s)
    stages.push_back(
        {plan.stages[s].peer, memory[s], class_of(plan, s), plan.stages[s].pinned, plan.stages[s].owner});
  std::vector<Applicant> applicants;
  for (const Candidate& candidate : candidates) {
    Applicant applicant{.peer = candidate.peer,
                        .device_class = candidate.device.device_class(),
                        .memory = candidate.device.memory.value,
                        .owner = owner_of(candidate)};
    const auto& all = peers_.at(candidate.peer).standing;
    if (const auto standing = all.find(job.submitted.job); standing != all.end() && standing->second.complete)
      for (const uint32_t stage : standing->second.stages)
        applicant.standing_by[stage] = *standing->second.complete;
    applicants.push_back(std::move(applicant));
  }
  if (!by_pace) return place_again(stages, applicants, plan.equal_bits_required);
  const Pace pace(plan, candidates, cluster_of(candidates));
  return place_again(stages, applicants, plan.equal_bits_required,
                     [&](std::span<const uint32_t> placed) { return pace.step_seconds(placed); });
}

// Whether the stages of a job could go on if this peer were not there.
bool Broker::can_do_without(const Job& job, const PeerId& peer) const {
  std::vector<Candidate> others = candidates(job, /*own=*/true);
  std::erase_if(others, [&](const Candidate& candidate) { return candidate.peer == peer; });
  return place_previous(job, *job.plan, memory_of(job), others, /*by_pace=*/false).has_value();
}

void Broker::recover(Job& job, const std::string& reason, bool counts) {
  const bool was_running = job.run != nullptr;
  if (was_running) find_holders(job);
  if (lose_holders(job)) notice(job, "the peers that had the newest copy are gone");
  const bool had_plan = job.plan != nullptr;
  const bool moving = std::exchange(job.moving, false);
  const uint64_t lost = was_running ? std::max(job.run->committed_step(), job.recorded_step) : job.step;
  release_peers(job, reason);
  if (job.stop_requested) return end_job(job, JobState::Stopped, "stopped by its user; " + reason);
  const CheckpointCommitted* point = recovery_point(job);
  job.step = point == nullptr ? 0 : point->step;
  if (!moving) job.move_to.clear();
  if (was_running) {
    if (job.move_to.empty()) ++job.recoveries;
    if (!job.lost_at) job.lost_at = now_.monotonic;
    const uint64_t again = lost > job.step ? lost - job.step : 0;
    notice(job, reason + ": going on from " + describe_recovery_point(job) + ", " + std::to_string(again) +
                    (again == 1 ? " committed step is done again" : " committed steps are done again"));
  }
  if (had_plan && !moving && counts && ++job.failures >= options_.failures_max)
    return end_job(job, JobState::Failed,
                   "given up after " + std::to_string(job.failures) +
                       " losses without a step between them; the last: " + reason);
  job.failures_at_step = job.step;
  set_state(job, JobState::Waiting, reason);
  schedule_jobs();
}

void Broker::on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed) {
  const std::string what =
      "stage " + std::to_string(stage + 1) + " on " + peer.name + ": " + failed.error.message;
  if (failed.diverged) return end_diverged(job, what);
  if (failed.permanent) return end_job(job, JobState::Failed, what);
  if (failed.error.code == ErrorCode::DeviceLost) {  // as if it were gone; the job has no part in that
    peer.draining = peer.device_lost = true;
    return recover(job, what, /*counts=*/false);
  }
  const bool lacks_tensors =
      failed.error.code == ErrorCode::NotFound || failed.error.code == ErrorCode::Corrupted;
  if (!job.run && lacks_tensors && recovery_point(job) != nullptr) {
    const std::string gone = describe_recovery_point(job);
    drop_recovery_point(job);
    notice(job, gone + " cannot be had (" + what + "): going back to " + describe_recovery_point(job));
    return recover(job, what);
  }
  if (!job.seats[stage].here) return recover(job, what);
  if (!failed.unreachable) {
    job.excluded.insert(peer.id);
  } else if (const auto at = job.plan->find(*failed.unreachable); at && job.failures > 0) {
    // The same again, without a step between: these two do not find each other, others may.
    const PeerId& other = job.plan->stages[*at].peer;
    if (can_do_without(job, other)) job.excluded.insert(other);
  }
  recover(job, what);
}

// ---- progress
// --------------------------------------------------------------------------------------------

// Of the largest stage's tensors, optimizer slots included.
Duration Broker::transfer_time(const PlannedRun& plan) const {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(largest_state_bytes(plan)) / options_.slowest_bytes_per_second));
}

// Twice as long after each time that it passed: a plan that takes links for far faster than they are would
// otherwise never see its first step done.
Duration Broker::stall_deadline(const Job& job) const {
  constexpr uint32_t kDoublings = 5;
  const Run& run = *job.run;
  Duration deadline = std::max(options_.stall_deadline, 20 * run.plan().predicted_step);
  deadline *= int64_t{1} << std::min(job.stalls, kDoublings);
  if (run.waits_for_snapshot()) deadline += transfer_time(run.plan());
  if (const auto comparing = run.comparing()) deadline += 20 * *comparing;
  return deadline;
}

void Broker::check_progress() {
  const auto late_peers = [&](Job& job, bool Seat::*done) {
    std::string late;
    for (size_t s = 0; s < job.seats.size(); ++s)
      if (!(job.seats[s].*done)) late += " " + peers_.at(job.plan->stages[s].peer).name;
    return late;
  };
  for (auto& [number, job] : jobs_) {
    if (job.run && job.away_since) {
      if (now_.monotonic - *job.away_since > options_.return_deadline)
        recover(job, "did not come back in time:" + late_peers(job, &Seat::here));
    } else if (job.run) {
      {
        Sink sink(*this, job);
        job.run->on_tick(now_.monotonic, sink);
      }
      if (!job.run) continue;
      const Duration deadline = stall_deadline(job);
      if (now_.monotonic - job.run->last_progress() <= deadline) continue;
      ++job.stalls;
      recover(job, "no progress for " + std::to_string(static_cast<int>(seconds(deadline))) + " s");
    } else if (job.plan &&
               now_.monotonic - job.since > options_.loading_deadline + transfer_time(*job.plan)) {
      for (size_t s = 0; s < job.seats.size(); ++s)
        if (!job.seats[s].ready) job.excluded.insert(job.plan->stages[s].peer);
      recover(job, "not ready in time:" + late_peers(job, &Seat::ready));
    }
  }
}

// How many times what was promised a stage needs: over the window that has begun when it says something, else
// over the one before. 0: nobody knows yet.
double Broker::slowness(const Job& job, uint32_t stage) const {
  const Seat& seat = job.seats[stage];
  const PlannedStage& planned = job.plan->stages[stage];
  uint32_t segments = 1;
  for (const proto::StageProgram& program : planned.assignment->programs)
    if (program.kind == proto::ProgramKind::Train) segments = std::max(1u, program.segment_count);
  const double promised = planned.microbatch_seconds / segments;
  const uint64_t done = seat.segments - seat.segments_before;
  const double busy = seat.busy - seat.busy_before;
  if (planned.microbatch_seconds < options_.slow_promise_min) return 0;
  // The one at hand counts as done: a stage that has not done its first is slow too.
  if (done == 0 && busy < seconds(options_.slow_after)) return seat.slowness;
  return busy / (promised * static_cast<double>(std::max<uint64_t>(1, done)));
}

// A stage is judged by windows of `slow_after` of computing, so that a peer that becomes slow late is found
// as soon as one that was slow from the beginning. Where the others have nothing to do because of it, only
// what was promised is left to compare it with; as that may be wrong, this is done once.
void Broker::on_work(Peer& peer, const proto::StageWork& work) {
  uint32_t stage = 0;
  if (peer.serving != work.run || jobs_.at(work.run).plan_version != work.plan_version) return;
  Job* job = job_of(peer, work.run, work.plan_version, stage);
  if (job == nullptr || !job->run || !job->run->training()) return;
  Seat& seat = job->seats[stage];
  if (work.segments_done < seat.segments || work.seconds_busy < seat.busy) return;
  seat.work_said = true;
  seat.segments = work.segments_done;
  seat.busy = work.seconds_busy;
  if (seat.busy - seat.busy_before < seconds(options_.slow_after)) return;
  std::vector<double> others;
  for (uint32_t s = 0; s < job->seats.size(); ++s) {
    if (!job->seats[s].work_said) return;
    if (const double other = s == stage ? 0 : slowness(*job, s); other > 0) others.push_back(other);
  }
  const double here = slowness(*job, stage);
  seat.slowness = here;
  if (here > 0) learn_times(peer, here * seat.times);
  seat.segments_before = seat.segments;
  seat.busy_before = seat.busy;
  if (others.empty() && job->judged_alone) return;
  const auto middle = others.begin() + static_cast<long>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  const double usual = others.empty() ? 1 : std::max(1.0, *middle);
  if (here < options_.slow_factor * usual || job->moving || job->stop_requested) return;
  char times[96];
  std::snprintf(times, sizeof times, " computes %.0f times slower than promised, the others %.1f times", here,
                usual);
  const std::string what = "stage " + std::to_string(stage + 1) + ": peer " + peer.name + times;
  if (can_do_without(*job, peer.id)) {
    job->judged_alone = job->judged_alone || others.empty();
    job->excluded.insert(peer.id);
    return recover(*job, what);
  }
  if (!std::exchange(seat.slowness_said, true)) notice(*job, what + "; nobody is free to take its place");
}

}  // namespace weft::broker
