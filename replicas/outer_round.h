// Who makes which steps of a run whose replicas make local steps. The steps of a run, batch_size samples
// each, are one endless sequence, as on one machine. An outer round deals the next of them in contiguous
// blocks, by replica: with 3 replicas every 2 steps the first round deals 1 2 | 3 4 | 5 6. After it all agree
// on weights (replicas/agreement.h). Pure values.
#pragma once

#include <cstdint>
#include <vector>

#include "replicas/terms.h"

namespace weft::replicas {

// What replicas begin with where some of those before were lost, and with them what nobody else had.
struct Inherited {
  // By replica of those before: whose optimizer it goes on with; empty: each with its own.
  std::vector<uint32_t> sets{};
  // Of these, ascending, who owe nothing any more: also one that has its own slots again, from somebody who
  // had gone on with them.
  std::vector<uint32_t> debtless{};
  bool returns_are_lost = false;  // what owners owed of the means: then nobody owes anything of them
  bool is_whole() const { return sets.empty() && !returns_are_lost; }
  bool operator==(const Inherited&) const = default;
};
// Whether there are so many replicas at most, each goes on with one of them, and only they owe nothing.
bool is_valid(const Inherited& inherited);

struct OuterRound {
  uint64_t steps_before = 0;      // of the run, agreed before it
  std::vector<uint64_t> steps{};  // by replica; 0: it has no part in this round
  // How many replicas had a part in it when it was dealt: a round that was cut keeps its learning rates.
  uint32_t side_by_side = 1;
  // Where replicas have shares: what each was dealt, by replica, each at most kShareMax; likewise.
  std::vector<uint64_t> dealt{};
  Inherited inherited{};  // when it began

  uint64_t steps_after() const;
  bool operator==(const OuterRound&) const = default;
};

// The round after `steps_before`: each replica's share or, of the last one, as much of it as of all others',
// the first replicas having one more where it does not come out even.
// REQUIRES: terms.are_local(), count >= 1, shares of as many replicas, steps_before < steps_in_all.
OuterRound next_round(const ReplicaTerms& terms, uint64_t steps_before, uint64_t steps_in_all);

// A step of a round, as its replica sees it.
struct LocalStep {
  uint32_t replica = 0;
  uint64_t index = 0;  // of the replica's own in this round, from 0
  // Where the schedule of the learning rate is read, from 1: as many steps as all replicas together have made
  // by then, if they go on side by side and, where they have shares, each of them evenly.
  uint64_t scheduled = 1;
  bool ends_block = false;  // the replica's last of the round
  bool operator==(const LocalStep&) const = default;
};
// REQUIRES: round.steps_before < step <= round.steps_after().
LocalStep locate(const OuterRound& round, uint64_t step);

// The round as it is if it ends after that step already: later ones belong to the next.
// REQUIRES: as locate.
OuterRound cut_after(const OuterRound& round, uint64_t step);

}  // namespace weft::replicas
