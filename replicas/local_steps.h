// Where a run is whose replicas make local steps side by side, all of them equally fast. Its *inner steps*
// are numbered: in each of them every replica makes one step of its own, but for the last ones of the last
// round, in which some may have none left. Which steps of the run these are is replicas/outer_round.h's. Pure
// values.
#pragma once

#include <cstdint>
#include <optional>

#include "replicas/outer_round.h"
#include "replicas/terms.h"

namespace weft::replicas {

struct LocalSteps {
  ReplicaTerms terms{};
  uint64_t steps = 0;  // of the run: of all replicas together
  // Steps of the run that were agreed when these replicas began. Inner steps are numbered on from there, so
  // that no replica has made more updates than their number says.
  uint64_t begun_after = 0;
  bool operator==(const LocalSteps&) const = default;
};
// What the functions below REQUIRE of it, and no more.
bool is_valid(const LocalSteps& local);

uint64_t last_inner_step(const LocalSteps& local);
// Whether the weights after that inner step are agreed ones, as those that they began with are.
bool agrees_after(const LocalSteps& local, uint64_t inner);
// The first one after which they are, from `inner` on. REQUIRES: inner <= last_inner_step().
uint64_t next_agreement(const LocalSteps& local, uint64_t inner);
// Steps of the run that all replicas together have made by then. REQUIRES: as round_of, or begun_after.
uint64_t steps_after(const LocalSteps& local, uint64_t inner);

// REQUIRES: begun_after < inner <= last_inner_step().
OuterRound round_of(const LocalSteps& local, uint64_t inner);
// The step of the run that a replica makes in that inner step. Nothing: it has none left.
struct OwnStep {
  uint64_t step = 0;       // whose samples it takes
  uint64_t scheduled = 0;  // where the schedule of the learning rate is read
  bool operator==(const OwnStep&) const = default;
};
std::optional<OwnStep> own_step(const LocalSteps& local, uint32_t replica, uint64_t inner);

}  // namespace weft::replicas
