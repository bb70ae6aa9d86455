// What a user is told of a checkpoint that stages upload.
#include <gtest/gtest.h>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

// A job of two stages of 100 MB each has done its last step.
class SavingTest : public ::testing::Test {
 protected:
  SavingTest() {
    world_.copies = false;
    world_.join(3, 3);
    world_.run_two_stages(2);
    for (const uint64_t step : {1, 2}) world_.report_step(step);
  }

  proto::JobStatus status() {
    world_.receive(100, proto::GetJob{1});
    return world_.messages<proto::JobStatus>(100).back();
  }
  void say(size_t stage, int64_t saved, uint64_t step = 2) {
    world_.receive(world_.peers[stage], beat(saved, step));
  }
  proto::Heartbeat beat(int64_t saved, uint64_t step = 2) const {
    return {.saving = proto::StageSaving{1, world_.version, step, {saved}}};
  }

  World world_;
};

TEST_F(SavingTest, EachStageSaysHowFarItIsAndTheJobIsTheSum) {
  EXPECT_EQ(status().saving.step, 0u) << "nobody has begun";
  say(0, 30'000'000);
  say(1, 0);
  // Of another peer, through its gate.
  world_.step(Heard{world_.peers[1], world_.now, {}, beat(1'000'000).saving});
  const proto::JobStatus job = status();
  EXPECT_EQ(job.saving.step, 2u);
  EXPECT_EQ(job.saving.bytes.value, 200'000'000);
  EXPECT_EQ(job.saving.saved.value, 31'000'000);
}

TEST_F(SavingTest, WhoeverHasNoStageOrSpeaksOfAnotherPlanIsNotHeard) {
  say(0, 10);
  world_.receive(3, beat(90'000'000));
  world_.step(Heard{77, world_.now, {}, beat(90'000'000).saving});
  proto::Heartbeat other = beat(90'000'000);
  other.saving->plan_version += 1;
  world_.receive(world_.peers[0], other);
  other = beat(90'000'000);
  other.saving->run = 7;
  world_.receive(world_.peers[0], other);
  say(0, 90'000'000, /*step=*/1);
  EXPECT_EQ(status().saving.saved.value, 10);
}

TEST_F(SavingTest, AJobThatHasEndedSavesNothing) {
  say(0, 30'000'000);
  world_.report_checkpoint(2);
  EXPECT_EQ(world_.states.at(1), JobState::Finished);
  EXPECT_EQ(status().saving.step, 0u);
}

TEST_F(SavingTest, WithALostStageNothingIsBeingSavedUntilTheJobRunsAgain) {
  say(0, 30'000'000);
  say(1, 20'000'000);
  world_.step(Disconnected{world_.peers[1], "reset"});
  EXPECT_EQ(status().saving.step, 0u);
  EXPECT_EQ(status().saving.saved.value, 0);
  say(0, 40'000'000);
  EXPECT_EQ(status().saving.step, 0u) << "of the plan before";
}

}  // namespace
}  // namespace weft::broker
