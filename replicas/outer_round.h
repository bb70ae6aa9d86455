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
  // Ascending: who of those before was lost in their last round, so that it was agreed without them.
  std::vector<uint32_t> left_out{};
  bool is_whole() const { return sets.empty() && !returns_are_lost; }
  bool operator==(const Inherited&) const = default;
};
// Whether there are so many replicas at most, each goes on with one of them, and only they owe nothing or
// were left out.
bool is_valid(const Inherited& inherited);

// Steps of a run that follow each other.
struct StepRange {
  uint64_t first = 1, count = 0;
  bool operator==(const StepRange&) const = default;
};
// Their number.
uint64_t count_of(const std::vector<StepRange>& ranges);
inline constexpr size_t kStepRangesMax = 4096;  // whoever reads some takes no more
// Ascending, and as few as they can be. REQUIRES: no step is in two of them.
std::vector<StepRange> joined(std::vector<StepRange> ranges);

// What one replica makes of a round counts if all agree with it. The steps of one that is lost are made again
// by others, in a later round: then that round's steps take the samples of other steps than of their numbers.
struct OuterRound {
  uint64_t steps_before = 0;      // of the run, agreed before it
  std::vector<uint64_t> steps{};  // by replica; 0: it has no part in this round
  // How many replicas had a part in it when it was dealt: a round that was cut keeps its learning rates.
  uint32_t side_by_side = 1;
  // Where replicas have shares: what each was dealt, by replica, each at most kShareMax; likewise.
  std::vector<uint64_t> dealt{};
  Inherited inherited{};  // when it began
  // Whose samples its steps take, in order, as many as they are; empty: those of their own numbers.
  std::vector<StepRange> taken{};
  // Nobody waits for what is agreed about it: that is taken at the end of the next round, and until then each
  // replica goes on by what it learnt itself (look_ahead in replicas/agreement.h). False: all have the same
  // weights after it.
  bool overlaps = false;
  // Which of the model's fragments it is about, if it overlaps; else it is about all of them.
  uint32_t fragment = 0;
  // Ascending: who made steps since some fragment was agreed about, and has no part in it any more, for it
  // was lost. Where there is one fragment, whoever made no step in the round has none.
  std::vector<uint32_t> absent{};
  // So many steps of the round before it counted when this one was dealt, and are void: replicas were left
  // out of both. Its draws and its learning rates go by them.
  uint64_t void_before = 0;

  uint64_t steps_after() const;
  uint64_t dealt_after() const { return steps_before + void_before; }
  bool is_about(uint32_t of_fragment) const { return !overlaps || of_fragment == fragment; }
  void settle() { overlaps = false, fragment = 0; }  // all wait for it
  bool operator==(const OuterRound&) const = default;
};

// The round after `steps_before`: each replica's share or, of the last one, as much of it as of all others',
// the first replicas having one more where it does not come out even; followers have none.
// REQUIRES: terms.are_local(), count >= 1, shares of as many replicas, steps_before < steps_in_all.
OuterRound next_round(const ReplicaTerms& terms, uint64_t steps_before, uint64_t steps_in_all);

// Whether the round of these terms that takes the run from `before` to `after` steps overlaps the next one:
// the last one does not, nor that in which a whole number of `settle_every` rounds is reached, counted from
// the run's first step, whoever made them. REQUIRES: before < after <= steps_in_all.
bool is_overlapping(const ReplicaTerms& terms, uint64_t before, uint64_t after, uint64_t steps_in_all);

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

// Whose samples that step takes. REQUIRES: as locate.
uint64_t samples_of(const OuterRound& round, uint64_t step);

// The round as it is if it ends after that step already: later ones belong to the next. It
// overlaps none then.
// REQUIRES: as locate.
OuterRound cut_after(const OuterRound& round, uint64_t step);

// The round's steps take the samples of these, of which the rounds before took the first `taken`; once there
// are none left, of their own numbers.
void give_again(OuterRound& round, const std::vector<StepRange>& given_again, uint64_t taken);

// The round as it is if these replicas have no part in it, and whose samples are to be given again.
struct Shortened {
  OuterRound round{};
  std::vector<StepRange> given_again{};  // ascending
};
Shortened leave_out(const OuterRound& round, const std::vector<uint32_t>& replicas);
// What these rounds, which follow each other from the beginning of a run on, have left to be given again:
// ascending.
std::vector<StepRange> given_again_after(const std::vector<OuterRound>& rounds);

// Whose samples the steps of a run take, of which the first rounds are known: what they have left is given
// again in the steps behind them.
class TakenSamples {
 public:
  TakenSamples() = default;  // each its own
  explicit TakenSamples(const std::vector<OuterRound>& rounds);

  uint64_t of(uint64_t step) const;
  // A round behind those that are known takes what they have left. REQUIRES: it begins behind them.
  void give_again(OuterRound& round) const;

 private:
  std::vector<OuterRound> rounds_;  // those whose steps take others than their own
  std::vector<StepRange> given_again_;
  uint64_t end_ = 0;  // of the rounds that are known
};

}  // namespace weft::replicas
