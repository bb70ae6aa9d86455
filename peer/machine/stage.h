// One stage at work: which task comes next. Told which commands, tensors and microbatches of data have come
// and which task is done, it says what to run, what to fetch and what to report. It holds no tensor: those
// lie with whoever runs the tasks, under the same keys. Pure.
//
// Order: commands strictly as they came, by their sequence numbers; within a step the rule of plan/schedule.h
// (1F1B); segments of a microbatch and microbatches of a segment ascending, so that every sum has its terms
// in one order. Tasks are handed out ahead of the one that runs, so that whoever runs them, in order, never
// waits for this machine: what is handed out and what is done are two places in the same sequence.
//
// Bounds: kCommandsMax commands that are not carried out; Options::tasks_ahead tasks that are not done;
// tensors of kStepsAhead steps; data of the microbatches in flight and what Options says of prefetching more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "proto/messages.h"

namespace weft::peer {

// A microbatch of data, or of tensors that other stages send.
struct MicrobatchKey {
  proto::ProgramKind program = proto::ProgramKind::Train;
  uint64_t step = 0;
  uint32_t microbatch = 0;
  auto operator<=>(const MicrobatchKey&) const = default;
};

enum class TaskKind : uint8_t {
  Segment,   // run `segment` of the program for the microbatch
  Squares,   // sums of squares of the gradients; of a comparison, after each of its passes
  Update,    // squares too, when `with_squares`
  Snapshot,  // copy the state after `step`, for a checkpoint or a round of replication
};
struct Task {
  TaskKind kind = TaskKind::Segment;
  MicrobatchKey key{};  // for all but Segment only `step` counts
  uint32_t segment = 0;
  bool first_segment = false, last_segment = false;  // of the microbatch on this stage
  bool with_squares = false;
  double norm = 0;             // for Update with clip_norm
  bool skip = false;           // an Update that is none: what the step has changed is undone
  uint64_t skipped_steps = 0;  // for Update those before its step; of a Snapshot those in it
  uint64_t sequence = 0;       // of the command that it belongs to
  bool durable = true;         // of a Snapshot: for a checkpoint
  bool direct = false;         // of a Snapshot: others fetch it here
};

// What a task gave, tensors aside.
struct TaskOutcome {
  Duration busy{};
  // Of outputs in the segment that was run. An evaluation of several losses gives one number each.
  std::vector<double> loss{}, correct{}, counted{};
  std::vector<double> squares;
  std::vector<double> statistics;  // sums of squares too, of running statistics; with `squares`
};

class StageMachine {
 public:
  static constexpr size_t kCommandsMax = 1024;
  // Behind a neighbour that needs nothing back (its parameters do not train) this stage may be as many steps
  // as the broker grants ahead.
  static constexpr uint64_t kStepsAhead = 16;

  struct Options {
    // Of data, beyond those in flight: at least so many, and of small ones as many as take prefetch_bytes,
    // for a broker far away answers late.
    uint32_t prefetch_microbatches = 4, prefetch_microbatches_max = 32;
    uint64_t prefetch_bytes = 4 << 20;
    // Handed out and not done, the one that runs included. A peer takes two, so that its compute thread does
    // not wait for the loop (docs/RESULTS.md, Task gap); one shows a test every order.
    uint32_t tasks_ahead = 1;
    // Of longer ones one is out at a time: beside them the loop is quick, and what is handed out early may be
    // a forward where a moment later a backward would have come, which others wait for.
    Duration tasks_ahead_up_to = std::chrono::milliseconds(4);
  };
  explicit StageMachine(std::shared_ptr<const proto::AssignStage> assignment)
      : StageMachine(assignment, Options{}) {}
  StageMachine(std::shared_ptr<const proto::AssignStage> assignment, Options options);

  // Errors: InvalidArgument for what cannot be from a broker or neighbour that keeps the protocol. Commands
  // are numbered from 1 without a gap; those that came already are ignored, for a broker may repeat them.
  Status on_command(const proto::Command& command);
  // Of a step that is completed: ignored, for the same reason.
  Status on_norm(const proto::GradientNorm& norm);
  // A tensor from another stage; its bytes are kept by the caller until the task that reads it has run.
  // Tensors of this plan that come too late, twice or too early are errors; a plan that is no more was sorted
  // out before.
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header);
  // `sample_position`: of the microbatch's first sample in the endless sequence.
  Status on_data(const MicrobatchKey& key, uint64_t sample_position);
  // In the order in which they were handed out.
  void on_task_done(Instant now, const Task& task, const TaskOutcome& outcome);

  // The next task, to be run behind those handed out before; nothing while tasks_ahead are not done, and when
  // it would copy the state and `may_copy` says that there is no room for that yet.
  std::optional<Task> next_task(Instant now, bool may_copy = true);
  bool copies_next() const;  // its next task, once it may have one, is to copy the state
  // Microbatches of data to ask the broker for, each once.
  std::vector<MicrobatchKey> fetches();
  // What to tell the broker, in order.
  std::vector<proto::Message> take_reports();
  // Keys whose tensors and data are not needed any more.
  std::vector<MicrobatchKey> take_finished();

  const proto::AssignStage& assignment() const { return *assignment_; }
  uint64_t completed_step() const { return completed_; }
  uint64_t last_sequence() const { return last_sequence_; }  // of the commands that came
  // What the broker will never ask about again, by the newest command (proto::Command).
  uint64_t committed() const { return committed_; }
  uint64_t settled() const { return settled_; }
  uint64_t keep_from() const { return keep_from_; }
  // How far the training program's segments have come, the one that runs now included; nothing without one.
  std::optional<proto::StageWork> work(Instant now) const;
  bool is_idle() const { return commands_.empty() && tasks_.empty(); }
  size_t snapshots_ahead() const;  // handed out and not done

 private:
  struct Program {
    const proto::StageProgram* stage = nullptr;
    std::vector<std::vector<uint32_t>> edges_of_segment;  // indices into stage->receives
    std::map<uint32_t, uint32_t> receive_of_edge;
    std::optional<uint32_t> data_segment;  // the first that reads data
    uint64_t data_bytes = 0;               // of a microbatch
  };
  struct DataRange {
    MicrobatchKey next;
    uint64_t last_step = 0;
    uint32_t first_microbatch = 0, end_microbatch = 0;  // of each step
  };

  struct Data {
    uint64_t sample_position = 0, arrival = 0;
  };

  const Program* program(proto::ProgramKind kind) const;
  bool inputs_are_there(const Program& program, const MicrobatchKey& key, uint32_t segment) const;
  std::optional<plan::Seat> last_to_come(const Task& task) const;
  void end_wait(Instant now, const Task& task);
  std::optional<Task> next_segment(proto::ProgramKind kind, uint64_t step, uint32_t first, uint32_t count);
  std::optional<Task> next_of_step();
  std::optional<Task> next_of_forward(const proto::Command& command);
  std::optional<Task> next_of_comparison(const proto::Command& command);
  std::optional<Task> next_of(const proto::Command& command, bool& all_given);
  Status check(const proto::Command& command) const;
  void drop_carried_out();
  void pop_command();
  void begin_step(Instant now);
  void finish_step(Instant now);
  void finish_forward();
  void finish_comparison();
  void finish_microbatch(const MicrobatchKey& key);
  uint32_t microbatches() const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  Options options_;
  uint32_t prefetch_ = 0;  // microbatches of data beyond those in flight
  std::map<proto::ProgramKind, Program> programs_;

  std::deque<proto::Command> commands_;
  uint64_t completed_ = 0;  // steps
  uint64_t granted_ = 0;
  // How far tasks are handed out: of which command, and within it.
  size_t at_command_ = 0;
  uint64_t at_step_ = 0;                      // the last whose update was handed out
  std::vector<uint32_t> microbatches_given_;  // by segment, of the step or forward pass under way
  bool squares_given_ = false;
  uint64_t skipped_given_ = 0;  // steps of the run so far
  uint64_t last_sequence_ = 0, committed_ = 0, settled_ = 0, keep_from_ = 0;
  std::deque<Task> tasks_;  // handed out and not done
  Instant running_since_{};
  uint32_t forward_done_ = 0;  // microbatches of the forward pass under way
  uint64_t arrivals_ = 0;      // of tensors and data: numbers them
  std::map<MicrobatchKey, std::map<uint32_t, uint64_t>> arrived_;  // edges, and the numbers of their arrivals
  std::map<MicrobatchKey, Data> data_;
  std::deque<DataRange> data_ranges_;
  uint32_t data_outstanding_ = 0;  // asked for and not finished with

  std::vector<double> losses_;
  std::vector<uint64_t> sample_positions_;
  std::vector<double> squares_;
  bool squares_done_ = false, statistics_diverged_ = false;
  struct Decision {
    double norm = 0;
    bool skip = false;
  };
  std::map<uint64_t, Decision> decisions_;  // by step
  Duration busy_{};
  uint64_t segments_done_ = 0;  // of the training program, and the time they took
  Duration segments_busy_{};
  Duration segment_usual_{};  // of all programs, smoothed
  Instant step_began_{};
  std::optional<Instant> waits_since_;     // nothing runs, because the command at hand lacks something
  std::map<plan::Seat, Duration> waited_;  // in this step, by the seat whose tensor ended the wait
  proto::EvaluationReport evaluation_;
  uint32_t passes_given_ = 0;  // of a comparison
  proto::ComparisonReport comparison_;

  std::vector<proto::Message> reports_;
  std::vector<MicrobatchKey> finished_;
};

}  // namespace weft::peer
