// The stages of a run whose replicas make no step yet (replicas::ReplicaTerms::followers): which of them have
// been given what the others have. Once all have, the run stops with a snapshot that they have a part in, and
// is planned anew with them. Until then what they fetch stays where it is. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "broker/run/planned_run.h"

namespace weft::broker {

class Followers {
 public:
  explicit Followers(const PlannedRun& plan) {
    for (const PlannedStage& stage : plan.stages) {
      replica_of_.push_back(stage.assignment->seat.replica);
      follows_.push_back(is_follower(*stage.assignment));
      is_there_.push_back(!follows_.back());
      replicas_ = std::max(replicas_, size_t{replica_of_.back()} + 1);
    }
  }

  // That stage has what the others have, and has taken what they agreed on since.
  void came(uint32_t stage) { is_there_[stage] = true; }
  // They have a part in a snapshot of that step; and whether they have one in what the run goes back to, if
  // that is of this step.
  void take_part(uint64_t step) { part_since_ = std::min(part_since_, step); }
  bool have_part(uint64_t step) const { return step >= part_since_; }

  bool has(uint32_t stage) const { return follows_[stage]; }
  bool empty() const { return std::find(follows_.begin(), follows_.end(), true) == follows_.end(); }
  // Some are not there yet; and there are some, and all are.
  bool are_awaited() const { return std::find(is_there_.begin(), is_there_.end(), false) != is_there_.end(); }
  bool are_there() const { return !empty() && !are_awaited(); }
  // By replica, which of them follow.
  std::vector<bool> replicas() const {
    std::vector<bool> follow(replicas_, false);
    for (size_t s = 0; s < follows_.size(); ++s)
      if (follows_[s]) follow[replica_of_[s]] = true;
    return follow;
  }

 private:
  std::vector<uint32_t> replica_of_;  // by stage, as all here
  std::vector<bool> follows_, is_there_;
  size_t replicas_ = 0;
  uint64_t part_since_ = UINT64_MAX;
};

}  // namespace weft::broker
