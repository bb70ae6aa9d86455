// Rounds of replicas with local steps: how many steps each makes of one, and what they take. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::plan {

// What a coarser codec takes at most of the time of a gentler one, for it costs learning; and at how much of
// the speed of the longest rounds shorter ones are enough.
inline constexpr double kWorthCoarser = 0.8;
inline constexpr double kWorthLongerRounds = 0.95;

struct LocalRounds {
  std::vector<double> step_seconds{};  // by replica
  uint64_t every = 1;                  // steps of a round, of who makes all of them
  std::vector<uint64_t> shares{};      // by replica, how many it makes; empty: all of them
  uint64_t settle_every = 1;           // rounds, after each of which all wait for their agreement
  double agreement = 0;                // seconds, about the whole model
  double part = 1;                     // of it, in a round that nobody waits for
  // By replica: seconds in which a step's samples fill a downlink, and in which all that an agreement brings
  // fills the same; empty: there are none.
  std::vector<double> data_seconds{}, incoming_seconds{};

  uint64_t share(size_t replica) const { return shares.empty() ? every : shares[replica]; }
  double seconds_a_round() const;  // in which the slowest makes its steps
  // The same while an agreement comes: of a downlink each that sends has a part, and the samples one. Who
  // needs more of them than that waits for samples as long as others send.
  double seconds_a_busy_round() const;
  // Of a part's exchange while the next round's samples come over the same lines.
  double seconds_an_exchange() const;
  double seconds_a_step() const;  // of the run: for one of all replicas' steps
};

// As many as each makes in the time of the fastest; the largest is at most `ratio_max` times the smallest,
// for a machine that is slower yet holds the others up.
std::vector<uint64_t> shares_by_speed(const std::vector<double>& step_seconds, uint64_t every,
                                      uint64_t ratio_max);

// By replica, which of the pipelines that make a step in `step_seconds` it is, where shares are given: the
// larger ones go to the faster.
std::vector<size_t> fastest_to_largest(const std::vector<double>& step_seconds,
                                       const std::vector<uint64_t>& shares);

// Ascending, from `least` to `most`, each about a quarter more than the one before: numbers of steps of a
// round to look at.
std::vector<uint64_t> round_lengths(uint64_t least, uint64_t most);

}  // namespace weft::plan
