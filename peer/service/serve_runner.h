// Runs a stage of a served model on a backend: derives its parts from the graph, keeps weights and caches,
// and computes passes. At the entry it also draws tokens for requests. Belongs to the thread that drives the
// backend.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"
#include "peer/machine/task.h"
#include "peer/service/stage_runner.h"
#include "proto/messages.h"
#include "serve/ring.h"
#include "serve/spoilt_rows.h"

namespace weft::peer {

class ServeRunner {
 public:
  // Errors: what make_draft, Incremental::derive, serve::Stage::create and RingStage or RingEntry::create
  // say; what `tensors` says. REQUIRES: ServeScript::check has nothing against the assignment.
  static Result<std::unique_ptr<ServeRunner>> create(std::shared_ptr<const proto::AssignStage> assignment,
                                                     const StageRunner::TensorSource& tensors,
                                                     Backend& backend);

  // The same stage in a later version of the plan, beside others perhaps: it goes on with what it has.
  // REQUIRES: but for its links and its version the assignment is the same.
  void take_over(std::shared_ptr<const proto::AssignStage> assignment);

  Bytes persistent_bytes() const { return bytes_; }  // with caches for all positions that may be granted
  Bytes kept_bytes() const { return kept_bytes_; }   // on the host: of all rows that may be kept
  const std::vector<dag::RowSpec>& edges() const;    // of what comes

  // At the entry, elsewhere nothing. What comes of it is told with the next task's outcome.
  void add(const proto::ServeRequest& request);
  void cancel(uint64_t request);

  // What a pass came as, by edge; and how one goes on, to the stage behind.
  using Tensors = std::vector<std::pair<uint32_t, dag::Tensor>>;
  using Send = std::function<void(const proto::TensorHeader&, const dag::Tensor&)>;
  // Errors: InvalidArgument for a pass that is none: whoever sent it breaks the protocol. What the device
  // says. After an error the runner is of no more use: Cancelled.
  Result<TaskOutcome> run(const Task& task, Tensors tensors, const Send& send);

 private:
  ServeRunner(std::shared_ptr<const proto::AssignStage> assignment, Backend& backend)
      : assignment_(std::move(assignment)), backend_(backend) {}
  Status load(const StageRunner::TensorSource& tensors);
  Status make_ring(std::shared_ptr<const dag::Incremental> model, std::unique_ptr<serve::Stage> stage,
                   std::shared_ptr<serve::Draft> draft);
  Result<serve::Pass> pass_of(uint64_t number, Tensors tensors) const;
  Status run_now(const Task& task, Tensors tensors, const Send& send, TaskOutcome& outcome);
  Status begin(const Send& send, TaskOutcome& outcome);
  Status run_stage(const serve::Pass& pass, const Send& send);
  void pass_on(const serve::Pass& pass, std::span<const dag::RowSpec> edges, const Send& send);
  uint64_t numbers() const { return serve::numbers_of(assignment_->plan_version); }
  proto::ServeProgress& told_of(uint64_t request, uint64_t first);
  void count(const serve::Engine::Tick& tick);
  void tell_guesses();
  void on_end(uint64_t request, uint64_t first, proto::ServeEnd end, const Status& status);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Backend& backend_;
  std::unique_ptr<serve::RingStage> stage_;  // one of the two
  std::unique_ptr<serve::RingEntry> entry_;
  Bytes bytes_{}, kept_bytes_{};
  std::map<uint64_t, uint64_t> ids_;          // the engine's, of requests that are open
  std::vector<proto::ServeProgress> told_;    // since the last task
  uint32_t guesses_ = 0, guesses_right_ = 0;  // that were not told
  proto::ServeLoad load_{};                   // likewise
  serve::SpoiltRows spoilt_;                  // of this version of the plan
  uint64_t last_sent_ = 0;                    // pass, as its tensors number it
  bool failed_ = false;
};

}  // namespace weft::peer
