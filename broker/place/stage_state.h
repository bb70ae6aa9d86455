// Which tensors of a job's state a stage has: its weights, and what its replica keeps beside them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "broker/events.h"

namespace weft::broker {

// Under which number a state has what the stage's replica keeps for itself: replicas that make local steps
// each have slots of their own, of all others there is one set.
inline uint32_t own_set(const proto::AssignStage& stage) { return stage.local ? stage.seat.replica : 0; }

// What a run goes on from, by key.
class SavedState {
 public:
  explicit SavedState(const StartPlanning& request);  // which outlives it

  bool empty() const { return tensors_.empty(); }
  const proto::TensorReference* find_weight(const std::string& initializer) const;
  const proto::TensorReference* find(const dag::StateKey& key) const;
  // Of how many replicas each has slots of its own in it; 1 where there are none.
  uint32_t replicas() const { return replicas_; }
  uint64_t step() const { return checkpoint_ != nullptr ? checkpoint_->step : 0; }
  uint64_t made() const { return checkpoint_ != nullptr ? checkpoint_->made() : 0; }  // steps of the run
  // Up to it, those in which that replica's optimizer updated nothing.
  uint64_t skipped_steps(uint32_t replica) const;

 private:
  std::map<dag::StateKey, const proto::TensorReference*> tensors_;
  uint32_t replicas_ = 1;
  const CheckpointCommitted* checkpoint_ = nullptr;  // none: from the start
};

// `stage` outlives it: its seat, its training, what it agrees about; and its tensors, for has().
class StageState {
 public:
  explicit StageState(const proto::AssignStage& stage);

  // What `saved` has beside the weight, under the keys of the stage's replica. A replica that was not among
  // those goes on with the first one's slots, and owes nothing.
  void add_beside(const SavedState& saved, const std::string& initializer,
                  std::vector<proto::TensorReference>& into) const;
  // Whether a snapshot of the stage holds a tensor of that key.
  bool has(const dag::StateKey& key) const;

 private:
  // Which parts of it the stage takes the mean of, or adds up; 0: it is whole.
  const std::set<uint32_t>& owned(std::string_view initializer) const;
  bool has_slots(std::string_view initializer) const;

  const proto::AssignStage& stage_;
  std::set<std::string_view> names_;
  std::map<std::string_view, std::set<uint32_t>> owned_;  // of all that it agrees about
};

}  // namespace weft::broker
