// A broker that goes away and comes back: what the peer keeps, says again, and gives up.
#include <functional>
#include <map>

#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using proto::CommandKind;

Shell loaded(const StageSpec& spec = {}) {
  Shell shell;
  shell.join();
  shell.load(assignment(spec));
  shell.told.clear();
  return shell;
}

TEST(Resume, TheStageIsKeptAndWorksOn) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 2);
  shell.answer_data();
  shell.lose_broker();
  EXPECT_TRUE(shell.peer.assignment());
  shell.work();
  EXPECT_TRUE(shell.told_of<proto::StepReport>().empty()) << "nobody hears it";
  shell.reconnect();
  const auto hello = shell.told_of<proto::Hello>();
  ASSERT_EQ(hello.size(), 1u);
  ASSERT_EQ(hello[0].holding.size(), 1u);
  EXPECT_EQ(hello[0].holding[0].run, 1u);
  shell.welcome();
  EXPECT_TRUE(shell.told_of<proto::StepReport>().empty()) << "not before it is resumed";
  shell.say(proto::ResumeStage{1, 1});
  ASSERT_EQ(shell.told_of<proto::StageResumed>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageResumed>()[0].last_sequence, 1u);
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 2u);
}

TEST(Resume, ReportsAreKeptUntilTheyAreSettledInTheirOrder) {
  Shell shell = loaded({.clip_norm = 1});
  shell.command(CommandKind::Advance, 2);
  shell.work();
  shell.say(proto::GradientNorm{1, 1, 1, 1});
  shell.work();
  shell.say(proto::GradientNorm{1, 1, 2, 1});
  shell.work();
  shell.command(CommandKind::Checkpoint, 2, /*committed=*/1);
  shell.work();
  shell.answer_uploads();
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  shell.told.clear();
  shell.say(proto::ResumeStage{1, 1});
  ASSERT_EQ(shell.told.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<proto::StageResumed>(shell.told[0]));
  EXPECT_FALSE(std::get<proto::StepReport>(shell.told[1]).updated);
  EXPECT_EQ(std::get<proto::StepReport>(shell.told[1]).step, 2u);
  EXPECT_TRUE(std::get<proto::StepReport>(shell.told[2]).updated);
  EXPECT_EQ(std::get<proto::CheckpointReport>(shell.told[3]).step, 2u);
  // Settled: not a third time.
  shell.command(CommandKind::Finish, 0, 2, 2);
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  shell.told.clear();
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_EQ(shell.told.size(), 1u);
}

TEST(Resume, ARoundIsOfferedAgainForTheBrokerMayHaveLostIt) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
  shell.stored.clear();
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_TRUE(shell.told_of<proto::CheckpointReport>().empty());
  shell.answer_uploads();
  EXPECT_EQ(shell.stored.size(), 2u);
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
}

TEST(Resume, AStageThatFailedMeanwhileSaysSo) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.lose_broker();
  shell.act(shell.peer.on_link_failed(shell.now, shell.peer.generation(), {1}, {ErrorCode::Timeout, "gone"}));
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  shell.reconnect();
  shell.welcome();
  shell.say(proto::ResumeStage{1, 1});
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageFailed>()[0].unreachable, plan::Seat{1});
}

TEST(Divergence, IsTheJobsFaultAndNoLinksAndNothingRunsAfterIt) {
  Shell shell = loaded();
  shell.act(
      shell.peer.on_not_finite(shell.now, shell.peer.generation() + 1, {1}, 7, {ErrorCode::OutOfRange, "x"}));
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty()) << "of another stage";
  shell.act(
      shell.peer.on_not_finite(shell.now, shell.peer.generation(), {1}, 7, {ErrorCode::OutOfRange, "a NaN"}));
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  const proto::StageFailed failed = shell.told_of<proto::StageFailed>()[0];
  EXPECT_TRUE(failed.diverged && failed.permanent);
  EXPECT_EQ(failed.unreachable, plan::Seat{1});
  EXPECT_EQ(failed.step, 7u);
  EXPECT_EQ(failed.error.message, "a NaN");
  shell.command(CommandKind::Advance, 1);
  shell.work();
  EXPECT_TRUE(shell.told_of<proto::StepReport>().empty());
}

TEST(Resume, AnythingElseTakesTheStageAway) {
  for (const bool assigns : {false, true}) {
    Shell shell = loaded();
    shell.lose_broker();
    shell.reconnect();
    shell.welcome();
    if (assigns)
      shell.say(assignment({.plan_version = 2}));
    else
      shell.say(proto::ReleaseStage{1, 2, "recovered without it"});
    EXPECT_EQ(shell.runners_dropped, 1u);
    shell.told.clear();
    shell.say(proto::ResumeStage{1, 1});
    ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u) << "it is not held any more";
    EXPECT_EQ(shell.told_of<proto::StageFailed>()[0].plan_version, 1u);
  }
}

TEST(Resume, IsGivenUpAfterTheOrphanDeadline) {
  Shell shell = loaded();
  shell.lose_broker();
  const Instant lost = shell.now;
  while (shell.peer.assignment()) {
    shell.now = shell.peer.next_deadline(shell.now).value();
    const uint32_t before = shell.connects;
    shell.tick();
    if (shell.connects != before)
      shell.act(shell.peer.on_connect_failed(shell.now, {ErrorCode::Unavailable, "refused"}));
  }
  EXPECT_EQ(shell.now - lost, std::chrono::minutes(10));
  EXPECT_TRUE(shell.memory.empty());
  EXPECT_EQ(shell.runners_dropped, 1u);
  EXPECT_FALSE(shell.left);
  shell.reconnect();
  EXPECT_TRUE(shell.told_of<proto::Hello>()[0].holding.empty());
}

TEST(Resume, TransfersWaitForTheBrokerAndAreAskedForAgain) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  ASSERT_EQ(shell.data.size(), 2u);
  shell.lose_broker();
  shell.tick(std::chrono::milliseconds(100));
  EXPECT_TRUE(shell.data.empty());
  shell.reconnect();
  shell.welcome();
  EXPECT_TRUE(shell.data.empty()) << "not before the stage is resumed";
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_EQ(shell.data.size(), 2u);
  shell.work();
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
}

// A shell that never says what became of what was under way.
TEST(Resume, WhatWasUnderWayIsAskedForAgainEvenWithoutAnAnswer) {
  Shell shell = loaded();
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  shell.act(shell.peer.on_missing(shell.now, shell.offers[0].upload, shell.offers[0].blobs));
  shell.command(CommandKind::Advance, 2);
  const size_t puts = shell.puts.size(), data = shell.data.size();
  ASSERT_EQ(puts, 2u);
  ASSERT_EQ(data, 2u);
  shell.act(shell.peer.on_lost(shell.now, {ErrorCode::Unavailable, "reset"}));
  shell.offers.clear();
  shell.puts.clear();
  shell.data.clear();
  shell.reconnect();
  shell.welcome();
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_EQ(shell.offers.size(), 1u);
  EXPECT_EQ(shell.data.size(), data);
  shell.answer_uploads();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
}

TEST(Resume, ReportsAreBounded) {
  peer::PeerOptions options;
  options.bounds.reports = 5;
  Shell shell(options);
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 20);
  shell.work();
  ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageFailed>()[0].error.code, ErrorCode::ResourceExhausted);
}

// A broker that conducts one stage through a script and can be killed before any event: what it has recorded
// stays, everything else, messages on their way included, is lost.
class Conductor {
 public:
  Conductor() : shell_(loaded({.clip_norm = 1, .evaluates = true})) { issue(); }

  // The next event of some; false: all is done.
  bool step() {
    take_told();
    if (!to_peer_.empty()) {
      const proto::Message message = to_peer_.front();
      to_peer_.pop_front();
      shell_.say(message);
    } else if (!to_broker_.empty()) {
      const proto::Message message = to_broker_.front();
      to_broker_.pop_front();
      take(message);
    } else if (!shell_.data.empty()) {
      const auto fetch = shell_.data.front();
      shell_.data.pop_front();
      shell_.act(shell_.peer.on_data(shell_.now, fetch.generation, fetch.key, 0));
    } else if (!shell_.tasks.empty()) {
      const auto task = shell_.tasks.front();
      shell_.tasks.pop_front();
      shell_.finish_task(task);
    } else if (!shell_.offers.empty()) {
      const auto offer = shell_.offers.front();
      shell_.offers.pop_front();
      std::vector<Digest> missing;
      for (const Digest& sha256 : offer.blobs) {
        if (offer.durable && transient_.contains(sha256)) durable_.insert(sha256);
        if (!durable_.contains(sha256) && !transient_.contains(sha256)) missing.push_back(sha256);
      }
      shell_.act(shell_.peer.on_missing(shell_.now, offer.upload, missing));
    } else if (!shell_.puts.empty()) {
      const auto put = shell_.puts.front();
      shell_.puts.pop_front();
      (put.durable ? durable_ : transient_).insert(put.sha256);
      shell_.act(shell_.peer.on_uploaded(shell_.now, put.upload, put.sha256, {}));
    } else {
      return false;
    }
    return true;
  }

  // `works_on`: what the peer computes while nobody is there.
  void die(bool works_on) {
    take_told();
    to_peer_.clear();
    to_broker_.clear();
    transient_.clear();
    squares_.clear();
    rounds_.clear();
    shell_.lose_broker();
    if (works_on) shell_.work();
    shell_.reconnect();
    shell_.welcome();
    shell_.told.clear();
    shell_.say(proto::ResumeStage{1, 1});
    take_told();
    ASSERT_FALSE(to_broker_.empty());
    const auto* resumed = std::get_if<proto::StageResumed>(&to_broker_.front());
    ASSERT_NE(resumed, nullptr);
    for (const proto::Command& command : issued_)
      if (command.sequence > resumed->last_sequence) to_peer_.push_back(command);
    const size_t resumed_at = resumed->last_sequence;
    to_broker_.pop_front();
    for (const proto::Message& message : to_broker_) {
      const auto* report = std::get_if<proto::StepReport>(&message);
      if (report != nullptr && resumed_at == issued_.size()) {
        EXPECT_GT(report->step, told_committed_) << "what was committed is not said again";
      }
    }
  }

  bool is_done() const { return settled() == script().size(); }
  std::string state() const {
    return "committed " + std::to_string(committed_) + ", settled " + std::to_string(settled()) + " of " +
           std::to_string(script().size());
  }
  uint64_t updates() const { return updates_; }

 private:
  static const std::vector<proto::Command>& script() {
    static const std::vector<proto::Command> kScript = [] {
      std::vector<proto::Command> made;
      const auto add = [&](CommandKind kind, uint64_t step, uint32_t microbatches = 0) {
        made.push_back({.run = 1,
                        .plan_version = 1,
                        .kind = kind,
                        .step = step,
                        .microbatches = microbatches,
                        .sequence = made.size() + 1});
      };
      add(CommandKind::Advance, 2);
      add(CommandKind::CopyState, 2);
      add(CommandKind::Advance, 3);
      add(CommandKind::Checkpoint, 3);
      add(CommandKind::Evaluate, 3, 2);
      add(CommandKind::Advance, 5);
      add(CommandKind::CopyState, 5);
      add(CommandKind::Checkpoint, 5);
      return made;
    }();
    return kScript;
  }

  void take_told() {
    for (proto::Message& message : shell_.told) to_broker_.push_back(std::move(message));
    shell_.told.clear();
  }

  bool is_settled(const proto::Command& command) const {
    switch (command.kind) {
      case CommandKind::Advance:
        return committed_ >= command.step;
      case CommandKind::CopyState:
        return rounds_.contains(command.step) || checkpoints_.contains(command.step) ||
               command.sequence <= told_settled_;
      case CommandKind::Checkpoint:
        return checkpoints_.contains(command.step);
      case CommandKind::Evaluate:
        return evaluated_;
      default:
        return true;
    }
  }
  uint64_t settled() const {
    uint64_t count = 0;
    while (count < script().size() && is_settled(script()[count])) ++count;
    return count;
  }

  // At most three commands are not settled.
  void issue() {
    while (issued_.size() < script().size() && issued_.size() < settled() + 3) {
      proto::Command command = script()[issued_.size()];
      command.committed = told_committed_ = committed_;
      command.settled = told_settled_ = settled();
      issued_.push_back(command);
      to_peer_.push_back(command);
    }
  }

  void take(const proto::Message& message) {
    if (const auto* step = std::get_if<proto::StepReport>(&message)) {
      if (step->step <= committed_) return;
      if (squares_.insert(step->step).second) to_peer_.push_back(proto::GradientNorm{1, 1, step->step, 1});
      if (!step->updated) return;
      EXPECT_EQ(step->step, committed_ + 1) << "committed without a gap";
      committed_ = step->step;
      ++updates_;
    } else if (const auto* checkpoint = std::get_if<proto::CheckpointReport>(&message)) {
      EXPECT_FALSE(checkpoint->failure.has_value());
      bool all_durable = true;
      for (const auto& tensor : checkpoint->tensors) {
        all_durable = all_durable && durable_.contains(tensor.sha256);
        EXPECT_TRUE(durable_.contains(tensor.sha256) || transient_.contains(tensor.sha256))
            << "reported and not stored";
      }
      (all_durable ? checkpoints_ : rounds_).insert(checkpoint->step);
    } else if (std::holds_alternative<proto::EvaluationReport>(message)) {
      evaluated_ = true;
    } else {
      EXPECT_FALSE(std::holds_alternative<proto::StageFailed>(message))
          << std::get<proto::StageFailed>(message).error.message;
    }
    issue();
  }

  Shell shell_;
  std::deque<proto::Message> to_peer_, to_broker_;
  // Recorded
  std::vector<proto::Command> issued_;
  uint64_t committed_ = 0, told_committed_ = 0, told_settled_ = 0, updates_ = 0;
  std::set<uint64_t> checkpoints_;
  bool evaluated_ = false;
  std::set<Digest> durable_;
  // In memory
  std::set<uint64_t> squares_, rounds_;
  std::set<Digest> transient_;
};

uint64_t events_of_an_undisturbed_run() {
  Conductor conductor;
  uint64_t events = 0;
  while (conductor.step()) ++events;
  EXPECT_TRUE(conductor.is_done()) << conductor.state();
  return events;
}

TEST(Resume, WhereverTheBrokerDiesNothingIsLostAndNothingIsDoneTwice) {
  const uint64_t events = events_of_an_undisturbed_run();
  ASSERT_GT(events, 60u);
  for (uint64_t first = 0; first <= events; ++first)
    for (const uint64_t second : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{23}}) {
      SCOPED_TRACE("killed before event " + std::to_string(first) + ", and " + std::to_string(second) +
                   " later again");
      Conductor conductor;
      for (uint64_t i = 0; i < first; ++i) conductor.step();
      conductor.die(/*works_on=*/first % 2 == 0);
      if (second != 0) {
        for (uint64_t i = 0; i < second; ++i) conductor.step();
        conductor.die(/*works_on=*/first % 3 == 0);
      }
      for (int i = 0; i < 10000 && conductor.step(); ++i) {
      }
      ASSERT_TRUE(conductor.is_done()) << conductor.state();
      EXPECT_EQ(conductor.updates(), 5u);
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace weft::test
