// Jobs: from submission through planning to their end, and back to a checkpoint when a peer is lost.
#include <algorithm>

#include "base/check.h"
#include "broker/broker.h"

namespace weft::broker {

using proto::JobEventKind;
using proto::JobState;

void Broker::emit(Job& job, proto::JobEvent event) {
  event.job = job.submitted.job;
  event.sequence = ++job.last_event;
  event.unix_ms = now_.unix_ms;
  event.state = job.state;
  out_->records.push_back(std::move(event));
  job.status_dirty = true;
}

void Broker::notice(Job& job, std::string text) {
  proto::JobEvent event;
  event.kind = JobEventKind::Notice;
  event.step = job.step;
  event.text = std::move(text);
  emit(job, std::move(event));
}

void Broker::set_state(Job& job, JobState state, std::string reason) {
  if (job.state == state && job.reason == reason) return;
  job.state = state;
  job.reason = std::move(reason);
  job.since = now_.monotonic;
  out_->records.push_back(JobChanged{.job = job.submitted.job,
                                     .state = job.state,
                                     .reason = job.reason,
                                     .plan_version = job.plan_version,
                                     .step = job.step,
                                     .steps = job.steps});
  proto::JobEvent event;
  event.kind = JobEventKind::State;
  event.step = job.step;
  event.text = job.reason;
  emit(job, std::move(event));
  log("info job_state job=" + std::to_string(job.submitted.job) + " state=" + std::string(to_string(state)) +
      " step=" + std::to_string(job.step) + " reason=\"" + job.reason + "\"");
}

void Broker::on_submission(const SubmissionChecked& event) {
  if (!clients_.contains(event.connection)) return;
  if (!event.verdict)
    return send(event.connection,
                proto::Refusal{.code = event.verdict.error().code, .message = event.verdict.error().message});
  const auto open = std::count_if(jobs_.begin(), jobs_.end(),
                                  [](const auto& entry) { return entry.second.state < JobState::Finished; });
  if (static_cast<size_t>(open) >= options_.jobs_max)
    return send(event.connection, proto::Refusal{.code = ErrorCode::ResourceExhausted,
                                                 .message = "too many jobs are queued: try again later",
                                                 .retry = true});
  const proto::JobNumber number = jobs_.empty() ? 1 : jobs_.rbegin()->first + 1;
  Job& job = jobs_[number];
  job.submitted = {.job = number, .submitter = {}, .submission = event.submission, .unix_ms = now_.unix_ms};
  job.since = now_.monotonic;
  out_->records.push_back(job.submitted);
  proto::JobEvent queued;
  queued.kind = JobEventKind::State;
  emit(job, std::move(queued));
  log("info job_submitted job=" + std::to_string(number) + " name=\"" + event.submission.name + "\"");
  send(event.connection, proto::JobAccepted{number});
  schedule_jobs();
}

void Broker::schedule_jobs() {
  for (auto& [number, job] : jobs_) {
    if (job.state != JobState::Queued && job.state != JobState::Waiting) continue;
    if (job.infeasible_with == pool_version_) continue;
    const size_t wanted = std::max<size_t>(1, job.submitted.submission.stages);
    std::vector<Candidate> free = candidates(job);
    if (free.size() >= wanted) {
      start_planning(job, std::move(free));
      continue;
    }
    set_state(
        job, JobState::Waiting,
        "waits for peers: needs " + std::to_string(wanted) + ", " + std::to_string(free.size()) +
            (free.size() == 1 ? " is free" : " are free") +
            (job.excluded.empty() ? std::string()
                                  : ", " + std::to_string(job.excluded.size()) + " failed this job before"));
  }
}

// Candidates are reserved while the plan is made: another job does not get them.
void Broker::start_planning(Job& job, std::vector<Candidate> free) {
  ++job.plan_version;
  set_state(job, JobState::Planning, "");
  for (const Candidate& candidate : free) peers_.at(candidate.peer).serving = job.submitted.job;
  peers_dirty_ = true;
  StartPlanning request{.job = job.submitted.job,
                        .plan_version = job.plan_version,
                        .submission = job.submitted.submission,
                        .candidates = std::move(free),
                        .checkpoint = {}};
  if (!job.checkpoints.empty()) request.checkpoint = job.checkpoints.back();
  out_->effects.push_back(std::move(request));
}

void Broker::on_planned(const PlanningDone& event) {
  const auto at = jobs_.find(event.job);
  if (at == jobs_.end() || at->second.state != JobState::Planning ||
      at->second.plan_version != event.plan_version)
    return;  // stopped, or a peer was lost meanwhile
  Job& job = at->second;
  for (auto& [id, peer] : peers_)
    if (peer.serving == event.job) peer.serving.reset();
  peers_dirty_ = true;
  if (!event.plan) {
    const Error& error = event.plan.error();
    if (error.code ==
        ErrorCode::Infeasible) {  // waits for others to come; tried again when the pool has changed
      job.infeasible_with = pool_version_;
      return set_state(job, JobState::Waiting, error.message);
    }
    return end_job(job, JobState::Failed, error.message);
  }
  job.plan = *event.plan;
  job.steps = job.plan->steps;
  for (const PlannedStage& stage : job.plan->stages) {
    const auto peer = peers_.find(stage.peer);
    if (peer == peers_.end() || !peer->second.connection || peer->second.draining) {
      job.plan.reset();
      return set_state(job, JobState::Waiting, "a peer left while the plan was made");
    }
  }
  for (const PlannedStage& stage : job.plan->stages) peers_.at(stage.peer).serving = event.job;
  job.ready.assign(job.plan->stages.size(), false);
  set_state(job, JobState::Loading, "");
  if (!job.plan->equal_bits || (job.equal_bits_with && *job.equal_bits_with != job.plan->fingerprint)) {
    if (job.equal_bits)
      notice(job, "the stages run on devices of different kinds: equal bits are no longer promised");
    job.equal_bits = false;
  }
  job.equal_bits_with = job.plan->fingerprint;
  proto::JobEvent plan;
  plan.kind = JobEventKind::Plan;
  for (const std::string& line : job.plan->explanation) plan.text += line + "\n";
  emit(job, std::move(plan));
  out_->effects.push_back(OpenFeed{event.job, job.plan->data_key});
  for (const proto::Secret& ticket : job.plan->relay_tickets) out_->effects.push_back(GrantRelay{ticket});
  for (const PlannedStage& stage : job.plan->stages)
    out_->effects.push_back(
        Send{*peers_.at(stage.peer).connection, std::make_shared<const proto::Message>(*stage.assignment)});
}

void Broker::on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed) {
  const std::string what =
      "stage " + std::to_string(stage + 1) + " on " + peer.name + ": " + failed.error.message;
  if (failed.permanent) return end_job(job, JobState::Failed, what);
  if (!failed.unreachable_stage) job.excluded.insert(peer.id);
  recover(job, what);
}

void Broker::release_peers(Job& job, const std::string& reason) {
  job.run.reset();
  if (job.plan) {
    for (const proto::Secret& ticket : job.plan->relay_tickets) out_->effects.push_back(RevokeRelay{ticket});
    out_->effects.push_back(CloseFeed{job.submitted.job});
    for (const PlannedStage& stage : job.plan->stages)
      send_to_peer(stage.peer, proto::ReleaseStage{job.submitted.job, job.plan_version, reason});
  }
  for (auto& [id, peer] : peers_)
    if (peer.serving == job.submitted.job) peer.serving.reset();
  job.plan.reset();
  job.ready.clear();
  peers_dirty_ = true;
  ++pool_version_;
}

void Broker::recover(Job& job, const std::string& reason) {
  const bool was_running = job.run != nullptr;
  const bool had_plan = job.plan != nullptr;
  const uint64_t lost = job.step;
  release_peers(job, reason);
  if (job.stop_requested) return end_job(job, JobState::Stopped, "stopped by its user; " + reason);
  job.step = job.checkpoints.empty() ? 0 : job.checkpoints.back().step;
  if (was_running) {
    ++job.recoveries;
    notice(job, reason + ": going on from " +
                    (job.checkpoints.empty() ? std::string("the start")
                                             : "the checkpoint of step " + std::to_string(job.step)) +
                    ", " + std::to_string(lost - job.step) + " steps are done again");
  }
  if (had_plan && !job.moving && ++job.failures >= options_.failures_max)
    return end_job(job, JobState::Failed,
                   "given up after " + std::to_string(job.failures) +
                       " losses without a step between them; the last: " + reason);
  job.failures_at_step = job.step;
  job.moving = false;
  set_state(job, JobState::Waiting, reason);
  schedule_jobs();
}

void Broker::end_job(Job& job, JobState state, const std::string& reason) {
  release_peers(job, state == JobState::Finished ? "the job is finished" : reason);
  job.stop_requested = false;
  set_state(job, state, reason);
  schedule_jobs();
}

std::set<Digest> Broker::referenced_blobs() const {
  std::set<Digest> blobs;
  const auto add = [&](const std::vector<proto::TensorReference>& tensors) {
    for (const auto& tensor : tensors) blobs.insert(tensor.sha256);
  };
  for (const auto& [number, job] : jobs_) {
    // Of a job that has ended, the model is kept for who fetches it; its data is not.
    for (const proto::PackedFile& file : job.submitted.submission.files)
      if (job.state < JobState::Finished || file.path.rfind("model/", 0) == 0)
        for (const proto::FilePiece& piece : file.pieces)
          if (piece.sha256) blobs.insert(*piece.sha256);
    for (const CheckpointCommitted& checkpoint : job.checkpoints) add(checkpoint.tensors);
    if (job.result) add(job.result->tensors);
    for (const auto& report : job.predictions) add(report.outputs);
    if (job.plan)
      for (const PlannedStage& stage : job.plan->stages) add(stage.assignment->tensors);
  }
  return blobs;
}

std::set<proto::JobNumber> Broker::open_jobs() const {
  std::set<proto::JobNumber> open;
  for (const auto& [number, job] : jobs_)
    if (job.state < JobState::Finished) open.insert(number);
  return open;
}

proto::JobStatus Broker::status_of(const Job& job) const {
  proto::JobStatus status;
  status.job = job.submitted.job;
  status.name = job.submitted.submission.name;
  status.state = job.state;
  status.reason = job.reason;
  status.plan_version = job.plan_version;
  status.step = job.step;
  status.steps = job.steps;
  status.checkpoint_step = job.checkpoints.empty() ? 0 : job.checkpoints.back().step;
  status.recoveries = job.recoveries;
  status.equal_bits = job.equal_bits;
  if (job.plan) status.plan = job.plan->explanation;
  if (job.run) {
    status.loss = job.run->last_loss();
    status.samples_per_second = job.run->samples_per_second();
    if (status.samples_per_second > 0)
      status.seconds_left =
          static_cast<double>((job.steps - job.step) * job.plan->batch_size) / status.samples_per_second;
    status.stages = job.run->stages();
    for (proto::StageStatus& stage : status.stages) {
      const Peer& peer = peers_.at(stage.peer);
      stage.peer_name = peer.name;
      stage.region = peer.device.region;
    }
  }
  return status;
}

}  // namespace weft::broker
