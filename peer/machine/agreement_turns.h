// The tasks of an agreement in their order, of a stage whose replica makes local steps: Differ, Mean, Agree;
// before that Weigh, where the assignment bounds what replicas may send.
// Where a round overlaps the next one its Mean comes whenever the differences are there, at the latest before
// the next round's Differ, and its Agree behind that. Where the next one is waited for, its Agree comes with
// that one's: until then somebody may be left out of both (proto::CommandKind::LeaveOut). Who is, and what
// the stage refuses to add up (replicas/norm_guard.h). Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "peer/machine/agreements.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

class AgreementTurns {
 public:
  // `agreements` is the stage's and outlives this.
  AgreementTurns(std::shared_ptr<const proto::AssignStage> assignment, Agreements& agreements)
      : assignment_(std::move(assignment)), agreements_(agreements) {}

  // Of the round that ends with that step. Nothing: a tensor has not come, the others are first to go on
  // without somebody, or nothing is granted behind it, so that it may yet be told to settle.
  // Task::ends_round: it is the last one.
  std::optional<Task> next(uint64_t step, uint64_t granted);
  // While the next round is made, what others wait for of the one before: its Mean, and first its Differ
  // again, where somebody was left out. To be asked at any time.
  std::optional<Task> next_of_before() { return before_ ? next_of(*before_) : std::nullopt; }
  // Of a Mean, or a Weigh.
  void on_guarded(uint64_t step, const TaskOutcome& outcome);

  // LeaveOut and Settle. The first is carried out at once, or too late: once all was agreed on, or where
  // something is missing that the lost ones were to send for an agreement before. Else the agreement begins
  // again; while means are taken it waits for them. `completed`, `given`: the steps that are done, and whose
  // tasks were all handed out. InvalidArgument: no broker that keeps the protocol says so.
  Status on_command(const proto::Command& command, uint64_t completed, uint64_t given);
  // What a replica sent for the round after so many steps is not finite. False: it is not its time.
  bool refuse_not_finite(uint32_t replica, uint64_t steps_before, uint64_t completed);

  // Whether all have the same weights after that step, with which a round ends.
  bool settles(uint64_t step) const {
    return step == settled_ || agrees_after(assignment_->local->steps, step);
  }
  // The last step that is made, as a command said; nothing: as the terms have it.
  const std::optional<uint64_t>& settled() const { return settled_; }

  std::vector<proto::Message> take_reports() { return std::exchange(reports_, {}); }

 private:
  struct Round {
    uint64_t step = 0;  // with which it ends
    bool has_differed = false, has_means = false, is_weighed = false;
    bool is_due() const { return !has_differed || !has_means; }
  };
  std::optional<Task> next_of(Round& round);
  std::optional<Task> weigh(Round& round);
  std::optional<Task> agree(const Round& round, bool ends);
  Task make(TaskKind kind, uint64_t step) const;
  bool may_be_left_out(uint64_t step, uint64_t completed) const;
  bool can_be_without(const replicas::LeftOut& left_out, uint64_t first) const;
  void answer(const proto::Command& command, bool is_over);
  void refuse(uint64_t step, const replicas::Outlier& outlier);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Agreements& agreements_;
  std::optional<Round> before_{};  // that the one under way overlaps, until its Agree
  std::optional<Round> now_{};     // once the tasks of its end have begun
  bool is_agreeing_ = false;       // the last Agree of the weights that all then have was handed out
  bool is_guarding_ = false;       // a Mean or a Weigh is not done that may refuse what has come
  bool has_refused_ = false;       // until the replica whose it is is left out
  std::optional<uint64_t> settled_{};
  std::optional<proto::Command> later_{};  // a LeaveOut that came meanwhile
  std::vector<proto::Message> reports_{};
};

}  // namespace weft::peer
