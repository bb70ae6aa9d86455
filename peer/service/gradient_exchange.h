// How a stage whose replica adds each step's gradients to those of others comes to the step's: the sums of
// its ranges go to the seats that own them while backward still runs, an owner adds all ranges in their order
// (dag/gradient_order.h), and everybody takes the owners' sums in place of what it has. So all update by the
// same bytes, which are those of one executor that computes all ranges.
//
// Running statistics go the same ways (statistic_exchange.h).
//
// In host memory: of each tensor that this seat owns the sums of its own ranges and of the step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "peer/executor.h"
#include "peer/machine/gradient_sums.h"
#include "peer/machine/task.h"
#include "peer/service/share.h"
#include "peer/service/statistic_exchange.h"

namespace weft::peer {

class GradientExchange {
 public:
  // `executor`: of the training program, over `state`; outlives this. Unsupported: a gradient that is not
  // float32.
  static Result<std::unique_ptr<GradientExchange>> create(
      std::shared_ptr<const proto::AssignStage> assignment, Executor& executor, std::shared_ptr<State> state);

  // Of the segment that has just run in `microbatch`: what is complete with it. What this seat adds up stays.
  Status after_segment(const Task& task, const MicrobatchMemory& microbatch, std::vector<SendingShare>& sent);
  // In this order, once a step. REQUIRES: what GradientSums waits for is there, once.
  Result<std::vector<SentShare>> reduce(uint64_t step, const std::vector<AgreedShare>& ranges);
  Status gather(const std::vector<AgreedShare>& sums);

 private:
  struct Held {
    SummedTensor gradient{};
    size_t parameter = 0;  // the executor's
    // Of what this seat adds up, until it has: by range, its own.
    std::map<uint32_t, std::unique_ptr<Download>> own{};
    dag::Tensor sum{};  // until it is taken
  };
  GradientExchange(std::shared_ptr<const proto::AssignStage> assignment, Executor& executor)
      : assignment_(std::move(assignment)), executor_(executor) {}
  Status add_gradient(SummedTensor gradient);
  Result<dag::Tensor> add_up(Held& held, const std::map<uint32_t, const dag::Tensor*>& of_others);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Executor& executor_;
  std::vector<Held> held_;                         // gradients, by number
  std::unique_ptr<StatisticExchange> statistics_;  // if there are any
};

}  // namespace weft::peer
