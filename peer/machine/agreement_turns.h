// The tasks of an agreement in their order, of a stage whose replica makes local steps: Differ, Mean, Agree.
// Where a round overlaps the next one its Mean comes whenever the differences are there, at the latest before
// the next round's Differ, and its Agree behind that. Who is left out of it (proto::CommandKind::LeaveOut),
// and what the stage refuses to add up (replicas/norm_guard.h). Pure.
#pragma once

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

  // Of the round that ends with that step. Nothing: a tensor has not come, or the others are first to go on
  // without somebody. Task::ends_round: it is the last one.
  std::optional<Task> next(uint64_t step);
  // While the next round is made: the Mean of the one before, for which others wait. To be asked at any time.
  std::optional<Task> next_mean();
  void on_mean_done(uint64_t step, const TaskOutcome& outcome);

  // Carried out at once, or too late: once what the lost ones sent is in a mean, or was agreed on. Else the
  // agreement begins again: what went to a lost owner goes to whoever takes its place. While means are taken
  // it waits for them. `completed`, `given`: the steps that are done, and whose tasks were all handed out.
  // InvalidArgument: no broker that keeps the protocol says so.
  Status leave_out(const proto::Command& command, uint64_t completed, uint64_t given);
  // What a replica sent for the round after so many steps is not finite. False: it is not its time.
  bool refuse_not_finite(uint32_t replica, uint64_t steps_before, uint64_t completed);

  std::vector<proto::Message> take_reports() { return std::exchange(reports_, {}); }

 private:
  bool overlaps(uint64_t step) const { return !agrees_after(assignment_->local->steps, step); }
  std::optional<Task> take_means(uint64_t step);
  Task make(TaskKind kind, uint64_t step) const;
  Task end_round(Task task);
  void answer(const proto::Command& command, bool is_over);
  void refuse(uint64_t step, const replicas::Outlier& outlier);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Agreements& agreements_;
  std::optional<TaskKind> last_{};  // handed out, of the round that ends
  struct Overlapped {
    uint64_t step = 0;  // with which it ended
    bool has_means = false;
  };
  std::optional<Overlapped> overlapped_{};  // the round before, until its Agree
  bool is_taking_means_ = false;            // such a Mean is not done: it may refuse what has come
  bool has_refused_ = false;                // until the replica whose it is is left out
  std::optional<proto::Command> later_{};   // a LeaveOut that came while means were taken
  std::vector<proto::Message> reports_{};
};

}  // namespace weft::peer
