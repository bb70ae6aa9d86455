// Runs a (stage's) graph on a backend: borrows its weights and optimizer slots from a State, holds its
// constants, its gradients and the arenas of the microbatches in flight, and shares a Scratch for what lives
// within one task. It decides nothing: what runs, in
// which order, and where values lie was planned before (peer/program.h). What it asks of the backend may
// still be under way when a call returns; functions that return a tensor or numbers wait, those that return a
// Download do not. One thread drives an executor. The backend must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "peer/backend/backend.h"
#include "peer/group_work.h"
#include "peer/program.h"
#include "peer/running_statistics.h"
#include "peer/scratch.h"
#include "peer/state.h"

namespace weft::peer {

// What one microbatch needs between its first task and its last, and between two of them keeps.
class MicrobatchMemory {
 public:
  StepContext context;
  dag::GradientTurn turn{};      // which part its gradients are of the step's
  bool keeps_statistics = true;  // false: running statistics stay as they were

 private:
  friend class Executor;
  std::unique_ptr<Memory> arena_;
  std::vector<View> bound_;  // in the order of ExecutorOptions::bound
  uint32_t number_ = 0;      // among its executor's
};

struct ExecutorOptions {
  bool accumulates = false;          // more than one microbatch a step
  bool sums_ranges = false;          // in more than one range (dag/gradient_order.h)
  std::vector<dag::ValueId> kept{};  // stays readable, as outputs do
  // Empty: all ops in segment 0, and what is readable stays so for as long as the microbatch. With segments
  // other microbatches run between them, and it stays so until another one is run or given values.
  std::vector<uint32_t> segment_of_op{};
  std::shared_ptr<Scratch> scratch{};             // nothing: its own
  std::optional<dag::OptimizerSpec> optimizer{};  // its slots are claimed; for update()
  // Of the parameters those that update() changes and squares are of, in their order: others have no slots.
  // Nothing: all.
  std::optional<std::set<std::string, std::less<>>> updated{};
  bool updates(std::string_view parameter) const { return !updated || updated->contains(parameter); }
  bool undoes_statistics = false;  // memory for keep_statistics()
  // Inputs and outputs that lie where bind() says. Without segments.
  std::vector<dag::ValueId> bound{};
  Precision precision{};
  bool rows_alone = false;  // of programs that only go forward: GroupSignature::rows_alone
};

// Told before and after each group's kernel; for the profiler, which has the clock.
using KernelObserver = std::function<void(size_t group, bool begins)>;

class Executor {
 public:
  // Makes all kernels and takes all persistent memory, a block beside the state's; claims initializers and
  // optimizer slots that `state` does not hold yet, which are zero until written there.
  // Errors: Unsupported (no kernel, a precision that the backend lacks), ResourceExhausted, with the op that
  // failed; what State::claim says.
  static Result<std::unique_ptr<Executor>> create(std::shared_ptr<const dag::Graph> graph,
                                                  std::shared_ptr<State> state, ExecutorOptions options);

  const dag::Graph& graph() const { return *graph_; }
  State& state() { return *state_; }
  const Program& program() const { return program_; }
  const Kernel& kernel(size_t group) const { return *kernels_[group]; }
  // Bytes of device memory: held for gradients, constants and what is made once a step, beside the state;
  // needed of the Scratch; held for each microbatch in flight.
  Bytes persistent_bytes() const { return persistent_bytes_; }
  Bytes scratch_bytes() const { return program_.scratch + program_.workspace; }
  Bytes microbatch_bytes() const { return program_.arena; }

  Result<std::unique_ptr<MicrobatchMemory>> make_microbatch();

  // By the input's name, or by value for what other stages sent. With segments: just before that of the input
  // is run, for its place may be another microbatch's until then.
  Status set_input(MicrobatchMemory& microbatch, std::string_view name, const dag::Tensor& tensor);
  Status set_value(MicrobatchMemory& microbatch, dag::ValueId value, const dag::Tensor& tensor);
  // Where a bound value lies from now on; an input is to be there before run(), an output is after it. The
  // bytes stay its owner's. REQUIRES: the value is one of ExecutorOptions::bound, and all of them have a
  // place before run().
  void bind(MicrobatchMemory& microbatch, dag::ValueId value, View view) const;
  // The same on the device: what `value` holds in another executor's microbatch, readable there. It is copied
  // as it is now. REQUIRES: one backend. Errors: InvalidArgument unless both are plain and of one
  // spec.
  Status copy_value(MicrobatchMemory& microbatch, dag::ValueId input, const Executor& from,
                    const MicrobatchMemory& source, dag::ValueId value);
  // Runs the ops of one segment; writes state updates (running statistics) back as they come. Where the state
  // has changed since, what is made once a step is made before.
  Status run(MicrobatchMemory& microbatch, uint32_t segment = 0);
  // An output or kept value, as it is now. REQUIRES: its segment has run, and, with segments, was the last to
  // run. Errors: Unsupported for an encoding
  // that the backend does not know.
  Result<std::unique_ptr<Download>> begin_value(const MicrobatchMemory& microbatch, dag::ValueId value,
                                                const Encoding& encoding = {});
  Result<dag::Tensor> value(const MicrobatchMemory& microbatch, dag::ValueId value);

  // The optimizer's side: parameters are the graph's Gradient outputs, in the order of its initializers.
  struct Parameter {
    std::string name;
    dag::TensorSpec spec;
  };
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Sum of squares of each updated parameter's accumulated gradient, in parameter order: f64[those].
  Result<std::unique_ptr<Download>> begin_gradient_squares();
  Result<std::vector<double>> gradient_squares();
  Result<dag::Tensor> gradient(size_t parameter);
  // For who adds it to those of others, and puts the sum in its place; and the segment with which a
  // microbatch's part is in it.
  const TensorView& gradient_place(size_t parameter) const { return parameter_gradients_[parameter]; }
  uint32_t segment_of_gradient(size_t parameter) const { return gradient_segments_[parameter]; }
  // REQUIRES: ExecutorOptions::optimizer.
  Status update(const dag::UpdateStep& step);
  // The running statistics as they are now, and back to them. REQUIRES: ExecutorOptions::undoes_statistics.
  Status keep_statistics();
  Status undo_statistics();
  // f64[running statistics]: one that is not finite has such a sum of squares. Nothing where there are none.
  Result<std::unique_ptr<Download>> begin_statistic_squares();

  // Runs are not recorded while there is one.
  void set_observer(KernelObserver observer) { observer_ = std::move(observer); }

 private:
  Executor(std::shared_ptr<const dag::Graph> graph, std::shared_ptr<State> state, ExecutorOptions options)
      : graph_(std::move(graph)),
        state_(std::move(state)),
        backend_(state_->backend()),
        options_(std::move(options)) {}
  Status build();
  Status make_kernels(std::vector<GroupSignature>& groups);
  Status claim_state();
  Status take_persistent_memory();
  void list_parameters();
  std::vector<TensorView> statistics() const;
  Status run_segment(MicrobatchMemory& microbatch, uint32_t segment);
  Status run_groups(MicrobatchMemory& microbatch, uint32_t segment, const StepContext& context);
  View place_of(const MicrobatchMemory& microbatch, dag::ValueId value) const;
  View workspace() const { return options_.scratch->at(program_.scratch.value); }
  View sum_of(const dag::GradientTurn& turn, uint32_t slot) const;
  Status after_group(MicrobatchMemory& microbatch, uint32_t group);
  Status copy_bound_outputs(const MicrobatchMemory& microbatch);
  Status end_range(const dag::GradientTurn& turn, uint32_t slot);

  std::shared_ptr<const dag::Graph> graph_;
  std::shared_ptr<State> state_;
  Backend& backend_;
  ExecutorOptions options_;
  Program program_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<GroupWork> work_;  // by group

  std::unique_ptr<Memory> persistent_;                      // constants, gradients, what is made once a step
  std::vector<View> initializers_, constants_, gradients_;  // by slot
  std::vector<View> range_sums_;                            // by gradient slot: of ranges but the first

  std::vector<Parameter> parameters_;
  std::vector<TensorView> parameter_gradients_;  // by parameter
  std::vector<uint32_t> gradient_segments_;      // likewise
  std::vector<ParameterUpdate> updates_;         // by updated parameter, with an optimizer
  RunningStatistics statistics_;
  Bytes persistent_bytes_;
  int64_t step_offset_ = 0;  // in persistent_: what is made once a step
  uint64_t step_of_ = 0;     // and of which version of the state it was made
  KernelObserver observer_;
  std::vector<View> input_views_, output_views_;  // reused by run()
  uint32_t microbatches_made_ = 0;
  std::unique_ptr<Recordings> recordings_;  // last: it goes before the memory that it refers to
};

}  // namespace weft::peer
