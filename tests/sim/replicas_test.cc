// Jobs whose replicas make local steps, on a virtual clock: with and without faults, and with peers that lie
// about what they have learnt. What they come to is what one machine makes of their rounds, whose order and
// number the events of a job tell (sim/replica_laws.h). And jobs whose replicas add each step's gradients,
// which come to what one machine makes.
// WEFT_SIM_SEEDS: how many seeds with faults, for a long run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "sim/simulation.h"

namespace weft::sim {
namespace {

uint32_t few_to_many(uint64_t seed) { return 4 + static_cast<uint32_t>(seed % 9); }

uint64_t seeds_wanted(uint64_t usual) {
  const char* wanted = std::getenv("WEFT_SIM_SEEDS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : usual;
}

std::string command_of(const SimulationOptions& options) {
  std::string text = std::string("weft-sim ") + (options.exact ? "--exact" : "--replicas") + " --seed " +
                     std::to_string(options.seed) + " --peers " + std::to_string(options.peers) +
                     (options.faults ? "" : " --no-faults");
  if (options.liars != 0) text += " --liars " + std::to_string(options.liars);
  for (const LieName& lie : lies())
    if (options.lie == lie.lie) text += " --lie " + std::string(lie.name);
  return text;
}

// What all seeds together have seen.
struct Seen {
  ReplicaLaws::Counts replicas;
  Checkers::Counts counts;
  uint64_t lies = 0;
};

void play(const SimulationOptions& options, Seen& seen) {
  const SimulationResult result = simulate(options);
  ASSERT_FALSE(result.failure) << *result.failure << "\nThe last events:\n"
                               << result.last_notes << *result.failure << "\nAgain: " << command_of(options);
  seen.replicas += result.replicas;
  seen.counts.recoveries += result.counts.recoveries;
  seen.counts.resumed += result.counts.resumed;
  seen.counts.differences_refused += result.counts.differences_refused;
  seen.lies += result.lies;
}

TEST(SimReplicas, WithoutFaultsTheyEndInTheStateOfTheirRecord) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    play({.seed = seed, .peers = few_to_many(seed), .faults = false, .replicas = true}, seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(seen.replicas.agreements, 40u * 5);
}

// Half of these jobs share slots.
TEST(SimReplicas, ThatAddGradientsEndInTheStateOfOneMachine) {
  Seen seen;
  const uint64_t seeds = seeds_wanted(80);
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    for (const bool faults : {false, true}) {
      if (!faults && seed > 20) continue;
      play({.seed = seed, .peers = few_to_many(seed), .faults = faults, .exact = true}, seen);
      if (HasFatalFailure()) return;
    }
  EXPECT_GT(seen.counts.recoveries, seeds / 2);
  EXPECT_GT(seen.counts.resumed, seeds / 2);
}

TEST(SimReplicas, WithFaultsTheyEndInTheStateOfTheirRecord) {
  const uint64_t seeds = seeds_wanted(160);
  Seen seen;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    play({.seed = seed, .peers = few_to_many(seed), .replicas = true}, seen);
    if (HasFatalFailure()) return;
  }
  // That what is looked at happens at all.
  EXPECT_GT(seen.replicas.agreements, seeds * 5);
  EXPECT_GT(seen.counts.recoveries, seeds / 2);
  EXPECT_GT(seen.counts.resumed, seeds / 2);
  EXPECT_GT(seen.replicas.left_out, seeds / 10);
  EXPECT_GT(seen.replicas.given_again, seeds / 40);
  EXPECT_GT(seen.replicas.inherited, seeds / 40);
  EXPECT_GT(seen.replicas.kept, seeds);
  EXPECT_GT(seen.replicas.grown, seeds / 40);
  EXPECT_GT(seen.replicas.shrunk, seeds / 40);
}

TEST(SimReplicas, TheSameSeedIsTheSameTrace) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulationOptions options{.seed = seed, .peers = few_to_many(seed), .replicas = true};
    EXPECT_EQ(simulate(options).trace_hash, simulate(options).trace_hash) << command_of(options);
  }
}

// One of many lies about what it has learnt: nothing of that comes to the others' weights, and no honest
// replica is refused.
TEST(SimReplicas, WhatALiarSendsIsAddedUpByNobody) {
  for (const Lie lie : {Lie::NanDifferences, Lie::HugeDifferences, Lie::HugeMeans, Lie::RefusesOthers}) {
    Seen seen;
    // Means are seldom compared: it takes four owners.
    const bool is_seldom = lie == Lie::HugeMeans;
    const uint32_t peers = is_seldom ? 12 : 9, liars = is_seldom ? 60 : 15;
    for (uint64_t seed = 1; seed <= (is_seldom ? 80 : 25); ++seed) {
      play({.seed = seed, .peers = peers, .faults = false, .replicas = true, .liars = liars, .lie = lie},
           seen);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(seen.lies, 0u);
    EXPECT_GT(seen.counts.differences_refused, 0u);
  }
}

// What an owner took is looked at again, in every tensor here: the run goes back to where it was right.
TEST(SimReplicas, WhatAnOwnerTakesWrongIsUndone) {
  for (const Lie lie : {Lie::WrongMeans, Lie::OtherPieces, Lie::HidesPieces}) {
    Seen seen;
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      play({.seed = seed, .peers = 9, .faults = false, .replicas = true, .liars = 35, .lie = lie}, seen);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(seen.lies, 0u);
    EXPECT_GT(seen.counts.recoveries, 0u);
  }
}

TEST(SimReplicas, LiarsAmongFaultsToo) {
  const uint64_t seeds = seeds_wanted(60);
  Seen seen;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    play({.seed = seed, .peers = few_to_many(seed), .replicas = true, .liars = 30}, seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(seen.counts.differences_refused, seeds / 4);
}

}  // namespace
}  // namespace weft::sim
