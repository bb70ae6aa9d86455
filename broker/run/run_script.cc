#include "broker/run/run_script.h"

#include <string>

namespace weft::broker {

using proto::Command;

void Script::resume(std::span<const Command> recorded) {
  if (recorded.empty()) return;
  sequence_ = recorded.back().sequence;
  for (const Command& command : recorded)
    if (command.sequence > recorded.back().settled) commands_.push_back(command);
}

const Command& Script::write(Command command) {
  command.run = job_;
  command.plan_version = version_;
  command.settled = settled();
  command.sequence = ++sequence_;
  return commands_.emplace_back(command);
}

Status Script::check_resumed(uint64_t last_sequence) const {
  if (last_sequence <= sequence_) return {};
  return fail(ErrorCode::InvalidArgument, "it came back with the commands up to " +
                                              std::to_string(last_sequence) + "; it was given those up to " +
                                              std::to_string(sequence_));
}

std::vector<Command> Script::commands_after(uint64_t last_sequence) const {
  std::vector<Command> after;
  for (const Command& command : commands_) {
    if (command.sequence <= last_sequence) continue;
    after.push_back(command);
    after.back().settled = settled();
  }
  return after;
}

Status Script::check() const {
  uint64_t expected = first();
  for (const Command& command : commands_) {
    if (command.sequence != expected++)
      return fail(ErrorCode::Internal, "the script has command " + std::to_string(command.sequence) +
                                           " in place of " + std::to_string(expected - 1));
    if (command.settled >= command.sequence)
      return fail(ErrorCode::Internal,
                  "command " + std::to_string(command.sequence) + " was settled before it was written");
  }
  if (expected != sequence_ + 1)
    return fail(ErrorCode::Internal, "the script ends before its command " + std::to_string(sequence_));
  return {};
}

}  // namespace weft::broker
