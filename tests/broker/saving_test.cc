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

// Another stage may take hours for its part, and who has uploaded this one may be gone meanwhile.
TEST_F(SavingTest, APartThatWasReportedIsSpokenOfBeforeTheOthersAreThere) {
  auto part = world_.state_of_stage();
  part.front().sha256.bytes.fill(7);
  EXPECT_FALSE(world_.broker.referenced_blobs().contains(part.front().sha256));
  world_.receive(world_.peers[0], proto::CheckpointReport{
                                      .run = 1, .plan_version = world_.version, .step = 2, .tensors = part});
  EXPECT_TRUE(world_.broker.referenced_blobs().contains(part.front().sha256));
}

// Of a line whose upload takes long: what a stage has uploaded and not reported yet nobody can name.
TEST(Uploads, OfSnapshotsUnderWayStayHoweverLongTheyTake) {
  World world;
  world.run_two_stages(100);  // each step has a copy, and a few are under way at once
  world.now += std::chrono::seconds(40);
  std::vector<Duration> young;
  for (uint64_t step = 1; step <= 2; ++step) {
    for (const ConnectionId peer : world.peers) {
      proto::StepReport report{.run = 1, .plan_version = world.version, .step = step};
      report.squares = {4.0};
      if (peer == world.peers.back()) report.losses = {1.0, 3.0};
      report.updated = true;
      world.receive(peer, report);
    }
    for (const ConnectionId peer : world.peers) {
      const proto::CheckpointReport report{.run = 1, .plan_version = world.version, .step = step};
      const Effects effects =
          world.step(Received{peer, std::make_shared<const Message>(report), /*bytes=*/{}});
      for (const Effect& effect : effects.effects)
        if (const auto* keep = std::get_if<KeepTransient>(&effect)) young.push_back(keep->young);
    }
  }
  ASSERT_EQ(young.size(), 2u) << "a copy is whole";
  EXPECT_GE(young[0], std::chrono::seconds(40)) << "step 2's began with the run";
  EXPECT_GE(young[1], std::chrono::seconds(40)) << "so did step 3's";
}

}  // namespace
}  // namespace weft::broker
