#include "broker/jobs/job_book.h"

#include <algorithm>

namespace weft::broker {

using proto::JobEventKind;
using proto::JobState;

Job* JobBook::find(proto::JobNumber number) {
  const auto at = jobs_.find(number);
  return at == jobs_.end() ? nullptr : &at->second;
}

Job& JobBook::submit(const PeerId& submitter, proto::Encoded<proto::SubmitJob> submission) {
  Job& job = jobs_[next_];
  job.submitted = {.job = next_++,
                   .submitter = submitter,
                   .submission = std::move(submission),
                   .unix_ms = step_.now.unix_ms};
  job.serving.model.name = job.submitted.submission->serves;
  step_.record(job.submitted);
  proto::JobEvent queued;
  queued.kind = JobEventKind::State;
  emit(job, std::move(queued));
  if (const auto& beginning = job.submitted.submission->beginning) begin_at(job, *beginning);
  return job;
}

// As if the job had come so far here.
void JobBook::begin_at(Job& job, const proto::Beginning& beginning) {
  CheckpointCommitted checkpoint{.job = job.number(),
                                 .step = beginning.step,
                                 .tensors = beginning.tensors,
                                 .skipped_steps = beginning.skipped_steps};
  if (!beginning.replica_skipped_steps.empty())
    checkpoint.local = proto::LocalPoint{beginning.step, beginning.replica_skipped_steps};
  step_.record(checkpoint);
  job.points.commit_checkpoint(std::move(checkpoint));
  job.step = job.points.steps_made();
  notice(job, "begins at its user's checkpoint: going on from " + job.points.describe());
}

Job& JobBook::load(const StoredJob& stored) {
  Job& job = jobs_[stored.submitted.job];
  next_ = std::max(next_, stored.submitted.job + 1);
  job.submitted = stored.submitted;
  job.serving.model.name = job.submitted.submission->serves;
  job.state = stored.last.state;
  job.reason = stored.last.reason;
  job.plan_version = stored.last.plan_version;
  job.steps = stored.last.steps;
  job.microbatch_size = stored.microbatch_size;
  job.chosen = stored.chosen;
  job.points.load(stored.checkpoints);
  job.predictions = stored.predictions;
  job.result = stored.result;
  job.log.last_event = stored.last_event;
  job.log.recorded_step = job.step = stored.committed_step;
  job.log.evaluated_step = stored.evaluated_step;
  return job;
}

size_t JobBook::count_of(const PeerId& submitter) const {
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.submitted.submitter == submitter && !entry.second.has_ended();
  }));
}

void JobBook::emit(Job& job, proto::JobEvent event) {
  event.job = job.number();
  event.sequence = ++job.log.last_event;
  event.unix_ms = step_.now.unix_ms;
  event.state = job.state;
  step_.record(std::move(event));
}

void JobBook::notice(Job& job, std::string text) {
  proto::JobEvent event;
  event.kind = JobEventKind::Notice;
  event.step = job.step;
  event.text = std::move(text);
  emit(job, std::move(event));
}

void JobBook::set_state(Job& job, JobState state, std::string reason) {
  step_.served = true;
  if (job.state == state && job.reason == reason && job.plan_version == job.recorded_version) return;
  job.recorded_version = job.plan_version;
  job.state = state;
  job.reason = std::move(reason);
  step_.record(JobChanged{.job = job.number(),
                          .state = job.state,
                          .reason = job.reason,
                          .plan_version = job.plan_version,
                          .step = job.step,
                          .steps = job.steps,
                          .planned = job.planning() ? job.planning()->planned : Planned::Anew});
  proto::JobEvent event;
  event.kind = JobEventKind::State;
  event.step = job.step;
  event.text = job.reason;
  event.diverged = job.state == JobState::Failed && job.diverged;
  emit(job, std::move(event));
  step_.log("info job_state job=" + job.text() + " state=" + std::string(to_string(state)) +
            " step=" + std::to_string(job.step) + " reason=\"" + job.reason + "\"");
}

void JobBook::keep_round(Job& job) {
  const CheckpointCommitted kept = *job.points.round_at_broker();
  job.points.commit_checkpoint(kept);
  step_.record(kept);
  proto::JobEvent event;
  event.kind = JobEventKind::Checkpoint;
  event.step = kept.made();
  emit(job, std::move(event));
  step_.transient = true;
}

void JobBook::end(Job& job, JobState state, const std::string& reason) {
  job.phase = phase::Ended{};
  job.points.end();
  set_state(job, state, reason);
  some_ended_ = true;
}

void JobBook::remove_ended(const Pool& pool) {
  if (!std::exchange(some_ended_, false)) return;
  std::erase_if(jobs_, [&](const auto& entry) {
    const Job& job = entry.second;
    if (!job.has_ended()) return false;
    JobEnded ended{job.submitted.submitter, status_of(job, pool)};
    ended.status.ended_unix_ms = step_.now.unix_ms;
    step_.record(std::move(ended));
    step_.effect(ForgetJob{job.number()});
    step_.figures.forget(job.number());
    return true;
  });
}

proto::JobStatus JobBook::status_of(const Job& job, const Pool& pool) const {
  proto::JobStatus status;
  status.job = job.number();
  status.name = job.submitted.submission->name;
  status.state = job.state;
  status.reason = job.reason;
  status.plan_version = job.plan_version;
  status.step = job.step;
  status.steps = job.steps;
  status.checkpoint_step = job.points.steps_checkpointed();
  status.recovery_step = job.points.steps_made();
  status.recoveries = job.losses.recoveries;
  status.equal_bits = job.bits.are_equal;
  status.loss = job.log.loss;
  status.submitted_unix_ms = job.submitted.unix_ms;
  if (!job.log.metrics.empty()) {
    status.evaluated_step = job.log.evaluated_step;
    status.metrics = job.log.metrics;
  }
  status.submitter = job.submitted.submission->submitter;
  if (const Crew* crew = job.crew()) status.plan = crew->plan->explanation;
  if (const phase::Running* at = job.running()) {
    const Run& run = *at->run;
    status.loss = run.progress().last_loss();
    status.samples_per_second = run.progress().samples_per_second();
    if (status.samples_per_second > 0)
      status.seconds_left = static_cast<double>((job.steps - job.step) * at->crew.plan->training.batch_size) /
                            status.samples_per_second;
    status.stages = run.progress().stages();
    status.comparison = run.compared();
    if (const auto saving = run.rounds().saving()) {
      status.saving.step = run.inner().made(saving->step);
      status.saving.bytes = saving->bytes;
      status.saving.saved = saving->saved;
    }
    if (const auto& local = run.plan().local_steps) {
      for (uint32_t replica = 0; replica < local->terms.count; ++replica)
        status.replicas.steps.push_back(local->terms.share(replica));
      if (const auto& agreed = run.progress().agreed()) {
        status.replicas.agreed_step = run.inner().made(agreed->step);
        status.replicas.seconds_since_agreement = seconds(step_.now.monotonic - agreed->at);
      }
    }
    for (proto::StageStatus& stage : status.stages) {
      const Peer& peer = pool.at(stage.peer);
      stage.peer_name = peer.name;
      stage.region = peer.device.region;
      stage.step = run.inner().made(stage.step);
    }
  }
  return status;
}

proto::JobResult result_of(const proto::SubmitJob& submission, proto::JobNumber number,
                           const std::optional<proto::JobResult>& committed,
                           const CheckpointCommitted* checkpoint,
                           const std::vector<proto::PredictionReport>& predictions) {
  proto::JobResult result;
  if (committed) {
    result = *committed;
  } else {  // not finished: as far as it is safe
    result.job = number;
    result.step = checkpoint->made();
    for (const auto& tensor : checkpoint->tensors)
      if (is_weight(tensor.key.slot)) result.tensors.push_back(tensor);
  }
  for (const proto::PackedFile& file : submission.files)
    if (file.path.rfind("model/", 0) == 0) result.model.push_back(file);
  result.predictions = predictions;
  return result;
}

proto::JobResult JobBook::result_of(const Job& job) {
  return broker::result_of(*job.submitted.submission, job.number(), job.result, job.points.checkpoint(),
                           job.predictions);
}

std::set<Digest> JobBook::referenced_blobs() const {
  std::set<Digest> blobs;
  for (const auto& [number, job] : jobs_) {
    add_blobs(*job.submitted.submission, BlobsOf::AllFiles, blobs);
    job.points.add_durable(blobs);
    // It may have been made durable, and nobody knows yet.
    if (const auto* round = job.points.round_at_broker()) add_blobs(round->tensors, blobs);
    if (job.result) add_blobs(job.result->tensors, blobs);
    for (const auto& report : job.predictions) add_blobs(report.outputs, blobs);
    // Parts of checkpoints that lack others still, perhaps for hours: who uploaded them may have left.
    if (const phase::Running* at = job.running())
      for (const Round& round : at->run->rounds().under_way())
        if (round.durable) add_blobs(round.tensors, blobs);
    const Crew* crew = job.crew();
    for (const auto& plan : {crew != nullptr ? crew->plan : nullptr, job.previous.plan})
      if (plan)
        for (const PlannedStage& stage : plan->stages) add_blobs(stage.assignment->tensors, blobs);
  }
  return blobs;
}

std::set<PeerId> JobBook::peers_needed() const {
  std::set<PeerId> needed;
  for (const auto& [number, job] : jobs_) {
    const Crew* crew = job.crew();
    for (const auto& plan : {crew != nullptr ? crew->plan : nullptr, job.previous.plan})
      if (plan != nullptr)
        for (const PlannedStage& stage : plan->stages) needed.insert(stage.peer);
    for (const auto& [blob, holders] : job.points.holders) needed.insert(holders.begin(), holders.end());
  }
  return needed;
}

std::set<proto::JobNumber> JobBook::numbers() const {
  std::set<proto::JobNumber> numbers;
  for (const auto& [number, job] : jobs_) numbers.insert(number);
  return numbers;
}

}  // namespace weft::broker
