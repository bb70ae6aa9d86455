// Runs that lose a replica: the others end their round without it, and the run goes on with other peers from
// there.
#include "broker/run/heirs.h"
#include "tests/broker/local_run.h"

namespace weft::broker::local {
namespace {

using Ranges = std::vector<replicas::StepRange>;

// Steps of the run that the lost ones had a part in, of the round that ends with that inner step, and of the
// one before where that overlaps it.
std::set<uint64_t> steps_lost(const LocalRun& run, uint64_t end, const std::set<uint32_t>& lost) {
  std::set<uint64_t> steps;
  const uint64_t before = run.dealt.at(end).end_before;
  const auto of_before = run.dealt.find(before);
  const bool overlaps = of_before != run.dealt.end() && !of_before->second.settles;
  const uint64_t first = overlaps ? of_before->second.made_before_round : run.dealt.at(end).made_before_round;
  for (const auto& [inner, at] : run.dealt)
    if (inner <= end && at.made_before_round >= first)
      for (const uint32_t replica : lost)
        if (at.steps[replica]) steps.insert(*at.steps[replica]);
  return steps;
}

std::set<uint64_t> steps_in(const Ranges& ranges) {
  std::set<uint64_t> steps;
  for (const auto& range : ranges)
    for (uint64_t i = 0; i < range.count; ++i) steps.insert(range.first + i);
  return steps;
}

// What it goes on from: agreed by those that are there, with the first one's slots for those that are not.
void expect_point(const LocalRun& run, const CheckpointCommitted& point, const std::set<uint32_t>& left_out) {
  ASSERT_TRUE(point.local.has_value());
  const proto::LocalPoint& local = *point.local;
  auto lost = steps_lost(run, point.step, left_out);
  EXPECT_EQ(local.steps, run.dealt.at(point.step).made - lost.size());
  while (!lost.empty() && *lost.rbegin() == local.steps + lost.size()) lost.erase(*lost.rbegin());
  EXPECT_EQ(steps_in(local.given_again), lost) << "the last ones are next anyway";
  EXPECT_EQ(local.inherited.left_out, std::vector<uint32_t>(left_out.begin(), left_out.end()));
  EXPECT_EQ(local.inherited.debtless, std::vector<uint32_t>(run.lost.begin(), run.lost.end()));
  uint32_t heir = 0;
  while (run.lost.contains(heir)) ++heir;
  std::map<dag::StateKey, Digest> held;
  for (const auto& tensor : point.tensors)
    EXPECT_TRUE(held.emplace(tensor.key, tensor.sha256).second) << to_string(tensor.key);
  for (const PlannedStage& stage : run.plan->stages) {
    const plan::Seat& seat = stage.assignment->seat;
    for (dag::StateKey key : test::keys_of(seat, /*owner=*/~0u)) {
      const bool is_lost = run.lost.contains(seat.replica);
      if (is_lost && key.slot == dag::StateSlot::Residue) {
        EXPECT_FALSE(held.contains(key)) << "it owes nothing";
        continue;
      }
      ASSERT_TRUE(held.contains(key)) << to_string(key);
      dag::StateKey from = key;
      if (is_lost && from.replica == seat.replica && is_own(key.slot)) from.replica = heir;
      EXPECT_TRUE(held.at(key) == test::local_digest(from, point.step)) << to_string(key);
    }
  }
}

// Of the last command that leaves somebody out.
uint64_t sequence_of(const LocalRun& run) {
  uint64_t sequence = 0;
  for (const Command& command : run.script)
    if (command.kind == CommandKind::LeaveOut) sequence = command.sequence;
  return sequence;
}

// Wherever it is in its round, and whatever is under way there.
TEST(LocalLeaveOut, OthersEndTheRoundWithoutIt) {
  const uint64_t seed = 20261128;
  int ended = 0, refused = 0, late = 0;
  for (uint64_t at = 0; at < 400; ++at) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", run " + std::to_string(at));
    Rng rng(seed + at, 1);
    LocalShape shape = random_shape(rng);
    shape.replicas_max = 8;
    if (shape.replicas == 1) continue;
    if (at % 2 == 1) shape.settle_every = 2 + rng.below(4);
    LocalRun run(shape, {}, {}, at);
    run.hear(run.run->start(run.now));
    const uint64_t turns = rng.below(40 * shape.replicas);
    for (uint64_t i = 0; i < turns; ++i) run.turn();
    if (run.finished || HasFailure()) continue;
    const auto replica = static_cast<uint32_t>(rng.below(shape.replicas));
    const bool have_agreed = run.run->committed_step() == run.run->granted_step() &&
                             run.run->inner().is_whole(run.run->granted_step());
    const size_t snapshots = run.snapshots.size();
    if (!run.lose(replica)) {
      ++refused;
      continue;
    }
    std::set<uint32_t> left_out = have_agreed ? std::set<uint32_t>{} : std::set<uint32_t>{replica};
    if (rng.below(3) == 0) {
      run.turn();
      const auto other = static_cast<uint32_t>(rng.below(shape.replicas));
      const bool is_open = run.run->committed_step() < run.run->granted_step();
      if (!run.stopped && !run.too_late && !run.lost.contains(other) && run.lose(other) && is_open)
        left_out.insert(other);
    }
    run.play();
    if (HasFailure()) return;
    const bool may_skip = shape.on_divergence == dag::OnDivergence::Skip || !shape.empty_steps.empty();
    for (const proto::JobEvent& event : run.events) {
      EXPECT_TRUE(may_skip || !event.skipped) << "step " << event.step << ": nobody was there to make it";
    }
    if (run.too_late) {
      ++late;
      continue;
    }
    ++ended;
    ASSERT_TRUE(run.stopped.has_value());
    if (run.run->committed_step() == shape.begun_after) continue;
    ASSERT_FALSE(run.snapshots.empty());
    const WholeSnapshot& last = run.snapshots.back();
    EXPECT_EQ(last.snapshot.step, run.run->committed_step());
    if (run.snapshots.size() == snapshots) {  // it was whole before, with what the lost one had
      EXPECT_TRUE(left_out.empty() && last.snapshot.local->inherited.is_whole());
      continue;
    }
    expect_point(run, last.snapshot, left_out);
    if (HasFailure()) return;
  }
  std::printf("%d ended, %d could not, %d too late\n", ended, refused, late);
  EXPECT_GT(ended, 100);
}

// Where rounds overlap nobody goes past a round's end before all are at its last step: whoever is lost has a
// part in that round and the one before, and in no other that is not agreed on.
TEST(LocalLeaveOut, WhereRoundsOverlapNobodyIsTwoRoundsAhead) {
  LocalRun run({.replicas = 3, .every = 4, .steps = 96, .replicas_max = 8, .settle_every = 4});
  run.hear(run.run->start(run.now));
  EXPECT_EQ(run.run->granted_step(), 4u);
  for (uint64_t step = 1; step <= 3; ++step)
    for (uint32_t seat = 0; seat < 2; ++seat) run.report(seat, step);
  run.report(2, 1);
  run.report(2, 2);
  EXPECT_EQ(run.run->granted_step(), 4u) << "the third has a step to make before";
  run.report(2, 3);
  EXPECT_EQ(run.run->granted_step(), 8u);
  ASSERT_TRUE(run.lose(2));
  const Command& left_out = *std::find_if(run.script.rbegin(), run.script.rend(), [](const Command& command) {
    return command.kind == CommandKind::LeaveOut;
  });
  EXPECT_EQ(left_out.step, 8u);
  EXPECT_EQ(run.run->absence().steps_lost(), 8u) << "of both rounds";
}

// A run that is stopped, or that goes on with others, ends with the round under way.
TEST(LocalLeaveOut, WhereRoundsOverlapAStopWaitsForOneRound) {
  for (const bool to_go_on : {false, true}) {
    LocalRun run({.replicas = 2, .every = 3, .steps = 96, .replicas_max = 8, .settle_every = 8});
    run.hear(run.run->start(run.now));
    for (int i = 0; i < 10; ++i) run.turn();
    const uint64_t granted = run.run->granted_step();
    ASSERT_LE(granted, 9u);
    run.hear(run.run->request_stop(run.now, to_go_on));
    run.play();
    EXPECT_EQ(run.run->committed_step(), (granted + 2) / 3 * 3);
    EXPECT_EQ(run.stopped, 2 * run.run->committed_step());
    LocalRun again({.replicas = 2, .every = 3, .steps = 96, .replicas_max = 8, .settle_every = 8});
    again.run->resume(run.script);
    EXPECT_TRUE(again.run->is_moving()) << "a broker that is restarted ends there, too";
  }
  LocalRun fixed({.replicas = 2, .every = 3, .steps = 96, .settle_every = 4});
  fixed.hear(fixed.run->start(fixed.now));
  fixed.hear(fixed.run->request_stop(fixed.now, /*to_go_on=*/true));
  fixed.play();
  EXPECT_EQ(fixed.stopped, 24u) << "its bytes do not depend on who moved when";
}

TEST(LocalLeaveOut, NothingCountsBeforeEveryStageHasAnswered) {
  LocalRun run({.replicas = 3, .every = 2, .steps = 30, .replicas_max = 8});
  run.hear(run.run->start(run.now));
  run.report(0, 1);
  run.report(1, 1);
  ASSERT_TRUE(run.lose(2));
  run.report(0, 2);
  EXPECT_EQ(run.run->committed_step(), 1u) << "the lost one is not waited for";
  run.report(1, 2);
  EXPECT_EQ(run.run->committed_step(), 1u) << "nobody has said yet that it was left out";
  const auto answer = [&](uint32_t seat, bool too_late = false) {
    return run.say(seat, proto::ReplicasLeftOut{1, 1, 2, sequence_of(run), too_late}).has_value();
  };
  EXPECT_TRUE(answer(0));
  EXPECT_FALSE(answer(0)) << "twice";
  EXPECT_FALSE(answer(2)) << "it was lost";
  EXPECT_EQ(run.run->committed_step(), 1u);
  EXPECT_TRUE(answer(1));
  EXPECT_EQ(run.run->committed_step(), 2u);
}

TEST(LocalLeaveOut, ARunGoesBackWhereSomebodyHadWhatTheLostOneSent) {
  LocalRun run({.replicas = 3, .every = 2, .steps = 30, .replicas_max = 8});
  run.hear(run.run->start(run.now));
  ASSERT_TRUE(run.lose(1));
  ASSERT_TRUE(run.say(0, proto::ReplicasLeftOut{1, 1, 2, sequence_of(run), true}).has_value());
  EXPECT_EQ(run.too_late, 0u);
}

TEST(LocalLeaveOut, ARunWhoseCopiesAreWholeGoesBackToThem) {
  LocalRun run({.replicas = 3, .every = 2, .steps = 30});
  run.hear(run.run->start(run.now));
  EXPECT_FALSE(run.run->leave_out(run.now, 1).has_value()) << "it comes to the same bits then";
}

TEST(LocalLeaveOut, WhoeverStopsTheRunMeanwhileHasWhatTheOthersAgreeOn) {
  LocalRun run({.replicas = 3, .every = 3, .steps = 40, .replicas_max = 8});
  run.hear(run.run->start(run.now));
  for (int i = 0; i < 5; ++i) run.turn();
  ASSERT_TRUE(run.lose(1));
  run.hear(run.run->request_stop(run.now, /*to_go_on=*/false));
  run.play();
  EXPECT_EQ(run.stopped, 6u) << "steps of the run";
  expect_point(run, run.snapshots.back().snapshot, {1});
}

TEST(LocalLeaveOut, TheLastOneIsNotLeftOut) {
  LocalRun run({.replicas = 2, .every = 2, .steps = 30, .replicas_max = 8});
  run.hear(run.run->start(run.now));
  ASSERT_TRUE(run.lose(0));
  EXPECT_FALSE(run.run->leave_out(run.now, 1).has_value());
  EXPECT_FALSE(run.run->leave_out(run.now, 0).has_value()) << "it is lost already";
  EXPECT_FALSE(run.run->leave_out(run.now, 7).has_value());
}

TEST(LocalLeaveOut, NobodyTakesMeansForThoseItDoesNotReach) {
  LocalRun run({.replicas = 3, .every = 2, .steps = 30, .replicas_max = 8});
  for (PlannedStage& stage : run.plan->stages) {
    auto assignment = std::make_shared<proto::AssignStage>(*stage.assignment);
    // The first and the last reach each other by the second alone, which takes the means.
    if (assignment->seat.replica != 1)
      std::erase_if(assignment->links, [](const proto::LinkRoute& link) { return link.seat.replica != 1; });
    stage.assignment = assignment;
  }
  run.hear(run.run->start(run.now));
  EXPECT_FALSE(run.run->leave_out(run.now, 1).has_value());
  EXPECT_TRUE(run.run->leave_out(run.now, 0).has_value()) << "it took none";
}

// It begins where the one before it did not agree, and its first steps are those of the lost one.
TEST(LocalLeaveOut, IsTheSameAfterABrokerWasRestarted) {
  LocalRun run({.replicas = 3, .every = 3, .steps = 40, .replicas_max = 8});
  run.hear(run.run->start(run.now));
  for (int i = 0; i < 5; ++i) run.turn();
  ASSERT_TRUE(run.lose(1));
  LocalRun again({.replicas = 3, .every = 3, .steps = 40, .replicas_max = 8});
  again.run->resume(run.script);
  EXPECT_TRUE(again.run->absence().has(1));
  again.seats = run.seats;
  again.script = run.script;
  again.lost = run.lost;
  for (uint32_t seat = 0; seat < 3; ++seat) {
    if (seat == 1) continue;
    auto effects = again.run->on_resumed(again.now, seat, again.seats[seat].last_sequence());
    ASSERT_TRUE(effects.has_value()) << effects.error().message;
    again.hear(std::move(*effects));
    for (const proto::Message& message : again.seats[seat].said())
      ASSERT_TRUE(again.say(seat, message).has_value());
  }
  again.play();
  ASSERT_TRUE(again.stopped.has_value());
  expect_point(again, again.snapshots.back().snapshot, {1});
}

// Links there are from owners alone. Who takes the means in place of one that was lost takes those of the
// next one, too, if it reaches all others that need them; else the run goes back.
TEST(LocalLeaveOut, WhoTakesMeansOfASecondOneHasToReachTheOthers) {
  for (const bool reaches : {true, false}) {
    const auto plan = test::local_plan({.replicas = 4, .stages = 2, .steps = 48, .replicas_max = 4});
    ASSERT_EQ(test::owner_of_stage({.replicas = 4}, 1), 2u);
    for (PlannedStage& planned : plan->stages) {
      proto::AssignStage stage = *planned.assignment;
      std::erase_if(stage.links, [&](const proto::LinkRoute& link) {
        const std::set<uint32_t> ends{link.seat.replica, stage.seat.replica};
        return !reaches && stage.seat.stage == 1 && ends == std::set<uint32_t>{0, 3};
      });
      planned.assignment = proto::Encoded<proto::AssignStage>(std::move(stage));
    }
    Absence absence(plan);
    const auto first = absence.without(1, 3);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->owner, 0u);
    absence.begin(Command{.kind = CommandKind::LeaveOut, .step = 3, .sequence = 9, .left_out = *first});
    const auto second = absence.without(2, 3);
    EXPECT_EQ(second.has_value(), reaches);
    EXPECT_TRUE(!second || second->owner == 0);
  }
}

// What it owed of the means goes with it, and the record says so.
TEST(LocalLeaveOut, WhoHasTakenMeansAndIsLostThenTakesWhatIsOwedOfThem) {
  const auto plan = test::local_plan({.replicas = 3, .steps = 48, .replicas_max = 3});
  for (const uint32_t lost : {0u, 2u}) {
    Absence absence(plan);
    const auto first = absence.without(test::owner_of_stage({.replicas = 3}, 0), 3);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->owner, 0u);
    absence.begin(Command{.kind = CommandKind::LeaveOut, .step = 3, .sequence = 9, .left_out = *first});
    absence.begin(lost, 3);
    CheckpointCommitted snapshot{.step = 3,
                                 .local = proto::LocalPoint{.steps = 9, .skipped_steps = {0, 0, 0}}};
    absence.complete(snapshot, {});
    EXPECT_EQ(snapshot.local->inherited.returns_are_lost, lost == 0);
  }
}

}  // namespace
}  // namespace weft::broker::local
