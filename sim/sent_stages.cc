#include "sim/sent_stages.h"

namespace weft::sim {

SentStages::Complaint SentStages::on_assigned(const PeerId& peer, uint64_t connection,
                                              const proto::AssignStage& stage) {
  Complaint complaint;
  const auto at = serving_.find(peer);
  if (at != serving_.end() && at->second.connection == connection &&
      (at->second.job != stage.run || at->second.plan != stage.plan_version))
    complaint = "a peer gets a stage while it serves job " + std::to_string(at->second.job);
  serving_[peer] = {stage.run, stage.plan_version, connection};
  sequences_[connection] = {stage.run, stage.plan_version, 0};
  return complaint;
}

void SentStages::on_released(const PeerId& peer, const proto::ReleaseStage& stage) {
  const auto at = serving_.find(peer);
  if (at != serving_.end() && at->second.job == stage.run && at->second.plan <= stage.plan_version)
    serving_.erase(at);
}

void SentStages::on_resumed(const PeerId& peer, uint64_t connection, const proto::ResumeStage& stage) {
  serving_[peer] = {stage.run, stage.plan_version, connection};
  sequences_[connection] = {stage.run, stage.plan_version, std::nullopt};
}

SentStages::Judged SentStages::on_command(uint64_t connection, const proto::Command& command) {
  Sequence& sequence = sequences_[connection];
  if (sequence.job != command.run || sequence.plan != command.plan_version)
    return {false,
            "a command to a peer that has no stage of plan version " + std::to_string(command.plan_version)};
  Judged judged;
  if (sequence.last && command.sequence != *sequence.last + 1)
    judged.complaint = "a stage was sent command " + std::to_string(command.sequence) + " after " +
                       std::to_string(*sequence.last);
  sequence.last = command.sequence;
  return judged;
}

void SentStages::clear() {
  serving_.clear();
  sequences_.clear();
}

}  // namespace weft::sim
