// How the commands and reports of a run count steps, and how people do. Where replicas make local steps, the
// former are inner steps (replicas/local_steps.h): in each of them every replica makes a step of its own, as
// long as it has one. People see steps of the run, which are those of all replicas together. Of any other run
// the two are the same, and there is one replica. Pure; every function is total.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "plan/seat.h"
#include "proto/run_plan.h"
#include "replicas/local_steps.h"

namespace weft::broker {

class InnerSteps {
 public:
  explicit InnerSteps(const proto::RunTerms& terms)
      : local_(terms.local_steps), last_(terms.training.steps) {}
  explicit InnerSteps(const replicas::LocalSteps& local) : local_(local), last_(last_inner_step(local)) {}

  bool are_local() const { return local_.has_value(); }
  const std::optional<replicas::LocalSteps>& local() const { return local_; }
  uint32_t replicas() const { return local_ ? local_->terms.count : 1; }
  uint32_t makers() const { return local_ ? local_->terms.makers() : 1; }  // those that make steps
  uint32_t replica_of(const plan::Seat& seat) const {
    return local_ ? std::min(seat.replica, replicas() - 1) : 0;
  }
  // Steps of the run, in all and up to an inner one.
  uint64_t in_all() const { return local_ ? local_->steps : last_; }
  uint64_t made(uint64_t inner) const;
  // The step that the replica makes in it, of the run; nothing: it has none.
  std::optional<replicas::OwnStep> own(uint32_t replica, uint64_t inner) const;
  // Up to it, how often the replica had none to make.
  uint64_t idle(uint32_t replica, uint64_t inner) const;

  // Whether the state after it is that of a run: not while replicas have yet to agree.
  bool is_whole(uint64_t inner) const;
  // Whether replicas may wait for each other in it, because a round ends with it.
  bool ends_round(uint64_t inner) const;
  // After which the state is whole, at most.
  uint64_t steps_between_agreements() const {
    return local_ ? local_->terms.every * local_->terms.settle_every : 1;
  }
  // The first one of which it is, from `inner` on.
  uint64_t next_whole(uint64_t inner) const;
  // The first one with which a round ends, likewise.
  uint64_t next_end(uint64_t inner) const;
  // Whether all that is agreed about the round that ends with `end` is over once `committed` is: where it
  // overlaps the next one, with that.
  bool is_agreed(uint64_t end, uint64_t committed) const;
  // Which of these inner steps a snapshot is of: of that number, perhaps of other replicas, with so many
  // steps of the run. Nothing: these began after it, or do not agree there.
  std::optional<uint64_t> find(uint64_t step, uint64_t made) const;
  // Whether replicas with local steps began there.
  bool is_begun_at(uint64_t inner) const { return local_ && inner == local_->begun_after; }
  // Whether what is due every so many steps of the run is due after it: at the first whole state from there
  // on.
  bool is_due(uint64_t every, uint64_t inner) const;

 private:
  uint64_t clamped(uint64_t inner) const;

  std::optional<replicas::LocalSteps> local_;
  uint64_t last_;  // inner step
};

}  // namespace weft::broker
