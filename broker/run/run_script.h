// The script of a run: its commands, counted from 1, as far as they are not settled. Stages carry them out
// strictly in order; a run that goes on after a restart, or a stage that comes back, begins with what is left
// of them. What settles a command its run knows. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/result.h"
#include "proto/messages.h"

namespace weft::broker {

class Script {
 public:
  Script(proto::JobNumber job, proto::PlanVersion version) : job_(job), version_(version) {}

  // As records have it, in order: what they say to be settled already is left out.
  void resume(std::span<const proto::Command> recorded);
  // Without the first ones that are settled, of which `is_settled(command)` says whether one is.
  void trim(const auto& is_settled) {
    while (!commands_.empty() && is_settled(commands_.front())) commands_.pop_front();
  }
  // Its number, and up to where all are settled, are filled in. The reference is valid until the next call.
  const proto::Command& write(proto::Command command);

  // Whether a stage that has the commands up to `last_sequence` can go on: what it lacks is here, or settled.
  // A settled one need not have reached who was not to report of it. InvalidArgument: it has more than were
  // given.
  Status check_resumed(uint64_t last_sequence) const;
  // For it, then: those behind that one, each with what is settled by now.
  std::vector<proto::Command> commands_after(uint64_t last_sequence) const;

  const std::deque<proto::Command>& commands() const { return commands_; }
  uint64_t next_sequence() const { return sequence_ + 1; }
  bool has(uint64_t sequence) const { return sequence >= first() && sequence <= sequence_; }

  // Its invariants. Internal: which one does not hold.
  Status check() const;

 private:
  uint64_t settled() const { return first() - 1; }  // all up to there are
  uint64_t first() const { return commands_.empty() ? sequence_ + 1 : commands_.front().sequence; }

  proto::JobNumber job_;
  proto::PlanVersion version_;
  std::deque<proto::Command> commands_;
  uint64_t sequence_ = 0;  // of the last one
};

}  // namespace weft::broker
