// What the broker is told about the stage, and the snapshots and predictions that go to it first. Every
// report is kept until the broker says that it will not ask for it again, and told anew after the connection
// was lost. A snapshot that cannot be uploaded is told and forgotten, for the next one may be; a prediction
// is the result itself.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::report(HeldStage& stage, uint64_t sequence, proto::Message message, const Task& task) {
  if (stage.reports.size() >= options.bounds.reports && sequence != ReportLog::kNeverSettled)
    return fail_stage(stage,
                      {ErrorCode::ResourceExhausted,
                       "the broker settles none of " + std::to_string(stage.reports.size()) + " reports"});
  if (stage.is_heard) tell(message);
  stage.reports.add(sequence, std::move(message), task);
}

void Peer::State::resume(const proto::ResumeStage& resume) {
  HeldStage* stage = find_of(resume);
  if (stage == nullptr || !stage->ready) {
    proto::StageFailed gone{.run = resume.run, .plan_version = resume.plan_version};
    gone.error = {ErrorCode::NotFound, "this peer does not hold that stage any more"};
    return tell(std::move(gone));
  }
  say("info stage_resumed run=" + std::to_string(resume.run) + " step=" +
      std::to_string(stage->machine.completed_step()) + " reports=" + std::to_string(stage->reports.size()));
  stage->is_heard = true;
  if (all_heard()) orphan_at.reset();
  tell(proto::StageResumed{.run = resume.run,
                           .plan_version = resume.plan_version,
                           .last_sequence = stage->machine.last_sequence(),
                           .persistent = {persistent_bytes_of(*stage->runner)},
                           .microbatch = stage->runner->microbatch});
  // A broker that was restarted has lost what was not durable: it is offered again before it is reported.
  auto rounds = stage->reports.take_if([&](const ReportLog::Kept& kept) {
    const auto* round = std::get_if<proto::CheckpointReport>(&kept.message);
    return round != nullptr && !kept.task.durable && !kept.task.direct && !round->failure && !stage->failed &&
           std::all_of(round->tensors.begin(), round->tensors.end(),
                       [&](const auto& tensor) { return shelf.holds(tensor.sha256); });
  });
  for (const ReportLog::Kept& kept : stage->reports.kept()) tell(kept.message);
  for (ReportLog::Kept& kept : rounds)
    stage->uploads.add(kept.task, std::move(std::get<proto::CheckpointReport>(kept.message).tensors));
  if (stage->is_loaded) tell_ready(*stage);
  if (ServeScript* serve = stage->machine.serve()) serve->on_resumed();
  tell_served(*stage);
  settle_drain();
  if (HeldStage* here = find_of(resume)) work(*here);  // leaving drops it
}

void Peer::State::fail_stage(HeldStage& stage, const Error& error, const Cause& cause) {
  if (stage.failed) return;
  stage.failed = true;
  let_device_finish(stage);
  say("warning stage_failed run=" + std::to_string(stage.run()) + " reason=\"" + error.message + "\"");
  stage.uploads.clear();
  report(stage, ReportLog::kNeverSettled,
         proto::StageFailed{.run = stage.run(),
                            .plan_version = stage.assignment->plan_version,
                            .error = error,
                            .unreachable = cause.unreachable,
                            .permanent = cause.permanent,
                            .diverged = cause.diverged,
                            .step = cause.step,
                            .damaged = cause.damaged});
}

void Peer::State::on_hashed(uint64_t of_generation, const Task& task,
                            std::vector<proto::TensorReference> tensors) {
  for (const proto::TensorReference& tensor : tensors)
    on_arrived(tensor.sha256, static_cast<uint64_t>(tensor.spec.bytes().value));
  HeldStage* stage = find_at_work(of_generation);
  if (stage == nullptr) return;
  const bool is_snapshot = task.kind == TaskKind::Snapshot;
  if (is_snapshot) stage->uploads.end_hashing();
  if (is_snapshot && task.key.step >= stage->machine.keep_from())
    snapshots_of(stage->run()).keep(task.key.step, shelf.list_of(tensors).blobs, copies_max(*stage));
  if (is_snapshot && task.sequence <= stage->machine.settled()) {
    // A round that was given up for a later one.
  } else if (task.direct) {
    stage->uploads.keep(task, tensors);
    report(*stage, task.sequence,
           proto::CheckpointReport{.run = stage->run(),
                                   .plan_version = stage->assignment->plan_version,
                                   .step = task.key.step,
                                   .tensors = std::move(tensors),
                                   .skipped_steps = task.skipped_steps},
           task);
  } else {
    stage->uploads.add(task, std::move(tensors));
  }
  work(*stage);
}

bool Peer::State::uploads_are_full(const HeldStage& stage) const {
  return stage.uploads.snapshots() + stage.machine.snapshots_ahead() >= options.bounds.snapshot_uploads ||
         stage.uploads.predictions() >= options.bounds.prediction_uploads;
}

void Peer::State::start_uploads() {
  if (!pauses.is_over(now)) return;
  for (auto& [number, stage] : stages) {
    if (stage.failed || !stage.is_heard) continue;
    for (Uploads::Done& done : stage.uploads.start(out)) end_upload(stage, std::move(done));
  }
}

HeldStage* Peer::State::uploader(uint64_t upload) {
  for (auto& [number, stage] : stages)
    if (stage.uploads.has(upload)) return &stage;
  return nullptr;
}

void Peer::State::on_missing(uint64_t number, const Result<std::vector<Digest>>& missing) {
  HeldStage* stage = uploader(number);
  if (stage == nullptr) return;
  const Uploads::Terms terms{.snapshot_rate = stage->assignment->copy_rate,
                             .last_step = stage->assignment->training.steps,
                             .packs = session.broker_minor() >= proto::kProtocolMinorOfPacking};
  if (auto done = stage->uploads.on_missing(now, number, missing, terms, out))
    end_upload(*stage, std::move(*done));
}

void Peer::State::on_stored(uint64_t number, const Digest& sha256, const Status& stored) {
  HeldStage* stage = uploader(number);
  if (stage == nullptr) return;
  if (auto done = stage->uploads.on_uploaded(now, number, sha256, stored))
    end_upload(*stage, std::move(*done));
}

void Peer::State::on_sent(uint64_t number, const Digest& sha256, uint64_t bytes) {
  if (HeldStage* stage = uploader(number)) stage->uploads.on_sent(number, sha256, bytes);
}

std::optional<proto::StageSaving> Peer::State::saving() const {
  for (const auto& [number, stage] : stages)
    if (const auto saving = stage.uploads.saving(); saving && stage.trains() && stage.is_heard)
      return proto::StageSaving{stage.run(), stage.assignment->plan_version, saving->step, saving->saved};
  return std::nullopt;
}

void Peer::State::end_upload(HeldStage& stage, Uploads::Done done) {
  if (stage.failed) return;
  const proto::JobNumber run = stage.run();
  const proto::PlanVersion version = stage.assignment->plan_version;
  const Task& task = done.upload.task;
  if (done.upload.is_snapshot()) {
    proto::CheckpointReport checkpoint{
        .run = run, .plan_version = version, .step = task.key.step, .skipped_steps = task.skipped_steps};
    if (done.failure)
      checkpoint.failure = done.failure->within("uploading");
    else
      checkpoint.tensors = std::move(done.upload.tensors);
    report(stage, task.sequence, std::move(checkpoint), task);
  } else if (done.failure) {
    return fail_stage(stage, done.failure->within("uploading"));
  } else {
    report(stage, task.sequence,
           proto::PredictionReport{run, version, task.key.microbatch, std::move(done.upload.tensors)});
  }
  work(stage);
}

}  // namespace weft::peer
