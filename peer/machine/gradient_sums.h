// What the seats of other replicas send to a stage whose replica adds each step's gradients to theirs: to the
// owner of a tensor the sums of their ranges of microbatches (dag/gradient_order.h), from it the sum of all,
// or with shared slots the weights that came of its update.
// It says what may come and what is there; the bytes lie with whoever runs the tasks. Pure.
//
// Such a tensor has ProgramKind::Sum, its step, and as its edge AgreedTensor::number. Forward: the sum of a
// range, whose number is the microbatch; Backward: what comes from the owner. Of a running statistic there
// are no sums: Forward are the fresh values of all microbatches of a replica (dag/fresh_statistics.h), one
// row for each, under the number of its first range; Backward is the new statistic.
//
// Bounds: the tensors of two steps, for a seat that lacks nothing of this one may be one ahead; each once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/fresh_statistics.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

// A gradient that replicas add up, or a running statistic, as the stage's training program knows it.
struct SummedTensor {
  const proto::AgreedTensor* tensor = nullptr;  // of the assignment
  dag::TensorSpec spec{};
  bool is_ours = false;                        // this seat adds up
  std::optional<dag::FreshStatistic> fresh{};  // of a running statistic

  // How its sums travel, unless they are not finite.
  compress::Codec codec(const proto::AssignStage& assign) const;
};
// By number. Empty without exact terms. The assignment outlives them.
std::vector<SummedTensor> summed_tensors(const proto::AssignStage& assign);
// Of a running statistic: what a replica sends of it. REQUIRES: it is one, and the assignment has exact
// terms.
dag::TensorSpec fresh_spec(const proto::AssignStage& assign, const dag::FreshStatistic& fresh,
                           uint32_t replica);
// Whether such a tensor may come to the stage at all. InvalidArgument: it is another than the assignment
// says.
Status check_gradient_sum(const proto::AssignStage& assign, const std::vector<SummedTensor>& gradients,
                          const proto::TensorHeader& header);

class GradientSums {
 public:
  explicit GradientSums(std::shared_ptr<const proto::AssignStage> assignment);

  // `completed`: the steps that the stage has done. InvalidArgument: too late, too early, twice, or another
  // than the assignment says.
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header, uint64_t completed);

  // The step's tasks, once its microbatches are done: Reduce, when the sums of all other replicas' ranges
  // that the stage adds up are there, and Gather, when all is that it takes of other owners. Nothing:
  // something has not come.
  std::optional<Task> next(uint64_t step);
  // Whether a task of these comes before the stage does anything else: before its update, or after it.
  bool are_due(uint64_t step, bool updated) const;
  // Gather comes after the update, and the step ends with it: what others send is what came of theirs.
  bool end_step() const { return !gradients_.empty() && shares_slots(*assignment_); }
  // The seat whose tensor was the last of either; nothing where none had to come.
  std::optional<plan::Seat> last_to_come(uint64_t step, bool sums) const;
  void finish(uint64_t step) { arrived_.erase(step); }

 private:
  struct Arrived {
    std::set<std::pair<uint32_t, uint32_t>> ranges{};  // by number and range
    std::set<uint32_t> sums{};                         // by number
    std::optional<plan::Seat> last_range{}, last_sum{};
  };
  const Arrived* arrived(uint64_t step) const;
  bool are_ranges_there(uint64_t step) const;
  bool are_sums_there(uint64_t step) const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  std::vector<SummedTensor> gradients_;
  uint64_t awaited_ranges_ = 0, awaited_sums_ = 0;  // in each step
  std::map<uint64_t, Arrived> arrived_;             // by step
  bool is_reduced_ = false;                         // handed out, of the step under way
  uint64_t given_ = 0;                              // the last step of which both tasks were
};

}  // namespace weft::peer
