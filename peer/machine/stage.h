// One stage at work: which task comes next. Told which commands, tensors and microbatches of data have come
// and which task is done, it says what to run, what to fetch and what to report. It holds no tensor: those
// lie with whoever runs the tasks, under the same keys. Pure.
//
// Order: commands strictly as they came; within a step the rule of plan/schedule.h (1F1B); segments of a
// microbatch and microbatches of a segment ascending, so that every sum has its terms in one order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  Segment,      // run `segment` of the program for the microbatch
  Squares,      // sums of squares of the gradients
  Update,       // squares too, when `with_squares`
  Snapshot,     // copy the state after `step`, for a checkpoint
  TakeWeights,  // copy the trained weights into the evaluation's program
};
struct Task {
  TaskKind kind = TaskKind::Segment;
  MicrobatchKey key;  // for all but Segment only `step` counts
  uint32_t segment = 0;
  bool first_segment = false, last_segment = false;  // of the microbatch on this stage
  bool with_squares = false;
  double norm = 0;  // for Update with clip_norm
};

// What a task gave, tensors aside.
struct TaskOutcome {
  Duration busy{};
  std::optional<double> loss, correct, counted;  // of outputs in the segment that was run
  std::vector<double> squares;
};

class StageMachine {
 public:
  struct Options {
    uint32_t prefetch_microbatches = 4;  // of data, beyond those in flight
  };
  explicit StageMachine(std::shared_ptr<const proto::AssignStage> assignment)
      : StageMachine(assignment, Options{}) {}
  StageMachine(std::shared_ptr<const proto::AssignStage> assignment, Options options);

  // Errors: InvalidArgument for what cannot be from a broker or neighbour that keeps the protocol.
  Status on_command(const proto::Command& command);
  Status on_norm(const proto::GradientNorm& norm);
  // A tensor from another stage; its bytes are kept by the caller until the task that reads it has run.
  // Tensors of this plan that come too late, twice or too early are errors; a plan that is no more was sorted
  // out before.
  Status on_tensor(uint32_t from_stage, const proto::TensorHeader& header);
  Status on_data(const MicrobatchKey& key);
  void on_task_done(Instant now, const Task& task, const TaskOutcome& outcome);

  // The next task, at most one at a time: nothing until on_task_done().
  std::optional<Task> next_task(Instant now);
  // Microbatches of data to ask the broker for, each once.
  std::vector<MicrobatchKey> fetches();
  // What to tell the broker, in order.
  std::vector<proto::Message> take_reports();
  // Keys whose tensors and data are not needed any more.
  std::vector<MicrobatchKey> take_finished();

  const proto::AssignStage& assignment() const { return *assignment_; }
  uint64_t completed_step() const { return completed_; }
  bool is_idle() const { return commands_.empty() && !running_; }

 private:
  struct Program {
    const proto::StageProgram* stage = nullptr;
    std::vector<std::vector<uint32_t>> edges_of_segment;  // indices into stage->receives
    std::map<uint32_t, uint32_t> receive_of_edge;
    std::optional<uint32_t> data_segment;  // the first that reads data
  };
  struct DataRange {
    MicrobatchKey next;
    uint64_t last_step = 0;
    uint32_t first_microbatch = 0, end_microbatch = 0;  // of each step
  };

  const Program* program(proto::ProgramKind kind) const;
  bool inputs_are_there(const Program& program, const MicrobatchKey& key, uint32_t segment) const;
  std::optional<Task> next_segment(proto::ProgramKind kind, uint64_t step, uint32_t first, uint32_t count);
  std::optional<Task> next_of_step();
  std::optional<Task> next_of_forward();
  Task start(Task task);
  void finish_step(Instant now);
  void finish_forward();
  void finish_microbatch(const MicrobatchKey& key);
  uint32_t microbatches() const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  Options options_;
  std::map<proto::ProgramKind, Program> programs_;

  std::deque<proto::Command> commands_;
  uint64_t completed_ = 0;  // steps
  uint64_t granted_ = 0;
  std::optional<Task> running_;
  std::vector<uint32_t> done_of_segment_;                // of the step or forward pass under way
  std::map<MicrobatchKey, std::set<uint32_t>> arrived_;  // edges
  std::set<MicrobatchKey> data_;
  std::deque<DataRange> data_ranges_;
  uint32_t data_outstanding_ = 0;  // asked for and not finished with
  bool weights_taken_ = false;

  std::vector<double> losses_;
  std::vector<double> squares_;
  bool squares_done_ = false;
  std::map<uint64_t, double> norms_;
  Duration busy_{};
  Instant step_began_{};
  proto::EvaluationReport evaluation_;

  std::vector<proto::Message> reports_;
  std::vector<MicrobatchKey> finished_;
};

}  // namespace weft::peer
