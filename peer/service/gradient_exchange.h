// How a stage whose replica adds each step's gradients to those of others comes to the step's: the sums of
// its ranges go to the seats that own them while backward still runs, an owner adds all ranges in their order
// (dag/gradient_order.h), and everybody takes the owners' sums in place of what it has. So all update by the
// same bytes, which are those of one executor that computes all ranges. With shared slots an owner makes the
// update, and the others take the weights that come of it (updated_weights.h).
//
// Where the terms name a codec, both ways are written by it. What a reader decodes counts, for an owner as
// well: of others' ranges, and of its own sum. Its own ranges nobody reads, and they stay as they are.
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
#include "compress/codec.h"
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
  // In this order, once a step; send_updated() with shared slots, behind the update. REQUIRES: what
  // GradientSums waits for is there, once.
  Result<std::vector<SentShare>> reduce(uint64_t step, const std::vector<AgreedShare>& ranges);
  Status send_updated(uint64_t step, std::vector<SendingShare>& sent);
  Status gather(const std::vector<AgreedShare>& sums);

 private:
  struct Held {
    SummedTensor gradient{};
    size_t parameter = 0;  // the executor's
    // Of what this seat adds up, until it has: by range, its own.
    std::map<uint32_t, std::unique_ptr<Download>> own{};
    SentShare sum{};  // of all ranges, as others get it, until it is taken; none with shared slots
  };
  GradientExchange(std::shared_ptr<const proto::AssignStage> assignment, Executor& executor)
      : assignment_(std::move(assignment)), executor_(executor) {}
  Status add_gradient(SummedTensor gradient);
  Status put_sum(Held& held, const dag::Tensor& sum);
  Result<dag::Tensor> add_up(Held& held, const std::map<uint32_t, const dag::Tensor*>& of_others);
  SentShare encoded_sum(const Held& held, uint64_t step, const dag::Tensor& sum);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Executor& executor_;
  std::vector<Held> held_;                         // gradients, by number
  std::unique_ptr<StatisticExchange> statistics_;  // if there are any
  compress::Scratch scratch_;
};

}  // namespace weft::peer
