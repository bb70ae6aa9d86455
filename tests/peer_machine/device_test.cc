// A device that is gone, and one that does not answer: what the peer says, does and ends with.
#include "peer/machine/device_watch.h"

#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using peer::DeviceWatch;
using peer::Task;
using proto::CommandKind;

const Error kGone{ErrorCode::DeviceLost, "it fell off the bus"};

// ---- the watch alone

constexpr uint64_t kStage = 1, kOther = 2;
constexpr DeviceWatch::Work kForward{.segment = 0}, kBackward{.segment = 1};

// Looks as often as it wants to, until so much time has passed.
void pass(DeviceWatch& watch, Instant& now, Duration time) {
  const Instant end = now + time;
  while (now < end) {
    now = std::min(end, std::max(now + 1ns, watch.next_look().value_or(end)));
    watch.look(now);
  }
}

struct Watched {
  DeviceWatch watch;
  Instant now = kStart;
  Watched() { watch.look(now); }
  void take(const DeviceWatch::Work& work, Duration time) {
    watch.begin(kStage, work);
    pass(watch, now, time);
    watch.end(kStage);
  }
  // Given that work now: how long until it is overdue.
  Duration until_overdue(const DeviceWatch::Work& work) {
    watch.begin(kStage, work);
    const Instant began = now;
    while (!watch.overdue() && now - began < 10h) pass(watch, now, 1ms);
    return now - began;
  }
};

TEST(DeviceWatch, GivesWorkTwentyTimesItsMeanAndHalfAMinute) {
  Watched quick;
  for (int i = 0; i < 4; ++i) quick.take(kForward, 10ms);
  EXPECT_EQ(quick.until_overdue(kForward), DeviceWatch::kFloor);
  Watched slow;
  slow.take(kForward, 2s);
  slow.take(kForward, 4s);
  slow.take(kBackward, 1ms);
  EXPECT_EQ(slow.until_overdue(kForward), 60s);
}

TEST(DeviceWatch, SaysHowLongAndWhatIsUsual) {
  Watched watched;
  watched.take(kForward, 12ms);
  EXPECT_FALSE(watched.watch.overdue());
  watched.until_overdue(kForward);
  const auto late = watched.watch.overdue();
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->code, ErrorCode::DeviceLost);
  EXPECT_EQ(late->message.find("the device has not answered for 30 s, a task of this stage takes 12 ms: "),
            0u)
      << late->message;
}

TEST(DeviceWatch, WhatWasNeverDoneHasLongOrWhatThePlanSays) {
  Watched watched;
  watched.take(kForward, 10ms);
  EXPECT_EQ(watched.until_overdue(kBackward), DeviceWatch::kFirst);
  Watched planned;
  planned.watch.begin(kStage, kForward, 10min);
  pass(planned.watch, planned.now, 199min);
  EXPECT_FALSE(planned.watch.overdue());
  pass(planned.watch, planned.now, 1min);
  EXPECT_TRUE(planned.watch.overdue());
}

TEST(DeviceWatch, CountsOnlyTheTimeInWhichThisProcessRan) {
  Watched watched;
  watched.take(kForward, 10ms);
  watched.watch.begin(kStage, kForward);
  for (int i = 0; i < 29; ++i) {
    watched.now += 8h;  // asleep
    watched.watch.look(watched.now);
    EXPECT_FALSE(watched.watch.overdue());
  }
  watched.now += 5s;
  watched.watch.look(watched.now);
  EXPECT_TRUE(watched.watch.overdue());
}

TEST(DeviceWatch, AJumpOfTheClockIsNoMeasurementEither) {
  Watched watched;
  watched.watch.begin(kStage, kForward);
  watched.now += 8h;
  watched.watch.look(watched.now);
  watched.watch.end(kStage);
  EXPECT_EQ(watched.until_overdue(kForward), DeviceWatch::kFloor);
}

// The device does the stages' work in the order in which it was given.
TEST(DeviceWatch, StagesAreTimedApartAndOneMayGo) {
  Watched watched;
  for (int i = 0; i < 4; ++i) watched.take(kForward, 10s);
  watched.watch.begin(kOther, kForward);
  pass(watched.watch, watched.now, 300s);
  EXPECT_FALSE(watched.watch.overdue()) << "what it takes in another stage says nothing of this one's";
  watched.watch.begin(kStage, kForward);
  EXPECT_FALSE(watched.watch.drop(kStage)) << "the device is at the other's";
  EXPECT_TRUE(watched.watch.drop(kOther));
  EXPECT_FALSE(watched.watch.drop(kOther)) << "it is asked once";
  watched.watch.begin(kStage, kBackward);
  watched.watch.end(kOther);  // what was dropped is done
  pass(watched.watch, watched.now, 10s);
  watched.watch.end(kStage);
  EXPECT_EQ(watched.until_overdue(kBackward), 200s);
}

TEST(DeviceWatch, WhatComesLaterShowsThatDroppedWorkIsDone) {
  Watched watched;
  watched.watch.begin(kOther, kForward);
  EXPECT_TRUE(watched.watch.drop(kOther));
  watched.watch.begin(kStage, kForward);
  pass(watched.watch, watched.now, 4s);
  watched.watch.end(kStage);
  EXPECT_FALSE(watched.watch.next_look()) << "the device has nothing";
}

TEST(DeviceWatch, WorkThatWaitsBehindOtherWorkIsNotTimedYet) {
  Watched watched;
  watched.take(kForward, 10ms);
  watched.take(kBackward, 10ms);
  watched.watch.begin(kStage, kForward);
  watched.watch.begin(kStage, kBackward);
  pass(watched.watch, watched.now, 25s);
  watched.watch.end(kStage);
  pass(watched.watch, watched.now, 25s);
  EXPECT_FALSE(watched.watch.overdue());
  pass(watched.watch, watched.now, 5s);
  EXPECT_TRUE(watched.watch.overdue());
}

// ---- the peer

Shell loaded(const StageSpec& spec = {}) {
  Shell shell;
  shell.join();
  shell.load(assignment(spec));
  shell.told.clear();
  return shell;
}

// As its shell does: at the machine's deadlines, with a broker that answers heartbeats.
void pass(Shell& shell, Duration time) {
  const Instant end = shell.now + time;
  while (shell.now < end && !shell.left) {
    const Instant next = shell.peer.next_deadline(shell.now).value_or(end);
    shell.now = std::min(end, std::max(shell.now + 1ms, next));
    shell.tick();
    shell.say(proto::HeartbeatAck{});
  }
}

void fail_task(Shell& shell, const peer::RunTask& run, const Error& error) {
  shell.act(shell.peer.on_task_done(shell.now, run.generation, run.task, fail(error)));
}

template <typename M>
size_t place_of(const Shell& shell) {
  for (size_t i = 0; i < shell.told.size(); ++i)
    if (std::holds_alternative<M>(shell.told[i])) return i;
  return shell.told.size();
}

void expect_left_for_its_device(const Shell& shell) {
  EXPECT_TRUE(shell.left);
  ASSERT_FALSE(shell.why.has_value());
  EXPECT_EQ(shell.why.error().code, ErrorCode::DeviceLost);
  EXPECT_NE(shell.why.error().message.find("start weft join again"), std::string::npos);
  EXPECT_EQ(shell.told_of<proto::Drain>().size(), 1u);
}

void expect_failed_for_its_device(const Shell& shell) {
  const auto failed = shell.told_of<proto::StageFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].error.code, ErrorCode::DeviceLost);
  EXPECT_FALSE(failed[0].permanent || failed[0].diverged || failed[0].unreachable);
  EXPECT_LT(place_of<proto::StageFailed>(shell), place_of<proto::Drain>(shell));
}

TEST(DeviceLost, FailsTheStageAndLeavesAtOnce) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.answer_data();
  ASSERT_FALSE(shell.tasks.empty());
  fail_task(shell, shell.tasks.front(), kGone);
  expect_failed_for_its_device(shell);
  expect_left_for_its_device(shell);
  EXPECT_NE(shell.why.error().message.find(kGone.message), std::string::npos);
  EXPECT_EQ(shell.device_asked, 0u) << "nothing more comes of it";
}

TEST(DeviceLost, WhileARunnerIsMade) {
  Shell shell;
  shell.join();
  shell.say(assignment());
  shell.answer_fetches();
  ASSERT_TRUE(shell.runner.has_value());
  shell.act(shell.peer.on_runner_made(shell.now, shell.runner->generation, fail(kGone)));
  expect_failed_for_its_device(shell);
  expect_left_for_its_device(shell);
}

TEST(DeviceLost, WhileASnapshotIsHashed) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::Checkpoint, 1);
  while (shell.tasks.empty() || shell.tasks.front().task.kind != peer::TaskKind::Snapshot) {
    shell.answer_data();
    ASSERT_FALSE(shell.tasks.empty());
    const peer::RunTask task = shell.tasks.front();
    if (task.task.kind == peer::TaskKind::Snapshot) break;
    shell.tasks.pop_front();
    shell.finish_task(task);
  }
  const peer::RunTask snapshot = shell.tasks.front();
  shell.tasks.pop_front();
  shell.act(shell.peer.on_task_done(shell.now, snapshot.generation, snapshot.task, peer::TaskOutcome{}));
  fail_task(shell, snapshot, kGone);
  expect_failed_for_its_device(shell);
  expect_left_for_its_device(shell);
}

TEST(DeviceLost, WithoutAStageThePeerJustLeaves) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.answer_data();
  const peer::RunTask task = shell.tasks.front();
  shell.say(proto::ReleaseStage{1, 1, "a peer was lost"});
  shell.told.clear();
  fail_task(shell, task, kGone);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  expect_left_for_its_device(shell);
}

TEST(DeviceLost, WithItsBrokerAwayThePeerLeavesToo) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.answer_data();
  shell.lose_broker();
  fail_task(shell, shell.tasks.front(), kGone);
  EXPECT_TRUE(shell.left);
  EXPECT_TRUE(shell.told.empty());
  EXPECT_EQ(shell.why.error().code, ErrorCode::DeviceLost);
}

TEST(DeviceLost, IsUnavailableToABrokerThatKnowsNoBetterWord) {
  Shell shell;
  shell.act(shell.peer.start(shell.now));
  shell.act(shell.peer.on_connected(shell.now));
  proto::HelloAck ack;
  ack.minor = proto::kProtocolMinorOfDeviceLost - 1;
  shell.say(ack);
  shell.told.clear();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.answer_data();
  fail_task(shell, shell.tasks.front(), kGone);
  const auto failed = shell.told_of<proto::StageFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].error.code, ErrorCode::Unavailable);
  EXPECT_EQ(failed[0].error.message, kGone.message);
  EXPECT_EQ(shell.why.error().code, ErrorCode::DeviceLost) << "its own process knows";
}

// Two steps are measured; then a task of the third is never done.
Shell hanging() {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.work();
  shell.told.clear();
  shell.command(CommandKind::Advance, 3);
  shell.answer_data();
  EXPECT_FALSE(shell.tasks.empty());
  shell.device_hangs = true;
  return shell;
}

TEST(DeviceOverdue, TakesTheStageAndTheConnectionAndAsksTheDevice) {
  Shell shell = hanging();
  const uint32_t connects = shell.connects;
  pass(shell, 29s);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  pass(shell, 2s);
  expect_failed_for_its_device(shell);
  EXPECT_NE(shell.told_of<proto::StageFailed>()[0].error.message.find("has not answered for 30 s"),
            std::string::npos);
  EXPECT_FALSE(shell.left);
  EXPECT_EQ(shell.drops, 1u);
  EXPECT_EQ(shell.runners_dropped, 1u);
  EXPECT_EQ(shell.device_asked, 1u);
  EXPECT_FALSE(shell.peer.assignment());
  pass(shell, 2min);
  EXPECT_EQ(shell.connects, connects) << "not before the device answers";
  EXPECT_GE(*shell.peer.next_deadline(shell.now), shell.now + 1s) << "and nothing is looked at all the time";
}

TEST(DeviceOverdue, ThePeerJoinsAgainWhenTheDeviceAnswers) {
  Shell shell = hanging();
  pass(shell, 2min);
  const uint32_t connects = shell.connects;
  shell.act(shell.peer.on_device(shell.now, {}));
  EXPECT_EQ(shell.connects, connects + 1);
  shell.told.clear();
  shell.act(shell.peer.on_connected(shell.now));
  const auto hello = shell.told_of<proto::Hello>();
  ASSERT_EQ(hello.size(), 1u);
  EXPECT_TRUE(hello[0].holding.empty());
  shell.welcome();
  shell.told.clear();
  shell.load(assignment({.plan_version = 2}));
  shell.command(CommandKind::Advance, 1);
  shell.work();
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 1u);
  EXPECT_FALSE(shell.left);
}

TEST(DeviceOverdue, OneThatNeverAnswersIsLost) {
  Shell shell = hanging();
  pass(shell, 31s);
  EXPECT_FALSE(shell.left);
  pass(shell, 4min);
  EXPECT_FALSE(shell.left);
  pass(shell, 61s);
  expect_left_for_its_device(shell);
  EXPECT_NE(shell.why.error().message.find("did not answer later"), std::string::npos);
}

TEST(DeviceOverdue, OneThatAnswersThatItIsGoneIsLost) {
  for (const bool by_task : {false, true}) {
    Shell shell = hanging();
    const peer::RunTask task = shell.tasks.front();
    pass(shell, 1min);
    if (by_task)
      fail_task(shell, task, kGone);
    else
      shell.act(shell.peer.on_device(shell.now, fail(kGone)));
    expect_left_for_its_device(shell);
  }
}

TEST(DeviceOverdue, WhoeverWasToLeaveLeaves) {
  Shell before = hanging();
  before.act(before.peer.request_drain(before.now));
  EXPECT_FALSE(before.left) << "its stage is taken over first";
  pass(before, 31s);
  expect_left_for_its_device(before);
  Shell after = hanging();
  pass(after, 1min);
  after.act(after.peer.request_drain(after.now));
  EXPECT_TRUE(after.left);
  EXPECT_TRUE(after.why.has_value()) << "asked for, and nothing was wrong with that";
}

TEST(DeviceOverdue, ASuspendedProcessIsNotAHangingDevice) {
  Shell shell = hanging();
  shell.now += 8h;
  shell.tick();
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  EXPECT_TRUE(shell.peer.assignment()) << "it has not been heard for long, that is all";
  EXPECT_EQ(shell.device_asked, 0u);
}

TEST(DeviceOverdue, WhatIsNotAskedOfItIsNotLate) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.work();
  pass(shell, 1h);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  EXPECT_TRUE(shell.peer.assignment());
}

TEST(DeviceOverdue, AStageThatIsNeverMadeReadyFailsInTheEnd) {
  Shell shell;
  shell.join();
  shell.say(assignment());
  shell.answer_fetches();
  ASSERT_TRUE(shell.runner.has_value());
  shell.device_hangs = true;
  pass(shell, DeviceWatch::kFirst - 1s);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  pass(shell, 2s);
  expect_failed_for_its_device(shell);
  EXPECT_NE(shell.told_of<proto::StageFailed>()[0].error.message.find("while the stage was made ready"),
            std::string::npos);
}

// What was handed out behind a task that failed is never done.
TEST(DeviceOverdue, AStageThatFailedOtherwiseWaitsForNoTask) {
  Shell shell = hanging();
  shell.device_hangs = false;
  shell.act(shell.peer.on_link_failed(shell.now, shell.peer.generation(), {1}, {ErrorCode::Timeout, "gone"}));
  EXPECT_EQ(shell.device_asked, 1u);
  pass(shell, 1h);
  EXPECT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_EQ(shell.drops, 0u);
}

// The broker sees no progress, and may be the first to act. The peer is not one for the next stage either.
TEST(DeviceOverdue, IsNoticedAlsoWhenTheStageIsTakenAwayFirst) {
  for (const bool another : {false, true}) {
    Shell shell = hanging();
    pass(shell, 20s);
    shell.say(proto::ReleaseStage{1, 1, "no progress"});
    EXPECT_EQ(shell.device_asked, 1u);
    if (another) shell.say(assignment({.plan_version = 2}));
    shell.told.clear();
    pass(shell, 9s);
    EXPECT_EQ(shell.drops, 0u);
    pass(shell, 2s);
    EXPECT_EQ(shell.drops, 1u);
    EXPECT_EQ(shell.told_of<proto::StageFailed>().size(), another ? 1u : 0u);
    EXPECT_EQ(shell.told_of<proto::Drain>().size(), 1u);
    EXPECT_EQ(shell.device_asked, 1u) << "once is enough";
    const uint32_t connects = shell.connects;
    shell.act(shell.peer.on_device(shell.now, {}));
    EXPECT_EQ(shell.connects, connects + 1);
  }
}

TEST(DeviceOverdue, OneThatFinishesWhatIsNotWantedAnyMoreServesOn) {
  Shell shell = hanging();
  pass(shell, 20s);
  shell.say(proto::ReleaseStage{1, 1, "no progress"});
  shell.act(shell.peer.on_device(shell.now, {}));
  pass(shell, 1h);
  EXPECT_EQ(shell.drops, 0u);
  EXPECT_FALSE(shell.left);
}

}  // namespace
}  // namespace weft::test
