// Inner steps, against a second dealing of the same rounds.
#include "broker/run/inner_steps.h"

#include "tests/broker/local_run.h"

namespace weft::broker::local {
namespace {

TEST(InnerSteps, AreWhatIsDealt) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed, 1);
    const LocalShape shape = random_shape(rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(shape));
    const auto dealt = test::deal(shape);
    const InnerSteps inner(*test::local_plan(shape));
    ASSERT_EQ(dealt.rbegin()->first, last_inner_step(*test::local_plan(shape)->local_steps));
    EXPECT_EQ(inner.in_all(), shape.steps);
    EXPECT_EQ(inner.made(shape.begun_after), shape.begun_after);
    EXPECT_TRUE(inner.is_whole(shape.begun_after));
    std::vector<uint64_t> idle(shape.replicas, 0);
    const uint64_t every = 1 + rng.below(9);
    for (const auto& [step, at] : dealt) {
      SCOPED_TRACE("inner step " + std::to_string(step));
      EXPECT_EQ(inner.made(step), at.made);
      for (uint32_t r = 0; r < shape.replicas; ++r) {
        const auto own = inner.own(r, step);
        ASSERT_EQ(own.has_value(), at.steps[r].has_value());
        idle[r] += !own.has_value();
        if (own) {
          EXPECT_EQ(own->step, *at.steps[r]);
          EXPECT_EQ(own->scheduled, *at.scheduled[r]);
        }
        EXPECT_EQ(inner.idle(r, step), idle[r]);
      }
      EXPECT_EQ(inner.is_whole(step), at.agrees);
      auto next = dealt.find(step);
      while (!next->second.agrees) ++next;
      EXPECT_EQ(inner.next_whole(step), next->first);
      EXPECT_EQ(inner.is_due(every, step), at.agrees && at.made / every > at.made_before_round / every);
    }
    EXPECT_FALSE(inner.own(0, dealt.rbegin()->first + 1).has_value());
    EXPECT_EQ(inner.made(dealt.rbegin()->first + 7), shape.steps) << "nothing comes after the last";
  }
}

// Where replicas come and go a snapshot may be of those before: in whose numbers it has another place.
TEST(InnerSteps, FindsWhereASnapshotIs) {
  const InnerSteps three(
      replicas::LocalSteps{.terms = {.count = 3, .every = 4}, .steps = 100, .begun_after = 10});
  EXPECT_EQ(three.find(14, 22), 14u) << "its own";
  EXPECT_EQ(three.find(5, 10), 10u) << "of two replicas, after which these began";
  EXPECT_EQ(three.find(14, 18), std::nullopt) << "of others, after as many inner steps";
  EXPECT_EQ(three.find(15, 25), std::nullopt) << "where they do not agree";
  EXPECT_EQ(three.find(4, 8), std::nullopt) << "before they began";
  EXPECT_EQ(three.find(1000, 100), std::nullopt);
  EXPECT_TRUE(three.is_begun_at(10));
  EXPECT_FALSE(three.is_begun_at(14));
  proto::RunTerms plain;
  plain.training.steps = 20;
  EXPECT_EQ(InnerSteps(plain).find(7, 7), 7u);
}

}  // namespace
}  // namespace weft::broker::local
