// What a run writes next, by itself: where borders lie, and which reports may come twice.
#include "broker/run/run_commands.h"

#include <gtest/gtest.h>

#include "broker/run/repeats.h"
#include "tests/broker/run_shape.h"

namespace weft::broker {
namespace {

using proto::CommandKind;
using test::Shape;

TEST(Borders, AreTheNearestOfEvaluationSnapshotAndEnd) {
  PlannedRun plan = *test::plan_of({.steps = 40, .checkpoint_steps = 15, .forward_microbatches = 2});
  plan.borders.evaluate_every = 10;
  EXPECT_EQ(next_border(plan, 0, std::nullopt), 10u);   // an evaluation
  EXPECT_EQ(next_border(plan, 10, std::nullopt), 15u);  // a checkpoint
  EXPECT_EQ(next_border(plan, 15, std::nullopt), 20u);
  EXPECT_EQ(next_border(plan, 20, std::nullopt), 30u);  // both
  EXPECT_EQ(next_border(plan, 10, 12), 12u);            // a copy
  EXPECT_EQ(next_border(plan, 10, 99), 15u);
}

TEST(Borders, AreNeverBehindWhatIsGranted) {
  const PlannedRun plan = *test::plan_of({.steps = 40});
  EXPECT_EQ(next_border(plan, 0, std::nullopt), 40u);
  EXPECT_EQ(next_border(plan, 7, 3), 8u);  // a copy that is overdue is made after the next step
}

TEST(Borders, AnEvaluationOfNothingIsNone) {
  PlannedRun plan = *test::plan_of({.steps = 40});
  plan.borders.evaluate_every = 10;
  EXPECT_EQ(next_border(plan, 0, std::nullopt), 40u);
}

class CommandsFixture {
 public:
  explicit CommandsFixture(const Shape& shape)
      : plan(test::plan_of(shape)),
        steps(plan, 0, 0),
        absence(plan),
        followers(*plan),
        rounds(1, plan, {}, options, absence, followers),
        forward(plan, {}, options.forward_chunk),
        comparison(*plan, {}, options),
        mean_checks(plan, {}),
        commands(1, 1, plan, options, {steps, rounds, forward, comparison, mean_checks, absence}) {
    steps.start(now);
    rounds.start(now);
    comparison.start(now);
  }
  std::vector<proto::Command> advance() {
    RunEffects out;
    commands.advance(now, out);
    return written(out);
  }
  std::vector<proto::Command> written(const RunEffects& out) const {
    std::vector<proto::Command> all;
    for (const RunEffect& effect : out) all.push_back(std::get<IssueCommand>(effect).command);
    const Status checked = commands.check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
    return all;
  }

  Instant now = Instant{} + std::chrono::hours(1);
  RunOptions options{};
  std::shared_ptr<const PlannedRun> plan;
  Steps steps;
  Absence absence;
  Followers followers;
  Rounds rounds;
  ForwardPass forward;
  Comparison comparison;
  MeanChecks mean_checks;
  Commands commands;
};

TEST(Commands, ASnapshotFollowsTheGrantThatEndsAtItsBorder) {
  CommandsFixture fixture({.steps = 40, .checkpoint_steps = 3});
  const auto written = fixture.advance();
  ASSERT_GE(written.size(), 2u);
  for (size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i].sequence, i + 1);
  uint64_t granted = 0, checkpoints = 0;
  for (const proto::Command& command : written) {
    if (command.kind == CommandKind::Advance) granted = command.step;
    EXPECT_EQ(command.step, granted);
    if (command.kind == CommandKind::Checkpoint) {
      EXPECT_EQ(command.step, 3 * ++checkpoints);
    }
  }
  EXPECT_EQ(granted, fixture.options.window_steps);
  EXPECT_EQ(checkpoints, fixture.options.window_steps / 3);
  EXPECT_TRUE(fixture.advance().empty());  // nothing is committed since
}

TEST(Commands, AfterAStopThereIsOnlyALastCheckpoint) {
  CommandsFixture fixture({.steps = 40});
  fixture.advance();
  const uint64_t granted = fixture.steps.granted();
  fixture.commands.stop();
  EXPECT_TRUE(fixture.advance().empty());
  RunEffects out;
  fixture.commands.write_last_snapshot(fixture.now, /*moving=*/false, out);
  const auto last = fixture.written(out);
  ASSERT_FALSE(last.empty());
  EXPECT_EQ(last.back().kind, CommandKind::Checkpoint);
  EXPECT_EQ(last.back().step, fixture.steps.granted());
  EXPECT_LE(fixture.steps.granted(), granted + 1);  // one more where that step has a copy already
  out.clear();
  fixture.commands.write_last_snapshot(fixture.now, /*moving=*/false, out);
  EXPECT_TRUE(out.empty());
}

TEST(Repeats, AreOfWhatWasGrantedBeforeTheStageCameBack) {
  Repeats repeats(2);
  EXPECT_FALSE(repeats.drop(0, 1));
  repeats.on_resumed(1, 5);
  EXPECT_FALSE(repeats.drop(0, 5));  // the other stage was here all the time
  EXPECT_TRUE(repeats.drop(1, 5));
  EXPECT_FALSE(repeats.drop(1, 6));
  EXPECT_TRUE(repeats.may_be(1, 1));
  EXPECT_EQ(repeats.dropped(), 1u);
  repeats.on_resumed(0, 0);  // before the first grant
  EXPECT_TRUE(repeats.may_be(0, 1));
}

}  // namespace
}  // namespace weft::broker
