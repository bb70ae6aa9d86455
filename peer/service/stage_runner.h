// Runs a stage's tasks on a backend: its programs' executors, the arenas of microbatches in flight, the state
// that a checkpoint copies. Belongs to the thread that drives the backend.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"
#include "peer/executor.h"
#include "peer/machine/stage.h"
#include "peer/scratch.h"
#include "peer/service/followed_means.h"
#include "peer/service/gradient_exchange.h"
#include "peer/service/seat_agreement.h"
#include "peer/state.h"
#include "proto/messages.h"

namespace weft::peer {

class StageRunner {
 public:
  // `tensors` gives the bytes that a reference names. Errors: what Executor::create says; NotFound for an
  // initializer without a tensor; InvalidArgument when a tensor is not what the graph expects. A follower's
  // asks for none, and keeps what it is told of agreements, until load().
  using TensorSource = std::function<Result<dag::Tensor>(const proto::TensorReference&)>;
  static Result<std::unique_ptr<StageRunner>> create(std::shared_ptr<const proto::AssignStage> assignment,
                                                     const TensorSource& tensors, Backend& backend);

  // A follower's, once: its tensors, and then all that the others have agreed on since. Errors: as create,
  // and ResourceExhausted.
  Status load(const TensorSource& tensors);

  Bytes persistent_bytes() const;  // what all programs share, and the one microbatch that others hold
  Bytes microbatch_bytes()
      const;  // each in flight of the program that the stage is for: training, if it does

  // What a task reads: the tensors received for its segment, by the index of their end in
  // StageProgram::receives (of a pass: by edge), and the microbatch of data, by the name of the graph's
  // input.
  struct Inputs {
    std::vector<std::pair<uint32_t, dag::Tensor>> received;
    std::map<std::string, dag::Tensor> data;
    int64_t sample_position = 0;
    std::vector<AgreedShare> agreed{};  // what other replicas sent, of the tasks that read it
  };
  struct Output {
    TaskOutcome outcome;
    std::vector<std::pair<uint32_t, dag::Tensor>> sends;  // by index in StageProgram::sends
    struct Named {
      dag::StateKey key;
      dag::Tensor tensor;
    };
    std::vector<Named> snapshot;     // of a Snapshot
    std::vector<Named> predictions;  // outputs of the model in this segment; slot None
    std::vector<SentShare> agreed;   // for the seats of other replicas
  };
  // A task that the device has been given: the same, on its way. Any thread waits, for all of it or, part by
  // part, for what it needs; the runner may take the next task meanwhile, and may be gone.
  struct Submitted {
    struct Numbers {
      std::vector<double> TaskOutcome::*into;
      std::unique_ptr<Download> values;
    };
    struct Named {
      dag::StateKey key;
      std::unique_ptr<Download> tensor;
    };
    std::vector<Numbers> numbers;
    std::unique_ptr<Timer> busy;
    std::vector<std::pair<uint32_t, std::unique_ptr<Download>>> sends;
    std::vector<Named> snapshot, predictions;
    std::vector<SentShare> agreed;
    std::vector<SendingShare> sums;  // for the same
    std::optional<replicas::Outlier> refused;
    std::optional<Digest> owed;
    std::optional<replicas::ShownPiece> shown;
  };
  // Errors: Cancelled once a task has failed: what was handed out behind it builds on it.
  Result<Submitted> submit(const Task& task, const Inputs& inputs);
  // Waits. Errors: of the device.
  static Result<TaskOutcome> take_outcome(Submitted& submitted);
  static Result<Output> take(Submitted submitted);
  // What of the weights was not finite when replicas agreed, if that is what a task failed for.
  std::optional<dag::StateKey> not_finite() const;
  // Both.
  Result<Output> run(const Task& task, const Inputs& inputs);

 private:
  struct Program {
    const proto::StageProgram* stage = nullptr;
    std::unique_ptr<Executor> executor;
    std::map<uint32_t, std::unique_ptr<MicrobatchMemory>> active;
    std::vector<std::unique_ptr<MicrobatchMemory>> free;
  };
  StageRunner(std::shared_ptr<const proto::AssignStage> assignment, Backend& backend)
      : assignment_(std::move(assignment)),
        state_(std::make_shared<State>(backend)),
        scratch_(std::make_shared<Scratch>(backend)) {}
  Status add_program(const proto::StageProgram& stage);
  Status load_state(const TensorSource& tensors);
  Status submit_to_device(const Task& task, const Inputs& inputs, Submitted& submitted);
  Status run_segment(const Task& task, const Inputs& inputs, Submitted& submitted);
  Result<MicrobatchMemory*> microbatch_of(const Task& task, Program& program);
  Status begin_outputs(const Task& task, Program& program, MicrobatchMemory& microbatch,
                       Submitted& submitted);
  Status begin_squares(Submitted& submitted);
  Status update(const Task& task, Submitted& submitted);
  Status snapshot(Submitted& submitted);
  Status run_agreement(const Task& task, const Inputs& inputs, Submitted& submitted);
  Status run_sums(const Task& task, const Inputs& inputs, Submitted& submitted);

  std::shared_ptr<const proto::AssignStage> assignment_;
  std::shared_ptr<State> state_;              // of all programs
  std::shared_ptr<Scratch> scratch_;          // likewise
  std::unique_ptr<SeatAgreement> agreement_;  // of a replica that makes local steps
  std::unique_ptr<FollowedMeans> followed_;   // of a follower, until it has what the others have
  bool failed_ = false;
  std::map<proto::ProgramKind, Program> programs_;
  // Of a replica that adds each step's gradients to those of others; it refers to a program's executor.
  std::unique_ptr<GradientExchange> sums_;
};

}  // namespace weft::peer
