// Numbers that are not finite: the run goes back once, and ends when they come again.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobState;

proto::StageFailed not_finite_on_an_edge(const World& world, uint64_t step) {
  proto::StageFailed failed{.run = 1, .plan_version = world.version};
  failed.error = {ErrorCode::OutOfRange,
                  "a NaN or an infinity came from stage 1: edge 4, step 2, microbatch 0"};
  failed.permanent = failed.diverged = true;
  failed.unreachable = plan::Seat{0};
  failed.step = step;
  return failed;
}

proto::StepReport not_finite(const World& world, uint64_t step) {
  proto::StepReport report{.run = 1, .plan_version = world.version, .step = step};
  report.squares = {std::numeric_limits<double>::quiet_NaN()};
  report.losses = {1.0, 1.0};
  report.updated = true;
  return report;
}

// Once somebody else in the place of who made the numbers, and then it is the model.
TEST(Divergence, GoesBackOnceAndEndsTheJobWhenItComesAgain) {
  for (const bool on_a_link : {false, true}) {
    SCOPED_TRACE(on_a_link);
    World world;
    world.join(3, 3);
    world.copies = false;
    world.run_two_stages(100);
    const ConnectionId maker = world.peers[on_a_link ? 0 : 1], other = world.peers[on_a_link ? 1 : 0];
    const auto diverge = [&](uint64_t step) {
      if (on_a_link)
        world.receive(world.peers[1], not_finite_on_an_edge(world, step));
      else
        world.receive(world.peers[1], not_finite(world, step));
    };
    diverge(1);
    EXPECT_EQ(world.states[1], JobState::Planning);
    ASSERT_EQ(world.plannings.size(), 1u);
    bool keeps_other = false;
    for (const Candidate& candidate : world.plannings[0].candidates) {
      EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(maker))) << "who made it is not asked again";
      keeps_other = keeps_other || candidate.peer == key(static_cast<uint8_t>(other));
    }
    EXPECT_TRUE(keeps_other);
    world.plan_and_ready(2, 100);
    ASSERT_EQ(world.states[1], JobState::Running);
    diverge(1);
    EXPECT_EQ(world.states[1], JobState::Failed);
    EXPECT_TRUE(world.plannings.empty());
    const proto::JobEvent& end = world.events.back();
    EXPECT_TRUE(end.diverged);
    for (const std::string& says :
         {std::string("not finite: stage 2"), std::string("again after going back"),
          std::string("the model diverged"), std::string("there was no checkpoint yet"),
          std::string(on_a_link ? "edge 4, step 2" : "step 1")})
      EXPECT_NE(end.text.find(says), std::string::npos) << end.text;
    EXPECT_EQ(world.broker.counters().protocol_errors, 0u);
  }
}

// What counts as again: up to the step that it went back for. Past that it was not the model.
TEST(Divergence, ARunThatGetsPastTheStepMayGoBackForAnother) {
  World world;
  world.run_two_stages(100);
  world.report_step(1);
  world.receive(world.peers[1], not_finite(world, 2));
  ASSERT_EQ(world.plannings.size(), 1u) << "the same two, where nobody else is there";
  EXPECT_EQ(world.plannings[0].checkpoint->step, 1u);
  world.plan_and_ready(2, 100);
  world.report_step(2);
  world.receive(world.peers[1], not_finite(world, 3));
  ASSERT_EQ(world.plannings.size(), 1u);
  world.plan_and_ready(2, 100);
  world.receive(world.peers[1], not_finite(world, 3));
  EXPECT_EQ(world.states[1], JobState::Failed);
}

// An old peer does not say of which step: up to the last one that may have been under way it comes again.
TEST(Divergence, OfAnUnknownStepComesAgainUpToTheLastThatWasGranted) {
  for (const bool passes : {false, true}) {
    SCOPED_TRACE(passes);
    World world;
    world.run_two_stages(100);
    world.receive(world.peers[1], not_finite_on_an_edge(world, 0));
    world.plan_and_ready(2, 100);
    for (uint64_t step = 1; step <= (passes ? 8 : 5); ++step) world.report_step(step);
    world.receive(world.peers[1], not_finite_on_an_edge(world, uint64_t{1} << 60));
    EXPECT_EQ(world.states[1], passes ? JobState::Planning : JobState::Failed);
  }
}

TEST(Divergence, SaysWhichCheckpointIsKept) {
  World world;
  world.copies = false;
  world.run_two_stages(2000);
  uint64_t step = 0;
  while (world.messages<proto::Command>(world.peers[0]).back().kind != proto::CommandKind::Checkpoint) {
    ASSERT_LT(step, 2000u);
    world.report_step(++step);
  }
  const uint64_t saved = world.messages<proto::Command>(world.peers[0]).back().step;
  while (step < saved) world.report_step(++step);
  world.report_checkpoint(saved);
  const auto diverge = [&] {
    proto::StepReport report{.run = 1, .plan_version = world.version, .step = saved + 1};
    report.losses = {1.0, std::numeric_limits<double>::infinity()};
    report.squares = {1.0};
    world.receive(world.peers[1], report);
  };
  diverge();
  world.plan_and_ready(2, 2000);
  diverge();
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("the checkpoint of step " + std::to_string(saved) +
                                          " is kept: weft fetch 1"),
            std::string::npos)
      << world.events.back().text;
  world.receive(100, proto::GetResult{1});
  ASSERT_FALSE(world.messages<proto::JobResult>(100).empty()) << "out of the store: it has ended";
  EXPECT_EQ(world.messages<proto::JobResult>(100).back().step, saved);
}

}  // namespace
}  // namespace weft::broker
