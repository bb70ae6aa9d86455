// How slow a stage is found from what it says of its work.
#include "broker/run/slowness.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

constexpr SlowOptions kOptions{.factor = 10, .after = std::chrono::seconds(5), .promise_min = 0};
constexpr double kPromised = 0.1;  // seconds for a segment

TEST(WorkWindow, IsWholeOnceItHasComputedForLongEnough) {
  WorkWindow window;
  EXPECT_FALSE(window.has_said());
  EXPECT_EQ(window.say(10, 4.9), true);
  EXPECT_TRUE(window.has_said());
  EXPECT_FALSE(window.is_whole(kOptions));
  EXPECT_EQ(window.say(10, 5.0), false) << "no new segment";
  EXPECT_TRUE(window.is_whole(kOptions));
  window.end(1);
  EXPECT_FALSE(window.is_whole(kOptions));
}

TEST(WorkWindow, WhatSaysLessThanBeforeChangesNothing) {
  WorkWindow window;
  (void)window.say(10, 4.0);
  EXPECT_EQ(window.say(9, 6.0), std::nullopt);
  EXPECT_EQ(window.say(11, 3.9), std::nullopt);
  EXPECT_EQ(window.segments(), 10u);
  EXPECT_FALSE(window.is_whole(kOptions));
}

// What was fast for long does not hide that it is slow now.
TEST(WorkWindow, ComparesThisWindowAloneWithWhatWasPromised) {
  WorkWindow window;
  (void)window.say(60, 6.0);
  EXPECT_DOUBLE_EQ(window.slowness(kOptions, kPromised), 1);
  window.end(1);
  (void)window.say(62, 10.0);
  EXPECT_DOUBLE_EQ(window.slowness(kOptions, kPromised), 20);
}

TEST(WorkWindow, ASegmentThatIsNotDoneCountsOnceTheWindowIsWhole) {
  WorkWindow window;
  (void)window.say(0, 4.0);
  EXPECT_DOUBLE_EQ(window.slowness(kOptions, kPromised), 0) << "nobody knows yet";
  (void)window.say(0, 6.0);
  EXPECT_DOUBLE_EQ(window.slowness(kOptions, kPromised), 60);
  window.end(60);
  (void)window.say(0, 7.0);
  EXPECT_DOUBLE_EQ(window.slowness(kOptions, kPromised), 60) << "as over the window before";
}

TEST(UsualSlowness, IsTheMiddleOneAndNeverLessThanWhatWasPromised) {
  EXPECT_EQ(usual_slowness({}), 1);
  EXPECT_EQ(usual_slowness({0.2, 0.1, 0.3}), 1);
  EXPECT_EQ(usual_slowness({2, 100, 3}), 3);
  EXPECT_EQ(usual_slowness({2, 7}), 7) << "of an even number the slower one";
}

}  // namespace
}  // namespace weft::broker
