// How the replicas of a stage that add each step's gradients come to the running statistics of one machine:
// each sends the fresh values of its microbatches (dag/fresh_statistics.h) to the seat that owns the
// statistic, which blends those of all microbatches in, in their order, by the same ops on its device. The
// others take what came of it. Until then the statistics of the step are what they were before it.
//
// In host memory: a few numbers a channel for each of the share's microbatches.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "peer/executor.h"
#include "peer/machine/gradient_sums.h"
#include "peer/machine/task.h"
#include "peer/service/share.h"

namespace weft::peer {

// What the training program of such a stage has to keep readable.
std::vector<dag::ValueId> fresh_values(const proto::AssignStage& assign, const dag::Graph& training);

class StatisticExchange {
 public:
  // `statistics`: of the assignment, which this keeps. What create() of an executor returns.
  static Result<std::unique_ptr<StatisticExchange>> create(
      std::shared_ptr<const proto::AssignStage> assignment, const proto::StageProgram& training,
      std::vector<SummedTensor> statistics, std::shared_ptr<State> state);

  // Of the segment that has just run in `microbatch`. What is complete with it and belongs to other seats.
  Status after_segment(const Task& task, Executor& training, const MicrobatchMemory& microbatch,
                       std::vector<SendingShare>& sent);
  // What this seat owns, from here on blended. REQUIRES: the whole step's have come, once.
  Status blend(const std::vector<AgreedShare>& fresh);
  // What it owns, as it is now, for the others.
  Result<std::vector<SentShare>> blended(uint64_t step) const;
  Status take(const AgreedShare& blended);
  bool has(uint32_t number) const { return find(number) != nullptr; }

 private:
  using Row = std::vector<std::unique_ptr<Download>>;  // by value; empty: not there yet
  struct Held {
    SummedTensor statistic{};
    std::map<uint32_t, Row> rows{};  // by microbatch
    size_t missing = 0;              // of them all
  };
  StatisticExchange(std::shared_ptr<const proto::AssignStage> assignment, const proto::StageProgram& training,
                    std::shared_ptr<State> state)
      : assignment_(std::move(assignment)), training_(training), state_(std::move(state)) {}
  const Held* find(uint32_t number) const;
  void begin_step(Held& held) const;
  Status build(std::vector<SummedTensor> statistics);
  Status add_own(Held& held, std::map<uint32_t, dag::Tensor>& rows);

  std::shared_ptr<const proto::AssignStage> assignment_;
  const proto::StageProgram& training_;  // the assignment's
  std::shared_ptr<State> state_;
  std::vector<Held> held_;              // by number
  std::unique_ptr<Executor> blending_;  // of what this seat owns, if it owns any
  std::unique_ptr<MicrobatchMemory> microbatch_;
};

}  // namespace weft::peer
