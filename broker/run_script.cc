// The script of a run: its commands, and how a run goes on with what is left of it.
#include <algorithm>

#include "broker/run.h"

namespace weft::broker {

using proto::Command;
using proto::CommandKind;

bool Run::is_settled(const Command& command) const {
  switch (command.kind) {
    case CommandKind::Advance:
      return command.step <= committed_;
    case CommandKind::Checkpoint:
    case CommandKind::Replicate:
      return std::none_of(rounds_.begin(), rounds_.end(),
                          [&](const Round& round) { return round.sequence == command.sequence; });
    case CommandKind::Evaluate:
      return command.step <= evaluated_;
    case CommandKind::Predict:
      return command.first_microbatch + command.microbatches <= forward_.reported;
    case CommandKind::Compare:
      return !comparison_ || comparison_->sequence != command.sequence;
    case CommandKind::Finish:
      return true;
  }
  return true;
}

void Run::trim_script() {
  while (!script_.empty() && is_settled(script_.front())) script_.pop_front();
}

void Run::write(Command command, RunSink& sink) {
  trim_script();
  command.run = job_;
  command.plan_version = version_;
  command.sequence = ++sequence_;
  command.committed = committed_;
  command.settled = script_.empty() ? sequence_ - 1 : script_.front().sequence - 1;
  command.keep_from = keep_from_;
  script_.push_back(command);
  sink.issue(command);
  for (uint32_t s = 0; s < stages_.size(); ++s) sink.send_to_stage(s, command);
}

// What was committed since the last command was recorded is not known here, and need not be: the stages keep
// their reports until a command tells them that they may forget, and report again. What the event log holds
// already is not recorded twice. Blobs that need not survive the broker have not: stages that report a round
// again have uploaded it again.
void Run::resume(const std::vector<Command>& script) {
  if (!script.empty()) {
    const Command& last = script.back();
    sequence_ = last.sequence;
    if (training()) granted_ = std::max(granted_, last.step);
    committed_ = std::max(committed_, last.committed);
    keep_from_ = std::max(keep_from_, last.keep_from);
    for (const Command& command : script)
      if (command.sequence > last.settled) script_.push_back(command);
  }
  recovery_ = checkpointed_;
  for (proto::StageStatus& stage : stages_) stage.step = committed_;
  snapshot_written_ = keep_from_;  // a step has one snapshot
  snapshot_written_durable_ = keep_from_ == checkpointed_;
  for (const Command& command : script_) {
    if (command.kind == CommandKind::Checkpoint || command.kind == CommandKind::Replicate) {
      snapshot_written_ = command.step;
      snapshot_written_durable_ = command.kind == CommandKind::Checkpoint;
      if (command.step > checkpointed_)
        rounds_.push_back({.sequence = command.sequence,
                           .step = command.step,
                           .durable = snapshot_written_durable_,
                           .gates = command.step > recorded_ && !command.direct && is_eager(),
                           .direct = command.direct,
                           .made = std::vector<bool>(command.direct ? stages_.size() : 0, false),
                           .in = std::vector<bool>(stages_.size(), false),
                           .tensors = {}});
    }
    if (command.kind == CommandKind::Compare)
      comparison_ = Comparison{.sequence = command.sequence,
                               .step = command.step,
                               .began = {},
                               .in = std::vector<bool>(stages_.size(), false),
                               .losses = {},
                               .squares = {}};
    resume_forward(command);
  }
}

void Run::resume_forward(const Command& command) {
  if (command.kind == CommandKind::Evaluate && command.step > evaluated_) {
    if (!forward_.active || forward_.step != command.step) begin_evaluation(command.step);
  } else if (command.kind != CommandKind::Predict) {
    return;
  }
  if (forward_.active)
    forward_.commanded = std::max(forward_.commanded, command.first_microbatch + command.microbatches);
}

Status Run::on_resumed(Instant now, uint32_t stage, uint64_t last_sequence, RunSink& sink) {
  const uint64_t first = script_.empty() ? sequence_ + 1 : script_.front().sequence;
  if (last_sequence > sequence_ || last_sequence + 1 < first)
    return fail(ErrorCode::InvalidArgument,
                "it came back with the commands up to " + std::to_string(last_sequence) +
                    "; it was given those up to " + std::to_string(sequence_) + ", and those before " +
                    std::to_string(first) + " were carried out by every stage");
  if (last_progress_ == Instant{}) {
    last_checkpoint_ = last_commit_ = compared_at_ = now;
    if (comparison_) comparison_->began = now;
  }
  last_progress_ = now;
  repeats_until_[stage] = std::max<uint64_t>(1, granted_);
  for (Round& round : rounds_) round.outlived = round.outlived || !round.in[stage];
  for (const Command& command : script_)
    if (command.sequence > last_sequence) sink.send_to_stage(stage, command);
  for (const auto& [number, step] : steps_)
    if (step.norm_sent && plan_->training.decides_together() && !step.updated[stage])
      sink.send_to_stage(stage, norm_of(number, step));
  // All of the script may have been done when the broker went: then no report brings the run forward.
  if (training())
    continue_run(now, sink);
  else
    continue_forward(sink);
  end_if_done(sink);
  return {};
}

// Whether a report that says nothing new comes from a stage that could not know; counted.
bool Run::may_repeat(uint32_t stage, uint64_t step) {
  if (step > repeats_until_[stage]) return false;
  ++repeats_;
  return true;
}

}  // namespace weft::broker
