// Which stages peers serve, by what the core says to them.
#include "broker/service/stage_desk.h"

#include <gtest/gtest.h>

#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using test::key;
using Head = proto::ReportHead;

constexpr Instant kBegin{minutes(1000)};

TEST(StageDesk, AReportCountsUnderThePlanThatItsSenderWasToldLast) {
  StageDesk desk(kBegin);
  EXPECT_TRUE(desk.is_stale(1, Head{4, 2})) << "it serves nothing";
  EXPECT_FALSE(desk.is_stale(1, std::nullopt)) << "no report";
  EXPECT_TRUE(desk.on_sent(1, key(1), proto::AssignStage{.run = 4, .plan_version = 2}));
  EXPECT_FALSE(desk.is_stale(1, Head{4, 2}));
  EXPECT_TRUE(desk.is_stale(1, Head{4, 1}));
  EXPECT_TRUE(desk.is_stale(1, Head{5, 2}));
  EXPECT_TRUE(desk.is_stale(2, Head{4, 2})) << "another one's";
  EXPECT_FALSE(desk.on_sent(1, key(1), proto::ResumeStage{.run = 4, .plan_version = 3})) << "it did before";
  EXPECT_TRUE(desk.is_stale(1, Head{4, 2}));
  EXPECT_FALSE(desk.is_stale(1, Head{4, 3}));
}

TEST(StageDesk, ItIsLetGoByAReleaseOfThatRunAndPlanOrALaterOne) {
  StageDesk desk(kBegin);
  desk.on_sent(1, key(1), proto::AssignStage{.run = 4, .plan_version = 2});
  desk.on_sent(1, key(1), proto::ReleaseStage{.run = 4, .plan_version = 1});
  desk.on_sent(1, key(1), proto::ReleaseStage{.run = 5, .plan_version = 9});
  EXPECT_TRUE(desk.serves(1));
  EXPECT_TRUE(desk.serves(key(1)));
  desk.on_sent(1, key(1), proto::ReleaseStage{.run = 4, .plan_version = 2});
  EXPECT_FALSE(desk.serves(1));
  EXPECT_FALSE(desk.serves(key(1)));
  EXPECT_TRUE(desk.is_stale(1, Head{4, 2}));
  EXPECT_TRUE(desk.on_sent(1, key(1), proto::AssignStage{.run = 6, .plan_version = 1})) << "anew";
}

TEST(StageDesk, OneThatServesAndTrainsIsHeardOfBoth) {
  StageDesk desk(kBegin);
  EXPECT_TRUE(desk.on_sent(1, key(1), proto::AssignStage{.run = 4, .plan_version = 2}));
  EXPECT_FALSE(desk.on_sent(1, key(1), proto::AssignStage{.run = 7, .plan_version = 1}));
  EXPECT_FALSE(desk.is_stale(1, Head{4, 2}));
  EXPECT_FALSE(desk.is_stale(1, Head{7, 1}));
  EXPECT_EQ(desk.holder_of(key(1), proto::ServeRequest{.run = 4, .plan_version = 2}), 1u);
  desk.on_sent(1, key(1), proto::AssignStage{.run = 7, .plan_version = 2});
  EXPECT_TRUE(desk.is_stale(1, Head{7, 1}));
  desk.on_sent(1, key(1), proto::ReleaseStage{.run = 7, .plan_version = 2});
  EXPECT_TRUE(desk.is_stale(1, Head{7, 2}));
  EXPECT_FALSE(desk.is_stale(1, Head{4, 2}));
  EXPECT_TRUE(desk.serves(1));
  desk.on_sent(1, key(1), proto::ReleaseStage{.run = 4, .plan_version = 2});
  EXPECT_FALSE(desk.serves(1));
}

// The old connection ends after the new one was told to go on.
TEST(StageDesk, WhoComesAgainGoesOn) {
  StageDesk desk(kBegin);
  const proto::ServeRequest request{.run = 4, .plan_version = 2};
  desk.on_sent(1, key(1), proto::AssignStage{.run = 4, .plan_version = 2});
  EXPECT_EQ(desk.holder_of(key(1), request), 1u);
  desk.on_sent(2, key(1), proto::ResumeStage{.run = 4, .plan_version = 2});
  desk.end(1);
  EXPECT_EQ(desk.holder_of(key(1), request), 2u);
  desk.end(2);
  EXPECT_FALSE(desk.serves(key(1)));
  EXPECT_EQ(desk.holder_of(key(1), request), std::nullopt);
}

TEST(StageDesk, RequestsGoToTheStageOfTheirPlanAndToNobodyElse) {
  StageDesk desk(kBegin);
  desk.on_sent(1, key(1), proto::AssignStage{.run = 4, .plan_version = 2});
  EXPECT_EQ(desk.holder_of(key(1), proto::CancelRequest{.run = 4, .plan_version = 2}), 1u);
  EXPECT_EQ(desk.holder_of(key(1), proto::ServeRequest{.run = 4, .plan_version = 3}), std::nullopt);
  EXPECT_EQ(desk.holder_of(key(1), proto::ServeRequest{.run = 5, .plan_version = 2}), std::nullopt);
  EXPECT_EQ(desk.holder_of(key(2), proto::ServeRequest{.run = 4, .plan_version = 2}), std::nullopt);
  EXPECT_EQ(desk.holder_of(key(1), proto::Heartbeat{}), std::nullopt) << "for no stage";
}

TEST(StageDesk, TokensAreTheEntrysOfThePlanThatTheCoreNamed) {
  StageDesk desk(kBegin);
  const proto::ServeProgress token{.run = 4, .plan_version = 2};
  EXPECT_FALSE(desk.is_entry(key(1), token));
  desk.on_entry({.job = 4, .plan_version = 2, .entry = key(1)});
  EXPECT_TRUE(desk.is_entry(key(1), token));
  EXPECT_FALSE(desk.is_entry(key(2), token));
  EXPECT_FALSE(desk.is_entry(key(1), {.run = 4, .plan_version = 1}));
  EXPECT_FALSE(desk.is_entry(key(1), {.run = 5, .plan_version = 2}));
  desk.on_entry({.job = 4, .plan_version = 3, .entry = {}});
  EXPECT_FALSE(desk.is_entry(key(1), token)) << "taken back";
}

TEST(StageDesk, WhatWasDroppedIsToldOnceAMinute) {
  StageDesk desk(kBegin);
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(2)), std::nullopt) << "nothing was";
  EXPECT_TRUE(desk.is_stale(1, Head{4, 2}));
  desk.drop();
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(1)), std::nullopt);
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(2)), 2u);
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(9)), std::nullopt);
  desk.drop();
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(2) + seconds(60)), std::nullopt);
  EXPECT_EQ(desk.dropped_to_tell(kBegin + minutes(2) + seconds(61)), 1u);
}

}  // namespace
}  // namespace weft::broker
