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
    EXPECT_TRUE(seats.look_at_means().empty()) << "an honest owner is called wrong";
    if (HasFailure()) return;
  }
  EXPECT_GE(played, 1);
}

void expect_same(const State& expected, const State& found, const std::vector<uint32_t>& lost) {
  for (const auto& [key, tensor] : expected) {
    const bool is_of_lost = !is_weight(key.slot) && key.slot != dag::StateSlot::OuterMomentum &&
                            key.slot != dag::StateSlot::ReturnResidue &&
                            std::find(lost.begin(), lost.end(), key.replica) != lost.end();
    if (is_of_lost) continue;
    const auto at = found.find(key);
    ASSERT_NE(at, found.end()) << to_string(key);
    EXPECT_TRUE(Seats::is_same(tensor, at->second)) << to_string(key) << " differs";
  }
}

// The first rounds, up to the one that ends with `end`, without those in the last ones.
std::vector<replicas::OuterRound> record_until(const replicas::LocalSteps& local, uint64_t end,
                                               const std::vector<uint32_t>& lost) {
  std::vector<replicas::OuterRound> record;
  for (uint64_t inner = 0; inner < end;) {
    inner = next_end(local, inner + 1);
    record.push_back(round_of(local, inner));
  }
  auto last = replicas::without(local, end, lost).rounds;
  const bool owed =
      std::any_of(lost.begin(), lost.end(), [&](uint32_t replica) { return !local.terms.follows(replica); });
  for (replicas::OuterRound& round : last) round.inherited.returns_are_lost = owed;
  std::move(last.begin(), last.end(), record.end() - static_cast<ptrdiff_t>(last.size()));
  return record;
}

// Of a round, one or two; whenever it is, until somebody has agreed on what they sent. Where rounds overlap
// they have no part in the one before either.
TEST_P(Replicas, EndARoundWithoutThoseThatAreLost) {
  const World world(GetParam());
  int ended = 0;
  for (uint64_t seed = 1; ended < 6 && seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 13);
    Seats seats(world, rng);
    if (!seats.deal()) continue;
    Seats::Losses losses;
    const uint64_t rounds = world.of.settle_every > 1 ? 1 + rng.below(6) : 3;
    for (uint64_t round = 0; round < rounds && losses.end < last_inner_step(seats.local()); ++round) {
      const uint64_t end = next_end(seats.local(), losses.end + 1);
      if (round_of(seats.local(), end).side_by_side < seats.local().terms.makers()) break;
      losses.begin = std::exchange(losses.end, end);
    }
    std::vector<uint32_t> lost;
    while (lost.size() < std::min(world.of.replicas - 1, 1 + static_cast<uint32_t>(rng.below(2)))) {
      const auto replica = static_cast<uint32_t>(rng.below(world.of.replicas));
      if (std::find(lost.begin(), lost.end(), replica) != lost.end()) continue;
      lost.push_back(replica);
      losses.at[rng.below(80 * (losses.end - losses.begin)) + 40 * lost.size()] = replica;
    }
    std::sort(lost.begin(), lost.end());
    const auto makes = [&](uint32_t replica) {
      return !seats.local().terms.follows(replica) &&
             std::find(lost.begin(), lost.end(), replica) == lost.end();
    };
    bool is_left = false;
    for (uint32_t replica = 0; replica < world.of.replicas; ++replica) is_left = is_left || makes(replica);
    if (!is_left) continue;
    const auto record = record_until(seats.local(), losses.end, lost);
    if (std::any_of(record.begin(), record.end(),
                    [](const auto& round) { return round.steps_after() == round.steps_before; }))
      continue;
    seats.play(losses);
    if (HasFailure()) return;
    if (seats.was_too_late() || seats.lost() != lost.size()) continue;
    ++ended;
    seats.expect_reports();
    expect_same(in_turn(world, record), seats.state(), lost);
    if (HasFailure()) return;
  }
  EXPECT_GE(ended, 1);
}

// As for a run that stops: the round under way is waited for.
TEST_P(Replicas, SettleWhereTheyAreTold) {
  const World world(GetParam());
  if (world.of.settle_every == 1) return;
  int settled = 0;
  for (uint64_t seed = 1; settled < 3 && seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 15);
    Seats seats(world, rng);
    if (!seats.deal()) continue;
    Seats::Losses nobody;
    for (uint64_t rounds = 1 + rng.below(5); rounds > 0 && nobody.end < last_inner_step(seats.local());
         --rounds)
      nobody.begin = std::exchange(nobody.end, next_end(seats.local(), nobody.end + 1));
    seats.play(nobody);
    if (HasFailure()) return;
    ++settled;
    seats.expect_reports();
    expect_same(in_turn(world, record_until(seats.local(), nobody.end, {})), seats.state(), {});
    EXPECT_TRUE(seats.look_at_means().empty()) << "an honest owner is called wrong";
    if (HasFailure()) return;
  }
}

// Of four replicas one lies in the third round. Nobody adds up what it sent, and the others come to what they
// would have come to without it. Or in the first one, which overlaps the second: they end both without it.
TEST(LyingReplicas, AreLeftOutOfTheRound) {
  for (const uint64_t settle_every : {1, 5})
    for (const char* codec : {"dense", "topk:0.02:int4"})
      for (const float times : {1000.0F, std::numeric_limits<float>::infinity()}) {
        const World world(
            {"transformer", 4, 3, 72, codec, replicas::OuterType::Nesterov, 0, {}, settle_every});
        int ended = 0;
        for (uint64_t seed = 1; ended < 3 && seed < 30; ++seed) {
          SCOPED_TRACE(std::string(codec) + ", times " + std::to_string(times) + ", settle every " +
                       std::to_string(settle_every) + ", seed " + std::to_string(seed));
          Rng rng(seed, 14);
          Seats seats(world, rng);
          if (!seats.deal()) continue;
          const bool overlaps = settle_every > 1;
          Seats::Losses losses;
          losses.begin = overlaps ? 0 : 6;
          losses.end = overlaps ? 6 : 9;
          const auto liar = static_cast<uint32_t>(rng.below(4));
          seats.lie(liar, overlaps ? 3 : 9, times);
          seats.play(losses);
          if (HasFailure()) return;
          ASSERT_EQ(seats.lost(), 1u);
          EXPECT_GE(seats.refusals(), 1u);
          ASSERT_FALSE(seats.was_too_late()) << "every owner saw it";
          ++ended;
          expect_same(in_turn(world, record_until(seats.local(), losses.end, {liar})), seats.state(), {liar});
          if (HasFailure()) return;
        }
        EXPECT_GE(ended, 3);
      }
}

// Of four owners one sends means out of all proportion. The others see it by what the rest are beside what
// they have learnt themselves, before anybody has taken them.
TEST(LyingOwners, AreLeftOutOfTheRound) {
  for (const float times : {1000.0F, std::numeric_limits<float>::infinity()}) {
    const World world({"transformer", 4, 3, 36, "int8"});
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE("times " + std::to_string(times) + ", seed " + std::to_string(seed));
      Rng rng(seed, 16);
      Seats seats(world, rng);
      ASSERT_TRUE(seats.deal(1));
      const auto liar = static_cast<uint32_t>(rng.below(4));
      seats.lie(liar, 9, times, proto::Direction::Backward);
      Seats::Losses losses;
      losses.begin = 6;
      losses.end = 9;
      seats.play(losses);
      if (HasFailure()) return;
      ASSERT_EQ(seats.lost(), 1u);
      ASSERT_FALSE(seats.was_too_late());
      expect_same(in_turn(world, record_until(seats.local(), losses.end, {liar})), seats.state(), {liar});
      if (HasFailure()) return;
    }
  }
}

// Within every bound, and to one replica alone or to all: whoever has taken it says so.
TEST(LyingOwners, AreFoundWhereTheySendOtherMeansThanTheyTook) {
  for (const auto& [model, codec] : {std::pair("transformer", "dense"), std::pair("transformer", "int8"),
                                     std::pair("transformer", "topk:0.05:int8"), std::pair("wide", "int8")}) {
    const World world({model, 4, 3, 24, codec});
    Rng rng(7, 17);
    Seats seats(world, rng);
    ASSERT_TRUE(seats.deal(1));
    const auto liar = static_cast<uint32_t>(rng.below(4));
    seats.lie(liar, last_inner_step(seats.local()), 1.01F, proto::Direction::Backward);
    seats.play();
    if (HasFailure()) return;
    const auto found = seats.look_at_means();
    EXPECT_FALSE(found.empty()) << codec;
    for (const broker::WrongMean& wrong : found) {
      EXPECT_EQ(wrong.owner, liar) << "each replica is one stage";
      EXPECT_TRUE(wrong.wrong.empty());
      EXPECT_EQ(wrong.other.size(), 3u) << "it stands against all others";
    }
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
        Case{"wide", 3, 2, 12, "int4"}, Case{"wide", 2, 2, 6}, Case{"wide", 2, 2, 7, "topk:0.02:int4"},
        Case{"transformer", 3, 6, 43, "topk:0.05:int8", replicas::OuterType::Average, 0.5, {2, 6, 3}}));

// The same where a round's agreement travels while the next one is made.
INSTANTIATE_TEST_SUITE_P(
    OverlappingRuns, Replicas,
    testing::Values(
        Case{"residual", 2, 3, 24, "dense", replicas::OuterType::Nesterov, 0, {}, 4},
        Case{"residual", 3, 2, 35, "int8", replicas::OuterType::Average, 0, {}, 3, true},
        Case{"transformer", 4, 2, 47, "topk:0.02:int4", replicas::OuterType::Nesterov, 0.5, {}, 5},
        Case{"transformer", 2, 1, 10, "int4", replicas::OuterType::Nesterov, 0, {}, 2},
        Case{"wide", 3, 2, 20, "int8", replicas::OuterType::Nesterov, 0, {}, 3},
        Case{"residual", 2, 5, 41, "int8", replicas::OuterType::Nesterov, 0, {5, 1}, 6},
        Case{"transformer", 3, 6, 70, "dense", replicas::OuterType::Average, 0, {2, 6, 3}, 1024}));

// Rounds that are about a part of the model, and settle about all of it: fewer in a row than there are parts,
// as many, and more; a last one of few steps, in which some replicas make none but have learnt before.
INSTANTIATE_TEST_SUITE_P(
    RunsInFragments, Replicas,
    testing::Values(Case{.model = "residual", .every = 2, .steps = 24, .settle_every = 6, .fragments = 2},
                    Case{.model = "transformer",
                         .replicas = 3,
                         .every = 1,
                         .steps = 31,
                         .codec = "int4",
                         .settle_every = 8,
                         .fragments = 4},
                    Case{.model = "residual",
                         .replicas = 4,
                         .every = 2,
                         .steps = 49,
                         .codec = "topk:0.05:int8",
                         .clip_norm = 0.5,
                         .settle_every = 1024,
                         .coded_slots = true,
                         .fragments = 3},
                    Case{.model = "wide",
                         .replicas = 3,
                         .every = 1,
                         .steps = 25,
                         .codec = "int8",
                         .settle_every = 5,
                         .fragments = 2},
                    Case{.model = "transformer",
                         .replicas = 3,
                         .every = 4,
                         .steps = 64,
                         .codec = "int8",
                         .outer = replicas::OuterType::Average,
                         .shares = {2, 4, 1},
                         .settle_every = 3,
                         .fragments = 5},
                    Case{.model = "transformer",
                         .replicas = 4,
                         .every = 1,
                         .steps = 33,
                         .codec = "int4",
                         .settle_every = 6,
                         .followers = {2},
                         .fragments = 3}));

// Some have yet to be given what the others have, and take what these agree on meanwhile.
INSTANTIATE_TEST_SUITE_P(
    RunsThatAreFollowed, Replicas,
    testing::Values(
        Case{.model = "residual", .replicas = 2, .steps = 9, .followers = {1}},
        Case{.model = "wide", .replicas = 3, .every = 2, .steps = 13, .codec = "int8", .followers = {1}},
        Case{.model = "transformer", .replicas = 4, .steps = 25, .codec = "int8", .followers = {0, 3}},
        Case{.model = "residual",
             .replicas = 3,
             .steps = 23,
             .codec = "topk:0.05:int8",
             .shares = {2, 3, 1},
             .followers = {1}},
        Case{.model = "transformer",
             .replicas = 3,
             .every = 2,
             .steps = 31,
             .codec = "int4",
             .settle_every = 4,
             .coded_slots = true,
             .followers = {2}},
        Case{.model = "residual",
             .replicas = 4,
             .every = 2,
             .steps = 29,
             .codec = "int8",
             .outer = replicas::OuterType::Average,
             .settle_every = 3,
             .followers = {1, 2}}));

}  // namespace
}  // namespace weft
