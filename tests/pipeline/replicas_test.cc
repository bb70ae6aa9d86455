// Replicas with local steps, each cut into stages of its own, by the production state machines and real
// kernels in one process: every message lies in a queue, and which is served next is drawn at random.
// Whatever the order, the cuts and the owners, the state after the last agreement is, bit for bit, that of
// one executor that computes the replicas in turn.
#include "tests/pipeline/replicas_seats.h"

namespace weft {
namespace {

class Replicas : public testing::TestWithParam<Case> {};

TEST_P(Replicas, EndInTheBitsOfOneExecutorWhateverTheOrderOfMessages) {
  const World world(GetParam());
  const State expected = in_turn(world);
  int played = 0;
  for (uint64_t seed = 1; played < 4 && seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 12);
    Seats seats(world, rng);
    if (!seats.deal()) continue;
    ++played;
    seats.play();
    if (HasFailure()) return;
    seats.expect_reports();
    EXPECT_EQ(seats.state().size(), expected.size());
    for (const auto& [key, tensor] : expected) {
      const auto found = seats.state().find(key);
      ASSERT_NE(found, seats.state().end()) << to_string(key);
      EXPECT_TRUE(Seats::is_same(tensor, found->second)) << to_string(key) << " differs";
    }
    if (HasFailure()) return;
  }
  EXPECT_GE(played, 1);
}

// Of the third round, one or two; whenever it is, until somebody has a mean of what they sent.
TEST_P(Replicas, EndARoundWithoutThoseThatAreLost) {
  const World world(GetParam());
  if (world.of.settle_every > 1) return;  // nobody is left out: the run goes back
  int ended = 0;
  for (uint64_t seed = 1; ended < 6 && seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 13);
    Seats seats(world, rng);
    if (!seats.deal()) continue;
    std::vector<replicas::OuterRound> record;
    Seats::Losses losses;
    for (int round = 0; round < 3 && losses.end < last_inner_step(seats.local()); ++round) {
      const uint64_t end = next_agreement(seats.local(), losses.end + 1);
      const replicas::OuterRound next = round_of(seats.local(), end);
      if (next.side_by_side < world.of.replicas) break;
      record.push_back(next);
      losses.begin = std::exchange(losses.end, end);
    }
    std::vector<uint32_t> lost;
    while (lost.size() < std::min(world.of.replicas - 1, 1 + static_cast<uint32_t>(rng.below(2)))) {
      const auto replica = static_cast<uint32_t>(rng.below(world.of.replicas));
      if (std::find(lost.begin(), lost.end(), replica) != lost.end()) continue;
      lost.push_back(replica);
      losses.at[rng.below(80 * (losses.end - losses.begin)) + 40 * lost.size()] = replica;
    }
    record.back() = leave_out(record.back(), lost).round;
    record.back().inherited.returns_are_lost = true;
    if (record.back().steps_after() == record.back().steps_before) continue;
    seats.play(losses);
    if (HasFailure()) return;
    if (seats.was_too_late() || seats.lost() != lost.size()) continue;
    ++ended;
    seats.expect_reports();
    const State expected = in_turn(world, record);
    for (const auto& [key, tensor] : expected) {
      const bool is_of_lost = !is_weight(key.slot) && key.slot != dag::StateSlot::OuterMomentum &&
                              key.slot != dag::StateSlot::ReturnResidue &&
                              std::find(lost.begin(), lost.end(), key.replica) != lost.end();
      if (is_of_lost) continue;
      const auto found = seats.state().find(key);
      ASSERT_NE(found, seats.state().end()) << to_string(key);
      EXPECT_TRUE(Seats::is_same(tensor, found->second)) << to_string(key) << " differs";
    }
    if (HasFailure()) return;
  }
  EXPECT_GE(ended, 1);
}

// Of four replicas one lies in the third round. Nobody adds up what it sent, and the others come to what they
// would have come to without it.
TEST(LyingReplicas, AreLeftOutOfTheRound) {
  for (const char* codec : {"dense", "topk:0.02:int4"})
    for (const float times : {1000.0F, std::numeric_limits<float>::infinity()}) {
      const World world({"transformer", 4, 3, 36, codec});
      int ended = 0;
      for (uint64_t seed = 1; ended < 3 && seed < 30; ++seed) {
        SCOPED_TRACE(std::string(codec) + ", times " + std::to_string(times) + ", seed " +
                     std::to_string(seed));
        Rng rng(seed, 14);
        Seats seats(world, rng);
        if (!seats.deal()) continue;
        std::vector<replicas::OuterRound> record;
        Seats::Losses losses;
        for (int round = 0; round < 3; ++round) {
          const uint64_t end = next_agreement(seats.local(), losses.end + 1);
          record.push_back(round_of(seats.local(), end));
          losses.begin = std::exchange(losses.end, end);
        }
        const auto liar = static_cast<uint32_t>(rng.below(4));
        seats.lie(liar, record.back().steps_before, times);
        record.back() = leave_out(record.back(), {liar}).round;
        record.back().inherited.returns_are_lost = true;
        seats.play(losses);
        if (HasFailure()) return;
        ASSERT_EQ(seats.lost(), 1u);
        EXPECT_GE(seats.refusals(), 1u);
        ASSERT_FALSE(seats.was_too_late()) << "every owner saw it";
        ++ended;
        const State expected = in_turn(world, record);
        for (const auto& [key, tensor] : expected) {
          if (key.replica == liar && !is_weight(key.slot) && key.slot != dag::StateSlot::OuterMomentum &&
              key.slot != dag::StateSlot::ReturnResidue)
            continue;
          const auto found = seats.state().find(key);
          ASSERT_NE(found, seats.state().end()) << to_string(key);
          EXPECT_TRUE(Seats::is_same(tensor, found->second)) << to_string(key) << " differs";
        }
        if (HasFailure()) return;
      }
      EXPECT_GE(ended, 3);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Replicas,
    testing::Values(
        Case{"residual"}, Case{"residual", 3, 2, 11, "int8"},
        Case{"residual", 2, 4, 9, "topk:0.05:int8", replicas::OuterType::Average},
        Case{"transformer", 4, 3, 26, "topk:0.02:int4"}, Case{"transformer", 2, 1, 6},
        Case{"transformer", 3, 5, 40, "int4", replicas::OuterType::Nesterov, 0.5},
        Case{"residual", 2, 5, 29, "int8", replicas::OuterType::Nesterov, 0, {5, 1}},
        Case{"residual", 3, 3, 14, "topk:0.05:int8", replicas::OuterType::Nesterov, 0.5, {}, 1, true},
        Case{"transformer", 3, 6, 43, "topk:0.05:int8", replicas::OuterType::Average, 0.5, {2, 6, 3}}));

// The same where a round's agreement travels while the next one is made.
INSTANTIATE_TEST_SUITE_P(
    OverlappingRuns, Replicas,
    testing::Values(
        Case{"residual", 2, 3, 24, "dense", replicas::OuterType::Nesterov, 0, {}, 4},
        Case{"residual", 3, 2, 35, "int8", replicas::OuterType::Average, 0, {}, 3, true},
        Case{"transformer", 4, 2, 47, "topk:0.02:int4", replicas::OuterType::Nesterov, 0.5, {}, 5},
        Case{"transformer", 2, 1, 10, "int4", replicas::OuterType::Nesterov, 0, {}, 2},
        Case{"residual", 2, 5, 41, "int8", replicas::OuterType::Nesterov, 0, {5, 1}, 6},
        Case{"transformer", 3, 6, 70, "dense", replicas::OuterType::Average, 0, {2, 6, 3}, 1024}));

}  // namespace
}  // namespace weft
