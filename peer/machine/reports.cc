// What the broker is told about the stage, and the snapshots and predictions that go to it first. Every
// report is kept until the broker says that it will not ask for it again, and told anew after the connection
// was lost. A snapshot that cannot be uploaded is told and forgotten, for the next one may be; a prediction
// is the result itself.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::report(uint64_t sequence, proto::Message message, const Task& task) {
  if (stage->reports.size() >= options.bounds.reports && sequence != ReportLog::kNeverSettled)
    return fail_stage({ErrorCode::ResourceExhausted,
                       "the broker settles none of " + std::to_string(stage->reports.size()) + " reports"});
  if (stage->is_heard) tell(message);
  stage->reports.add(sequence, std::move(message), task);
}

void Peer::State::resume(const proto::ResumeStage& resume) {
  if (!stage || !stage->is_of(resume) || !stage->ready) {
    proto::StageFailed gone{.run = resume.run, .plan_version = resume.plan_version};
    gone.error = {ErrorCode::NotFound, "this peer does not hold that stage any more"};
    return tell(std::move(gone));
  }
  say("info stage_resumed run=" + std::to_string(resume.run) + " step=" +
      std::to_string(stage->machine.completed_step()) + " reports=" + std::to_string(stage->reports.size()));
  orphan_at.reset();
  stage->is_heard = true;
  tell(proto::StageResumed{resume.run, resume.plan_version, stage->machine.last_sequence()});
  // A broker that was restarted has lost what was not durable: it is offered again before it is reported.
  auto rounds = stage->reports.take_if([&](const ReportLog::Kept& kept) {
    const auto* round = std::get_if<proto::CheckpointReport>(&kept.message);
    return round != nullptr && !kept.task.durable && !kept.task.direct && !round->failure && !stage->failed &&
           std::all_of(round->tensors.begin(), round->tensors.end(),
                       [&](const auto& tensor) { return shelf.holds(tensor.sha256); });
  });
  for (const ReportLog::Kept& kept : stage->reports.kept()) tell(kept.message);
  for (ReportLog::Kept& kept : rounds)
    uploads.add(kept.task, std::move(std::get<proto::CheckpointReport>(kept.message).tensors));
  settle_drain();
  work();
}

void Peer::State::fail_stage(const Error& error, std::optional<plan::Seat> unreachable, bool permanent,
                             bool diverged, uint64_t step) {
  if (stage->failed) return;
  stage->failed = true;
  let_device_finish();
  say("warning stage_failed run=" + std::to_string(stage->assignment->run) + " reason=\"" + error.message +
      "\"");
  uploads.clear();
  report(ReportLog::kNeverSettled, proto::StageFailed{.run = stage->assignment->run,
                                                      .plan_version = stage->assignment->plan_version,
                                                      .error = error,
                                                      .unreachable = unreachable,
                                                      .permanent = permanent,
                                                      .diverged = diverged,
                                                      .step = step});
}

void Peer::State::on_hashed(uint64_t of_generation, const Task& task,
                            std::vector<proto::TensorReference> tensors) {
  for (const proto::TensorReference& tensor : tensors)
    on_arrived(tensor.sha256, static_cast<uint64_t>(tensor.spec.bytes().value));
  if (!is_at_work(of_generation)) return;
  const bool is_snapshot = task.kind == TaskKind::Snapshot;
  if (is_snapshot) uploads.end_hashing();
  if (is_snapshot && task.key.step >= stage->machine.keep_from() && snapshots.run() == stage->assignment->run)
    snapshots.keep(task.key.step, shelf.list_of(tensors).blobs, copies_max());
  if (is_snapshot && task.sequence <= stage->machine.settled()) {
    // A round that was given up for a later one.
  } else if (task.direct) {
    uploads.keep(task, tensors);
    report(task.sequence,
           proto::CheckpointReport{.run = stage->assignment->run,
                                   .plan_version = stage->assignment->plan_version,
                                   .step = task.key.step,
                                   .tensors = std::move(tensors),
                                   .skipped_steps = task.skipped_steps},
           task);
  } else {
    uploads.add(task, std::move(tensors));
  }
  work();
}

bool Peer::State::uploads_are_full() const {
  return uploads.snapshots() + stage->machine.snapshots_ahead() >= options.bounds.snapshot_uploads ||
         uploads.predictions() >= options.bounds.prediction_uploads;
}

void Peer::State::start_uploads() {
  if (!stage || stage->failed || !stage->is_heard || !pauses.is_over(now)) return;
  for (Uploads::Done& done : uploads.start(out)) end_upload(std::move(done));
}

void Peer::State::on_missing(uint64_t number, const Result<std::vector<Digest>>& missing) {
  Uploads::Terms terms{.packs = session.broker_minor() >= proto::kProtocolMinorOfPacking};
  if (stage) {
    terms.snapshot_rate = stage->assignment->replication_rate;
    terms.last_step = stage->assignment->training.steps;
  }
  if (auto done = uploads.on_missing(now, number, missing, terms, out)) end_upload(std::move(*done));
}

void Peer::State::on_stored(uint64_t number, const Digest& sha256, const Status& stored) {
  if (auto done = uploads.on_uploaded(now, number, sha256, stored)) end_upload(std::move(*done));
}

void Peer::State::end_upload(Uploads::Done done) {
  if (stage->failed) return;
  const proto::JobNumber run = stage->assignment->run;
  const proto::PlanVersion version = stage->assignment->plan_version;
  const Task& task = done.upload.task;
  if (done.upload.is_snapshot()) {
    proto::CheckpointReport checkpoint{
        .run = run, .plan_version = version, .step = task.key.step, .skipped_steps = task.skipped_steps};
    if (done.failure)
      checkpoint.failure = done.failure->within("uploading");
    else
      checkpoint.tensors = std::move(done.upload.tensors);
    report(task.sequence, std::move(checkpoint), task);
  } else if (done.failure) {
    return fail_stage(done.failure->within("uploading"));
  } else {
    report(task.sequence,
           proto::PredictionReport{run, version, task.key.microbatch, std::move(done.upload.tensors)});
  }
  work();
}

}  // namespace weft::peer
