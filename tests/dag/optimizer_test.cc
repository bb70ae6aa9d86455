#include "dag/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dag/state.h"

namespace weft::dag {
namespace {

using Slots = std::vector<StateSlot>;

TEST(Optimizer, SlotsAreThoseOfTheRule) {
  EXPECT_EQ(optimizer_slots(OptimizerSpec{.type = OptimizerType::Sgd}), Slots{});
  EXPECT_EQ(optimizer_slots(OptimizerSpec{.type = OptimizerType::Sgd, .momentum = 0.9}),
            Slots{StateSlot::Momentum});
  EXPECT_EQ(optimizer_slots(OptimizerSpec{.type = OptimizerType::Adam}), (Slots{StateSlot::M, StateSlot::V}));
  EXPECT_EQ(optimizer_slots(OptimizerSpec{.type = OptimizerType::AdamW}),
            (Slots{StateSlot::M, StateSlot::V}));
}

TEST(Schedule, ConstantWithoutWarmUpIsTheRate) {
  for (const uint64_t step : {1u, 7u, 10u}) EXPECT_EQ(scheduled_learning_rate({}, 0.3, step, 10), 0.3);
}

TEST(Schedule, WarmUpRisesInEqualStepsForEveryType) {
  for (const auto type : {ScheduleType::Constant, ScheduleType::Linear, ScheduleType::Cosine}) {
    const ScheduleSpec schedule{type, 4, 0.1};
    for (uint64_t step = 1; step <= 4; ++step)
      EXPECT_EQ(scheduled_learning_rate(schedule, 0.2, step, 10), 0.2 * static_cast<double>(step) / 4);
  }
}

TEST(Schedule, LinearFallsToItsFraction) {
  const ScheduleSpec schedule{ScheduleType::Linear, 2, 0.1};
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(schedule, 1, 6, 10), 0.55);
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(schedule, 1, 10, 10), 0.1);
}

TEST(Schedule, CosinePassesItsKnownPoints) {
  const ScheduleSpec schedule{ScheduleType::Cosine, 2, 0.1};
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(schedule, 1, 4, 10), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(schedule, 1, 6, 10), 0.55);
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(schedule, 1, 10, 10), 0.1);
}

TEST(Schedule, WarmUpAsLongAsTheRunEndsAtTheRate) {
  const ScheduleSpec schedule{ScheduleType::Cosine, 10, 0};
  EXPECT_EQ(scheduled_learning_rate(schedule, 0.5, 10, 10), 0.5);
}

TEST(ClipFactor, OnlyShrinks) {
  EXPECT_EQ(clip_factor(1, 0.5), 1);
  EXPECT_DOUBLE_EQ(clip_factor(1, 4), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(1, 0), 1);
}

TEST(ClipFactor, WithoutANormNothingIsClipped) { EXPECT_EQ(clip_factor(0, 1e30), 1); }

TEST(ClipFactor, NormsThatAreNotFiniteAreAsInPyTorch) {
  EXPECT_TRUE(std::isnan(clip_factor(1, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(clip_factor(1, std::numeric_limits<double>::infinity()), 0);
}

}  // namespace
}  // namespace weft::dag
