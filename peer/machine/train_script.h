// The script of a training run's stage, evaluations and predictions included: which task comes next, by the
// broker's commands and by what has come (arrivals.h), and what to report. Pure.
//
// Order: commands strictly as they came, by their sequence numbers; within a step the rule of plan/schedule.h
// (1F1B); segments of a microbatch and microbatches of a segment ascending, so that every sum has its terms
// in one order; where replicas add each step's gradients, before its update: the sums of what is owned here,
// then those of other owners, or with shared slots after it what came of theirs; where they make local steps,
// after the last one of a round: what the replica has learnt, the means of what is added up here, the agreed
// weights. Tasks are handed out ahead of the one that runs, so that whoever runs them, in order, never waits
// for this machine: what is handed out and what is done are two places in the same sequence.
//
// Bounds: kCommandsMax commands that are not carried out; Options::tasks_ahead tasks that are not done.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/agreement_turns.h"
#include "peer/machine/agreements.h"
#include "peer/machine/arrivals.h"
#include "peer/machine/given.h"
#include "peer/machine/gradient_sums.h"
#include "peer/machine/pass_tally.h"
#include "peer/machine/step_tally.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

// What has come for a stage. It outlives the stage's script.
struct StageInputs {
  Arrivals& arrivals;
  Agreements& agreements;
  GradientSums& sums;
};

class TrainScript {
 public:
  static constexpr size_t kCommandsMax = 1024;

  struct Options {
    // Handed out and not done, the one that runs included. A peer takes two, so that its compute thread does
    // not wait for the loop (docs/RESULTS.md, Task gap); one shows a test every order.
    uint32_t tasks_ahead = 1;
    // Of longer ones one is out at a time: beside them the loop is quick, and what is handed out early may be
    // a forward where a moment later a backward would have come, which others wait for.
    Duration tasks_ahead_up_to = std::chrono::milliseconds(4);
  };
  // The script asks for data and finishes what has come.
  TrainScript(std::shared_ptr<const proto::AssignStage> assignment, const StageInputs& inputs,
              const Options& options);

  // Errors: InvalidArgument for what cannot be from a broker that keeps the protocol. Commands are numbered
  // from 1 without a gap; what came already is ignored, and norms of steps that are done, for a broker may.
  Status on_command(const proto::Command& command);
  Status on_norm(const proto::GradientNorm& norm);
  // What a replica has sent for the round after so many steps is not finite. False: it is not its time.
  bool refuse_not_finite(uint32_t replica, uint64_t steps_before);
  // In the order in which they were handed out.
  void on_task_done(Instant now, const Task& task, const TaskOutcome& outcome);

  // The next task, to be run behind those handed out before; nothing while tasks_ahead are not done, and when
  // it would copy the state and `may_copy` says that there is no room for that yet.
  std::optional<Task> next_task(Instant now, bool may_copy);
  bool copies_next() const;        // its next task, once it may have one, is to copy the state
  size_t snapshots_ahead() const;  // handed out and not done
  std::vector<proto::Message> take_reports() { return std::exchange(reports_, {}); }

  uint64_t completed_step() const { return completed_; }
  uint64_t last_sequence() const { return last_sequence_; }
  uint64_t committed() const { return committed_; }
  uint64_t settled() const { return settled_; }
  uint64_t keep_from() const { return keep_from_; }
  std::optional<proto::StageWork> work(Instant now) const;
  bool is_idle() const { return commands_.empty() && tasks_.empty(); }

 private:
  // Of segments: of the training program, and of all of them.
  struct Times {
    uint64_t done = 0;
    Duration busy{};
    Duration usual{};  // of all programs, smoothed
  };
  struct Decision {
    double norm = 0;
    bool skip = false;
  };

  void take_reports_of_agreement();
  std::optional<Task> next_segment(proto::ProgramKind kind, uint64_t step, uint32_t first, uint32_t count);
  std::optional<Task> next_of_step(uint64_t last);
  bool has_idle_step() const;
  std::optional<Task> next_update(uint64_t step);
  std::optional<Task> next_of_forward(const proto::Command& command);
  std::optional<Task> next_of_comparison(const proto::Command& command);
  std::optional<Task> next_of(const proto::Command& command, bool& all_given);

  void on_segment_done(const Task& task, const TaskOutcome& outcome);
  void finish_step(Instant now, TaskOutcome update);
  void on_squares_done(const Task& task, const TaskOutcome& outcome);
  void finish_microbatch(const MicrobatchKey& key);
  void finish_forward();
  void finish_comparison();
  void drop_carried_out();
  void pop_command();

  std::shared_ptr<const proto::AssignStage> assignment_;
  Arrivals& arrivals_;
  Agreements& agreements_;
  GradientSums& sums_;
  AgreementTurns turns_;
  Options options_;
  std::deque<proto::Command> commands_;
  uint64_t completed_ = 0;  // steps
  uint64_t granted_ = 0;
  Given given_;
  uint64_t last_sequence_ = 0, committed_ = 0, settled_ = 0, keep_from_ = 0;
  std::deque<Task> tasks_;  // handed out and not done
  Instant running_since_{};
  Times segments_;
  std::map<uint64_t, Decision> decisions_;  // by step
  StepTally tally_;
  TaskOutcome updated_{};       // what an update gave, until the replicas have the same weights
  std::vector<Digest> owed_{};  // of the agreements that the step under way ends
  PassTally passes_;
  std::vector<proto::Message> reports_;
};

}  // namespace weft::peer
