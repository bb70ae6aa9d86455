#include "broker/recovery.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "broker/jobs/blobs.h"

namespace weft::broker {

namespace {
constexpr uint32_t kTriesOfKept = 3;
}

using proto::JobState;

namespace {
std::string why_moved(const Job& job, const Pool& pool) {
  if (!job.running()->run->absence().empty()) return "without those that were lost, after step ";
  const auto& stages = job.crew()->plan->stages;
  const bool is_left = std::any_of(stages.begin(), stages.end(), [&](const PlannedStage& stage) {
    const Peer* peer = pool.find(stage.peer);
    return peer == nullptr || peer->draining;
  });
  return job.move_to.empty() && is_left ? "a peer wants to leave; moving after step "
                                        : "planned anew; moving after step ";
}
}  // namespace

void Recovery::settle(const Verdict& verdict) {
  Job* job = book_.find(verdict.job);
  if (job == nullptr || job->crew() == nullptr) return;  // by an earlier one of this step
  const std::string step = std::to_string(verdict.step);
  switch (verdict.kind) {
    case Verdict::Kind::Finished:
      return phases_.end(*job, JobState::Finished, "");
    case Verdict::Kind::Diverged:
      return on_diverged(*job, *verdict.divergence);
    case Verdict::Kind::Failed:
      while (job->points.drop_round()) {  // it may hold what was wrong
      }
      return phases_.end(*job, JobState::Failed, verdict.what);
    case Verdict::Kind::Lost:
      for (const PeerId& peer : verdict.excluded) job->losses.excluded.insert(peer);
      return recover(*job, verdict.what);
    case Verdict::Kind::Stalled:
      return on_stalled(*job, verdict.what);
    case Verdict::Kind::Late:
      return on_late(*job);
    case Verdict::Kind::Stopped:
      if (!job->is_moving() || job->stop_requested)
        return phases_.end(*job, JobState::Stopped,
                           "stopped by its user" + (verdict.step == 0 ? "" : " after step " + step));
      if (job->serves()) return recover(*job, "a peer wants to leave");
      return recover(*job, why_moved(*job, pool_) + step);
  }
}

void Recovery::recover(Job& job, const std::string& reason, bool counts) {
  const phase::Running* running = job.running();
  const bool was_running = running != nullptr, had_plan = job.crew() != nullptr, moving = job.is_moving();
  const uint64_t lost = was_running ? std::max(running->run->inner().made(running->run->committed_step()),
                                               job.log.recorded_step)
                                    : job.step;
  const Duration served =
      was_running && job.serves() ? step_.now.monotonic - running->since : Duration::zero();
  const bool has_left_out = was_running && !running->run->absence().empty();
  if (was_running) stand_bys_.find_holders(job);
  if (stand_bys_.lose_holders(job) == StandBys::Left::Nothing)
    book_.notice(job, "the peers that had the newest copy are gone");
  else if (const std::string heirs = job.points.describe_heirs(); has_left_out && moving && !heirs.empty())
    book_.notice(job, heirs);
  phases_.release(job, reason);
  if (job.stop_requested) return phases_.end(job, JobState::Stopped, "stopped by its user; " + reason);
  job.step = job.points.steps_made();
  if (!moving) job.move_to.clear();
  if (was_running) {
    if (job.move_to.empty()) {
      ++job.losses.recoveries;
      if (!moving) step_.figures.on_recovery();
    }
    if (!job.losses.lost_at) job.losses.lost_at = step_.now.monotonic;
    const uint64_t again = lost > job.step ? lost - job.step : 0;
    const std::string goes_on =
        job.serves() ? "requests wait until all its stages are there again"
                     : "going on from " + job.points.describe() + ", " + std::to_string(again) +
                           (again == 1 ? " committed step is done again" : " committed steps are done again");
    book_.notice(job, reason + ": " + goes_on);
  }
  if (had_plan && !moving && counts) return phases_.wait_after_loss(job, reason, served);
  job.losses.at_step = job.step;
  phases_.wait(job, reason);
}

bool Recovery::leave_out(Job& job, const Peer& peer, const std::string& reason) {
  if (job.stop_requested || !runs_.leave_out(job, peer, reason)) return false;
  job.move_to.clear();
  step_.figures.on_recovery();
  const phase::Running& at = *job.running();
  const auto stage = at.crew.stage_of(peer.id);
  const uint32_t replica = at.run->inner().replica_of(at.crew.plan->stages[*stage].assignment->seat);
  const uint64_t again = at.run->absence().steps_lost();
  book_.notice(
      job, reason + ": the others end their round without replica " + std::to_string(replica + 1) +
               (again == 0 ? "" : "; " + std::to_string(again) + " steps are done again, and no other's"));
  return true;
}

// Whether a job is given up because this peer says that any would fail: where enough others have said so, or
// nobody is free to try. One stranger's word ends nobody's job, nor do two.
bool Recovery::is_hopeless(Job& job, const PeerId& peer) {
  constexpr size_t kAgree = 3;
  job.losses.called_hopeless_by.insert(peer);
  return job.losses.called_hopeless_by.size() >= kAgree || !availability_.can_do_without(job, peer);
}

// A peer whose device lacks what the job needs. Once three of a kind have said so the others of that kind
// need not be asked; whether the job is given up, because nobody else is free to try.
bool Recovery::is_refused_by_all(Job& job, const Peer& peer) {
  constexpr size_t kAgree = 3;
  job.losses.refused_by.insert(peer.id);
  const auto is_of_its_kind = [&](const Peer& other) {
    return other.device.device_class() == peer.device.device_class();
  };
  const auto& peers = pool_.peers();
  const auto refusals = std::count_if(peers.begin(), peers.end(), [&](const auto& entry) {
    return is_of_its_kind(entry.second) && job.losses.refused_by.contains(entry.first);
  });
  if (static_cast<size_t>(refusals) >= kAgree)
    for (const auto& [id, other] : peers)
      if (is_of_its_kind(other)) job.losses.excluded.insert(id);
  return !availability_.can_do_without(job, peer.id);
}

void Recovery::on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed) {
  const std::string what =
      job.crew()->plan->name_of(stage) + " on " + peer.name + ": " + failed.error.message;
  if (failed.diverged && !job.serves()) return on_edge_diverged(job, what, failed);
  if (failed.permanent && is_hopeless(job, peer.id)) return phases_.end(job, JobState::Failed, what);
  if (failed.error.code == ErrorCode::Unsupported && is_refused_by_all(job, peer))
    return phases_.end(job, JobState::Failed, "no peer that is free can do it: " + what);
  if (failed.error.code == ErrorCode::DeviceLost) {  // as if it were gone; the job has no part in that
    peer.draining = peer.device_lost = true;
    if (leave_out(job, peer, what)) return;
    return recover(job, what, /*counts=*/false);
  }
  const bool lacks_tensors =
      failed.error.code == ErrorCode::NotFound || failed.error.code == ErrorCode::Corrupted;
  if (job.running() == nullptr && lacks_tensors && job.points.newest() != nullptr) {
    const std::string gone = job.points.describe();
    // Of what replicas keep themselves there is nothing else: whoever was to give it may have gone.
    if (job.points.stays() && job.losses.in_a_row < kTriesOfKept) return recover(job, what);
    if (job.points.is_direct()) {  // only peers could tell
      job.points.drop_round();
      step_.transient = true;
      book_.notice(job, gone + " cannot be had (" + what + "): going back to " + job.points.describe());
      return recover(job, what);
    }
    // The broker has it, or had: it looks for itself, and meanwhile others try.
    VerifyBlobs verify{.job = job.number(), .step = job.points.step(), .blobs = {}};
    add_blobs(job.points.newest()->tensors, verify.blobs);
    step_.effect(std::move(verify));
  }
  const phase::Running* running = job.running();
  if (running != nullptr && !running->crew.stages[stage].here) return recover(job, what);
  // Of a follower: whoever was to give it something has gone.
  if (running != nullptr && running->run->followers().has(stage) && lacks_tensors) {
    if (!leave_out(job, peer, what)) recover(job, what);
    return;
  }
  if (!failed.unreachable) {
    job.losses.excluded.insert(peer.id);
    pool_.failed_stage(peer);
  } else if (const auto at = job.crew()->plan->find(*failed.unreachable); at && job.losses.in_a_row > 0) {
    // The same again, without a step between: these two do not find each other, others may.
    const PeerId& other = job.crew()->plan->stages[*at].peer;
    if (availability_.can_do_without(job, other)) job.losses.excluded.insert(other);
  }
  if (failed.unreachable || !leave_out(job, peer, what)) recover(job, what);
}

// The broker's own disk, or memory, has not what it was given.
void Recovery::on_blobs_verified(const BlobsVerified& event) {
  Job* job = book_.find(event.job);
  if (job == nullptr || event.bad == 0 || job->points.newest() == nullptr ||
      job->points.step() != event.step || job->points.is_direct())
    return;
  const std::string gone = job->points.describe();
  step_.log("error recovery_point_damaged job=" + job->text() + " step=" + std::to_string(event.step) +
            " blobs=" + std::to_string(event.bad));
  if (!job->points.drop_round()) job->points.drop_damaged_checkpoint();
  step_.transient = true;
  book_.notice(*job, gone + " is damaged where the broker keeps it: going back to " + job->points.describe());
  // A run that goes on makes a new one; who loads it, or is planned with it, begins again.
  if (job->loading() != nullptr) return recover(*job, gone + " is damaged", /*counts=*/false);
  if (job->planning() != nullptr) phases_.wait(*job, gone + " is damaged");
  if (job->running() == nullptr) job->step = job->points.steps_made();
}

// Where one replica owes all that the run waits for, and no other has a part in that, the others go on
// without it. Whoever it was comes back when those that failed a job are forgiven.
bool Recovery::leave_out_silent(Job& job, const std::string& what) {
  phase::Running& at = *job.running();
  const PlannedRun& plan = *at.crew.plan;
  const MissingReports missing = at.run->missing_reports();
  if (missing.is_mutual || missing.stages.empty()) return false;
  const auto replica_of = [&](uint32_t stage) { return plan.stages[stage].assignment->seat.replica; };
  for (const uint32_t stage : missing.stages)
    if (replica_of(stage) != replica_of(missing.stages.front())) return false;
  at.over = false;  // it goes on
  const uint32_t first = missing.stages.front();
  if (!leave_out(job, pool_.at(plan.stages[first].peer), what + "; waited for " + plan.name_of(first))) {
    at.over = true;
    return false;
  }
  for (const uint32_t stage : missing.stages) {
    job.losses.excluded.insert(plan.stages[stage].peer);
    job.losses.blamed.insert(plan.stages[stage].peer);
  }
  return true;
}

// The others end their round without it, where those that are left are enough. Its peers may become a replica
// again later: what made them late may pass, and another time they rest for longer.
void Recovery::on_late(Job& job) {
  constexpr Duration kRestMin = std::chrono::seconds(30), kRestMax = std::chrono::hours(1);
  constexpr int64_t kTimesWaited = 5;
  phase::Running& at = *job.running();
  at.over = false;  // it goes on
  const auto late = at.run->late();
  if (!late) return;
  std::set<PeerId> peers;
  std::string names;
  for (const PlannedStage& stage : at.crew.plan->stages)
    if (at.run->inner().replica_of(stage.assignment->seat) == late->replica &&
        peers.insert(stage.peer).second)
      names += (names.empty() ? "" : ", ") + pool_.at(stage.peer).name;
  std::vector<Candidate> others = availability_.of(job, /*own=*/true);
  std::erase_if(others, [&](const Candidate& other) { return peers.contains(other.peer); });
  char text[128];
  std::snprintf(text, sizeof text, "the others have waited %.1f s for %s, and a round takes %.1f s",
                seconds(late->waited), names.substr(0, 40).c_str(), seconds(late->usual));
  if (others.size() < std::max<size_t>(1, job.submitted.submission->stages) ||
      !leave_out(job, pool_.at(*peers.begin()), text))
    return at.run->pardon_late();
  for (const PeerId& peer : peers) {
    Job::Losses::Late& rest = job.losses.late[peer];
    const Duration first = std::max(kRestMin, kTimesWaited * late->waited);
    rest.rests_until =
        step_.now.monotonic + std::min(kRestMax, first * (int64_t{1} << std::min(rest.times, 7u)));
    ++rest.times;
  }
}

// Whoever may have held the run up makes room for somebody else. Where it was not certain who did, the next
// deadline is longer, for the plan may have taken links for far faster than they are; less so where nothing
// was computed all the while.
void Recovery::on_stalled(Job& job, const std::string& what) {
  if (leave_out_silent(job, what)) return;
  const phase::Running& at = *job.running();
  std::vector<StalledStage> stages;
  stages.reserve(at.crew.stages.size());
  for (uint32_t s = 0; s < at.crew.stages.size(); ++s)
    stages.push_back({at.crew.plan->stages[s].peer, at.crew.stages[s].work.segments(),
                      at.crew.plan->stages[s].assignment->seat.replica});
  Job::Losses& losses = job.losses;
  const Suspects suspects = suspects_of(at.run->missing_reports(), stages, losses.stall_marks);
  for (const auto& [peer, marks] : suspects.marks) losses.stall_marks[peer] += marks;
  std::string blamed;
  const auto blame = [&](uint32_t stage) {
    const PeerId& peer = stages[stage].peer;
    if (!availability_.can_do_without(job, peer)) return false;
    losses.excluded.insert(peer);
    losses.blamed.insert(peer);
    blamed += (blamed.empty() ? "; waited for " : ", ") + at.crew.plan->name_of(stage) + " on " +
              pool_.at(peer).name;
    return true;
  };
  // Those come back that are less likely to have held runs up.
  const auto pardon = [&](const PeerId& suspect) {
    return std::erase_if(losses.blamed, [&](const PeerId& peer) {
             return losses.stall_marks[peer] < losses.stall_marks[suspect] && losses.excluded.erase(peer) > 0;
           }) > 0;
  };
  for (size_t i = 0; i < suspects.stages.size() && (i < suspects.certain || blamed.empty()); ++i) {
    const uint32_t stage = suspects.stages[i];
    if (!blame(stage) && pardon(stages[stage].peer)) blame(stage);
  }
  if (blamed.empty() || (suspects.certain == 0 && (!at.is_at_standstill || ++losses.standstills % 2 == 0)))
    ++losses.stalls;
  recover(job, what + blamed);
}

void Recovery::on_slow(const SlowStage& slow, Peer& peer) {
  Job& job = *slow.job;
  if (availability_.can_do_without(job, peer.id)) {
    job.losses.judged_alone = job.losses.judged_alone || slow.alone;
    job.losses.excluded.insert(peer.id);
    if (leave_out(job, peer, slow.what)) return;
    return recover(job, slow.what);
  }
  if (!std::exchange(job.running()->crew.stages[slow.stage].slowness_said, true))
    book_.notice(job, slow.what + "; nobody is free to take its place");
}

}  // namespace weft::broker
