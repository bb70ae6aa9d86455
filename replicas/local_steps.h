// Where a run is whose replicas make local steps side by side. Its *inner steps* are numbered: in each of
// them a replica makes one step of its own or none. A replica with the largest share of a round makes one in
// each of the round's; the others theirs as evenly as they can, the first in the first. Which steps of the
// run these are is replicas/outer_round.h's. Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "replicas/outer_round.h"
#include "replicas/terms.h"

namespace weft::replicas {

struct LocalSteps {
  ReplicaTerms terms{};
  uint64_t steps = 0;  // of the run: of all replicas together
  // Steps of the run that were agreed when these replicas began. Inner steps are numbered on from there, so
  // that no replica has made more updates than their number says.
  uint64_t begun_after = 0;
  // Ascending: whose samples the first of these steps take, because replicas were lost that had made them.
  // All of them had been dealt, and all that had been dealt are made or among them.
  std::vector<StepRange> given_again{};
  bool operator==(const LocalSteps&) const = default;
};
// What the functions below REQUIRE of it, and no more.
bool is_valid(const LocalSteps& local);

uint64_t last_inner_step(const LocalSteps& local);
// Whether a round ends with that inner step, as one does with what they began after; and the first with which
// one does, from `inner` on. REQUIRES: begun_after <= inner <= last_inner_step(), here and in the next two.
bool ends_round(const LocalSteps& local, uint64_t inner);
uint64_t next_end(const LocalSteps& local, uint64_t inner);
// Whether all have the same weights after it: a round ends that does not overlap the next one.
bool agrees_after(const LocalSteps& local, uint64_t inner);
uint64_t next_agreement(const LocalSteps& local, uint64_t inner);
// The last one before it after which they had. REQUIRES: as round_of.
uint64_t agreement_before(const LocalSteps& local, uint64_t inner);
// Steps of the run that all replicas together have made by then. REQUIRES: as round_of, or begun_after.
uint64_t steps_after(const LocalSteps& local, uint64_t inner);

// With whose samples its steps take. REQUIRES: begun_after < inner <= last_inner_step().
OuterRound round_of(const LocalSteps& local, uint64_t inner);
// Of the run's, those that a replica has made of its own by then. REQUIRES: as steps_after.
uint64_t own_steps_after(const LocalSteps& local, uint32_t replica, uint64_t inner);
// Likewise by replica, since that fragment was agreed about before the round that ends with `inner`: what a
// difference at the end of it is of. REQUIRES: inner is a round's end, after begun_after.
std::vector<uint64_t> steps_since(const LocalSteps& local, uint64_t inner, uint32_t fragment);
// The step of the run that a replica makes in that inner step. Nothing: it makes none.
struct OwnStep {
  uint64_t step = 0;       // whose samples it takes
  uint64_t scheduled = 0;  // where the schedule of the learning rate is read
  bool operator==(const OwnStep&) const = default;
};
std::optional<OwnStep> own_step(const LocalSteps& local, uint32_t replica, uint64_t inner);

// With which the first round ends that replicas have no part in if they are left out of the one that ends
// with `inner`: that, or the one before it, where that overlaps it and so is not agreed on either.
// REQUIRES: inner is a round's end, after begun_after.
uint64_t first_left_out(const LocalSteps& local, uint64_t inner);

// What was made up to the round that ends with an inner step, if these replicas are left out of it and
// nothing is made after it.
struct Without {
  // As they count: the round, which overlaps none, or before it the one that these replicas are left out of,
  // too.
  std::vector<OuterRound> rounds{};
  std::vector<StepRange> given_again{};                          // as LocalSteps has it
  uint64_t made() const { return rounds.back().steps_after(); }  // steps of the run
};
// REQUIRES: as round_of, and that a round ends there.
Without without(const LocalSteps& local, uint64_t inner, const std::vector<uint32_t>& left_out);

// What replicas make from some step of a run on, and what they begin with.
struct Begun {
  LocalSteps local{};
  Inherited inherited{};
};
// What was made of a run up to `made` of its steps by these plans, in their order: each holds until another
// one begins, and what it made from there on is void. Where one ends all have the same weights, so that its
// last round overlaps none; and so it is after `made` steps, if `settled`. As far as they reach, and a
// million rounds at most. REQUIRES: valid ones.
std::vector<OuterRound> rounds_of(const std::vector<Begun>& plans, uint64_t made, bool settled = true);

}  // namespace weft::replicas
