// Replicas that follow the others until they have what these have: what their run makes of them.
#include <gtest/gtest.h>

#include "tests/broker/local_run.h"

namespace weft::broker::local {
namespace {

const replicas::Inherited kOfTwo{.sets = {0, 1, 0}, .debtless = {2}};

LocalShape shape_of_three() {
  return {
      .replicas = 3, .every = 3, .steps = 60, .checkpoint_steps = 12, .replicas_max = 3, .followers = {2}};
}

bool has_part(const WholeSnapshot& whole, uint32_t replica) {
  return std::any_of(whole.snapshot.tensors.begin(), whole.snapshot.tensors.end(), [&](const auto& tensor) {
    return tensor.key.slot == dag::StateSlot::Residue && tensor.key.replica == replica;
  });
}

// Its successor begins with what the first one has, if the run goes back to any of these.
TEST(LocalFollowers, HaveNoPartInWhatIsKeptUntilTheyAreThere) {
  LocalRun run(shape_of_three());
  run.hear(run.run->start(run.now));
  run.play();
  EXPECT_EQ(run.finished, 60u);
  ASSERT_FALSE(run.snapshots.empty());
  for (const WholeSnapshot& whole : run.snapshots) {
    EXPECT_TRUE(whole.is_durable) << "copies would push out what is being fetched";
    EXPECT_EQ(whole.snapshot.local->inherited, kOfTwo);
    EXPECT_FALSE(has_part(whole, 2));
  }
  for (const Command& command : run.script) {
    EXPECT_FALSE(command.with_followers);
    EXPECT_EQ(command.keep_from, 0u) << "somebody fetches what the run began with";
  }
}

TEST(LocalFollowers, HaveAPartOnceTheyAreThere) {
  for (const uint64_t settle_every : {1, 4}) {
    LocalShape shape = shape_of_three();
    shape.settle_every = settle_every;
    LocalRun run(shape);
    run.hear(run.run->start(run.now));
    while (run.run->committed_step() < 7 && run.turn()) {
    }
    EXPECT_TRUE(run.run->followers().are_awaited());
    run.run->followers().came(2);
    EXPECT_TRUE(run.run->followers().are_there());
    run.hear(run.run->request_stop(run.now, /*to_go_on=*/true));
    run.play();
    ASSERT_TRUE(run.stopped.has_value());
    ASSERT_FALSE(run.snapshots.empty());
    const WholeSnapshot& last = run.snapshots.back();
    EXPECT_EQ(last.snapshot.made(), *run.stopped);
    EXPECT_TRUE(last.snapshot.local->inherited.is_whole());
    EXPECT_TRUE(has_part(last, 2));
    EXPECT_TRUE(run.run->followers().have_part(last.snapshot.step));
    EXPECT_FALSE(run.run->followers().have_part(last.snapshot.step - 1));
  }
}

// Nothing of its is made again, and the others stop where they would have agreed.
TEST(LocalFollowers, WhoIsLostCostsNoStep) {
  LocalRun run(shape_of_three());
  run.hear(run.run->start(run.now));
  while (run.run->committed_step() < 4 && run.turn()) {
  }
  ASSERT_TRUE(run.lose(2));
  EXPECT_EQ(run.run->absence().steps_lost(), 0u);
  run.play();
  EXPECT_EQ(run.stopped, 12u);
  EXPECT_EQ(run.snapshots.back().snapshot.local->inherited.sets, kOfTwo.sets);
  EXPECT_TRUE(run.snapshots.back().snapshot.local->given_again.empty());
}

TEST(LocalFollowers, AreNotAllThatIsLeft) {
  LocalShape shape = shape_of_three();
  shape.replicas = 2;
  shape.followers = {1};
  LocalRun run(shape);
  run.hear(run.run->start(run.now));
  while (run.run->committed_step() < 4 && run.turn()) {
  }
  EXPECT_FALSE(run.lose(0)) << "the run goes back";
}

}  // namespace
}  // namespace weft::broker::local
