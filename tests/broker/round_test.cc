// A round by itself: when it is made and whole, and what it does not take.
#include "broker/run/round.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

constexpr Instant kNow = Instant{} + std::chrono::hours(1);

Round of_two_stages(bool direct) {
  Round round{.sequence = 1, .step = 8, .direct = direct};
  round.begin(2);
  return round;
}

proto::CheckpointReport report_of(uint64_t skipped_steps = 0) {
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 8};
  report.skipped_steps = skipped_steps;
  report.tensors.resize(1);
  return report;
}

// What it says to a part; nothing: it has it.
std::optional<Error> take(Round& round, uint32_t stage, const proto::CheckpointReport& report,
                          uint32_t blobs_missing = 0) {
  auto failure = round.take(kNow, stage, report, blobs_missing);
  EXPECT_TRUE(failure.has_value());
  return failure ? *failure : failure.error();
}

TEST(Round, IsWholeWithTheLastPart) {
  Round round = of_two_stages(/*direct=*/false);
  EXPECT_FALSE(take(round, 0, report_of()));
  EXPECT_FALSE(round.awaits(0));
  EXPECT_TRUE(round.awaits(1));
  EXPECT_FALSE(round.is_whole());
  EXPECT_FALSE(take(round, 1, report_of()));
  EXPECT_TRUE(round.is_whole());
  EXPECT_FALSE(round.failed);
  EXPECT_EQ(round.tensors.size(), 2u);
}

TEST(Round, ADirectOneIsMadeAndThenFetched) {
  Round round = of_two_stages(/*direct=*/true);
  EXPECT_FALSE(take(round, 0, report_of(), /*blobs_missing=*/1));  // peers have it, the broker need not
  EXPECT_FALSE(round.awaits_fetch(0));
  EXPECT_FALSE(take(round, 1, report_of(), 1));
  EXPECT_TRUE(round.is_made());
  EXPECT_EQ(round.made_at, kNow);
  EXPECT_FALSE(round.is_whole());
  for (const uint32_t stage : {0u, 1u}) {
    EXPECT_TRUE(round.awaits_fetch(stage));
    round.in[stage] = true;
  }
  EXPECT_TRUE(round.is_whole());
}

TEST(Round, BlobsThatAreMissingBreakTheProtocolUnlessAStageCameBack) {
  Round round = of_two_stages(/*direct=*/false);
  const auto refused = round.take(kNow, 0, report_of(), 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(round.awaits(0));  // nothing came of it
  round.outlived = true;
  const auto failure = take(round, 0, report_of(), 1);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, ErrorCode::NotFound);
  EXPECT_TRUE(round.failed);
  EXPECT_TRUE(round.tensors.empty());
}

TEST(Round, StagesHaveToAgreeOnStepsThatWereSkipped) {
  Round round = of_two_stages(/*direct=*/false);
  EXPECT_FALSE(take(round, 0, report_of(2)));
  const auto failure = take(round, 1, report_of(3));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, ErrorCode::Corrupted);
  EXPECT_TRUE(round.is_whole());  // all have said something
  EXPECT_TRUE(round.failed);
}

TEST(Round, OneThatIsDroppedGoesWhenEveryStageHasMadeIt) {
  Round round = of_two_stages(/*direct=*/true);
  EXPECT_FALSE(take(round, 0, report_of()));
  EXPECT_FALSE(round.drop());
  EXPECT_FALSE(round.is_whole());
  EXPECT_FALSE(take(round, 1, report_of()));
  EXPECT_TRUE(round.is_whole());
  EXPECT_TRUE(round.failed);
}

}  // namespace
}  // namespace weft::broker
