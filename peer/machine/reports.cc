// What the broker is told about the stage. Every report is kept until the broker says that it will not ask
// for it again, and told anew after the connection was lost.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::report(uint64_t sequence, proto::Message message, const Task& task) {
  if (stage->reports.size() >= options.bounds.reports && sequence != KeptReport::kNeverSettled)
    return fail_stage({ErrorCode::ResourceExhausted,
                       "the broker settles none of " + std::to_string(stage->reports.size()) + " reports"});
  if (stage->is_heard) tell(message);
  stage->reports.push_back({sequence, task, std::move(message)});
}

void Peer::State::trim_reports() {
  const uint64_t committed = stage->machine.committed(), settled = stage->machine.settled();
  std::erase_if(stage->reports, [&](const KeptReport& kept) {
    if (const auto* step = std::get_if<proto::StepReport>(&kept.message)) return step->step <= committed;
    return kept.sequence <= settled;
  });
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
  std::vector<KeptReport> rounds;
  for (const KeptReport& kept : stage->reports) {
    const auto* round = std::get_if<proto::CheckpointReport>(&kept.message);
    const bool is_lost = round != nullptr && !kept.task.durable && !round->failure && !stage->failed &&
                         std::all_of(round->tensors.begin(), round->tensors.end(),
                                     [&](const auto& tensor) { return shelf.holds(tensor.sha256); });
    if (is_lost)
      rounds.push_back(kept);
    else
      tell(kept.message);
  }
  for (KeptReport& kept : rounds) {
    std::erase_if(stage->reports, [&](const KeptReport& other) {
      return other.sequence == kept.sequence &&
             std::holds_alternative<proto::CheckpointReport>(other.message);
    });
    queue_upload(kept.task, std::move(std::get<proto::CheckpointReport>(kept.message).tensors));
  }
  settle_drain();
  work();
}

void Peer::State::fail_stage(const Error& error, std::optional<uint32_t> unreachable, bool permanent) {
  if (stage->failed) return;
  stage->failed = true;
  say("warning stage_failed run=" + std::to_string(stage->assignment->run) + " reason=\"" + error.message +
      "\"");
  for (const Upload& upload : stage->uploads) shelf.unname(upload.blobs);
  stage->uploads.clear();
  report(KeptReport::kNeverSettled, proto::StageFailed{.run = stage->assignment->run,
                                                       .plan_version = stage->assignment->plan_version,
                                                       .error = error,
                                                       .unreachable_stage = unreachable,
                                                       .permanent = permanent});
}

}  // namespace weft::peer
