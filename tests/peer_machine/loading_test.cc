// From an assignment to StageReady, what is kept between stages, and how a peer leaves.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using proto::CommandKind;
using Names = std::set<std::string>;

TEST(Loading, FetchesEachTensorOnceAndReportsReadyWhenRunnerAndLinksAreUp) {
  Shell shell;
  shell.join();
  shell.say(assignment({.contents = {"a", "b", "a"}}));
  ASSERT_TRUE(shell.links.has_value()) << "links are opened while tensors are fetched";
  EXPECT_EQ(shell.fetching(), (Names{"a", "b"}));
  EXPECT_FALSE(shell.runner.has_value());
  shell.answer_fetches();
  ASSERT_TRUE(shell.runner.has_value());
  shell.act(shell.peer.on_links_up(shell.now, shell.links->generation));
  EXPECT_TRUE(shell.told_of<proto::StageReady>().empty());
  shell.act(
      shell.peer.on_runner_made(shell.now, shell.runner->generation, peer::RunnerSize{Bytes{7}, Bytes{2}}));
  ASSERT_EQ(shell.told_of<proto::StageReady>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StageReady>()[0].persistent.value, 7);
}

// The others do not wait for what it fetches; it says once more that it is ready when all of that is there.
TEST(Loading, AFollowerIsReadyBeforeItsTensorsAre) {
  Shell shell;
  shell.join();
  proto::AssignStage assign = assignment({.contents = {"a", "b"}});
  assign.seat = {0, 1};
  assign.local.emplace().steps = {.terms = {.count = 2, .every = 4, .followers = {1}}, .steps = 40};
  assign.training.steps = last_inner_step(assign.local->steps);
  shell.say(assign);
  ASSERT_TRUE(shell.runner.has_value());
  const auto made = [&] {
    shell.act(shell.peer.on_runner_made(shell.now, shell.runner->generation, peer::RunnerSize{Bytes{7}, {}}));
  };
  made();
  shell.act(shell.peer.on_links_up(shell.now, shell.links->generation));
  ASSERT_EQ(shell.told_of<proto::StageReady>().size(), 1u);
  EXPECT_TRUE(shell.told_of<proto::StageReady>()[0].follows);
  EXPECT_EQ(shell.runners_loaded, 0u);
  shell.answer_fetches();
  EXPECT_EQ(shell.runners_loaded, 1u);
  EXPECT_EQ(shell.told_of<proto::StageReady>().size(), 1u) << "what was agreed on since is not taken yet";
  made();
  ASSERT_EQ(shell.told_of<proto::StageReady>().size(), 2u);
  EXPECT_FALSE(shell.told_of<proto::StageReady>()[1].follows);
  shell.say(proto::ResumeStage{1, 1});
  ASSERT_EQ(shell.told_of<proto::StageReady>().size(), 3u) << "a broker that was restarted does not know";
}

TEST(Loading, AsksForSoManyAtOnceOnly) {
  Shell shell;
  shell.join();
  std::vector<std::string> contents;
  for (int i = 0; i < 30; ++i) contents.push_back("t" + std::to_string(i));
  shell.say(assignment({.contents = contents}));
  EXPECT_EQ(shell.fetches.size(), 8u);
  shell.answer_fetches();
  EXPECT_TRUE(shell.runner.has_value());
  EXPECT_EQ(shell.memory.size(), 30u);
}

TEST(Loading, ATensorThatIsNotThereFailsTheStageWithItsCode) {
  for (const ErrorCode code : {ErrorCode::NotFound, ErrorCode::Corrupted}) {
    Shell shell;
    shell.join();
    shell.say(assignment());
    shell.answer_fetches(fail(code, "no"));
    ASSERT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
    const proto::StageFailed failed = shell.told_of<proto::StageFailed>()[0];
    EXPECT_EQ(failed.error.code, code);
    EXPECT_EQ(failed.damaged, code == ErrorCode::Corrupted ? std::optional(digest_of("a")) : std::nullopt)
        << "the broker looks at its own bytes of what came with others";
    EXPECT_FALSE(shell.runner.has_value());
  }
}

TEST(Loading, ABrokenTransferIsTriedAgainWithPausesAndThenFails) {
  Shell shell;
  shell.join(std::chrono::seconds(600));
  shell.say(assignment({.contents = {"a"}}));
  for (int attempt = 1; attempt < 5; ++attempt) {
    ASSERT_EQ(shell.fetches.size(), 1u) << attempt;
    shell.answer_fetches(fail(ErrorCode::Unavailable, "reset"));
    EXPECT_TRUE(shell.fetches.empty()) << "not at once";
    EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
    while (shell.fetches.empty()) {
      shell.now = std::max(shell.now, shell.peer.next_deadline(shell.now).value());
      shell.tick();
    }
  }
  EXPECT_GE(shell.now - kStart, std::chrono::milliseconds(250 + 500 + 1000 + 2000));
  shell.answer_fetches(fail(ErrorCode::Unavailable, "reset"));
  EXPECT_EQ(shell.told_of<proto::StageFailed>().size(), 1u);
}

TEST(Loading, ASurvivorLoadsItsRecoveryPointWithoutFetching) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 2);
  shell.command(CommandKind::CopyState, 2);
  shell.command(CommandKind::Advance, 4);
  shell.work();
  shell.say(proto::ReleaseStage{1, 1, "a peer was lost"});
  EXPECT_FALSE(shell.links.has_value());
  EXPECT_EQ(shell.runners_dropped, 1u);
  shell.told.clear();
  shell.load(assignment({.plan_version = 2, .after_step = 2, .contents = {"w0@2", "w1@2"}}));
  EXPECT_TRUE(shell.fetches.empty());
  EXPECT_TRUE(shell.memory.contains(digest_of("w0@2")));
  EXPECT_EQ(shell.told_of<proto::StageReady>()[0].plan_version, 2u);
}

TEST(Loading, TheFirstAssignmentsTensorsAreARecoveryPointToo) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.say(proto::ReleaseStage{1, 1, "a peer was lost"});
  shell.say(assignment({.plan_version = 2}));
  EXPECT_TRUE(shell.fetches.empty());
  EXPECT_TRUE(shell.runner.has_value());
}

TEST(Loading, KeepFromForgetsEarlierSnapshots) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.command(CommandKind::Advance, 2);
  shell.command(CommandKind::CopyState, 2);
  shell.work();
  shell.answer_uploads();
  EXPECT_TRUE(shell.memory.contains(digest_of("a")));
  shell.command(CommandKind::Advance, 3, 2, 2, /*keep_from=*/1);
  EXPECT_FALSE(shell.memory.contains(digest_of("a")));
  EXPECT_TRUE(shell.memory.contains(digest_of("w0@1")));
  shell.command(CommandKind::Advance, 4, 2, 4, /*keep_from=*/2);
  EXPECT_EQ(shell.memory, (std::set<Digest>{digest_of("w0@2"), digest_of("w1@2")}));
}

TEST(Loading, SnapshotsAreBounded) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  for (uint64_t step = 1; step <= 30; ++step) {
    shell.command(CommandKind::Advance, step);
    shell.command(CommandKind::CopyState, step);
    shell.work();
    shell.answer_uploads();
  }
  EXPECT_EQ(shell.memory.size(), 2u * 8);
  EXPECT_TRUE(shell.memory.contains(digest_of("a"))) << "the recovery point is kept";
  EXPECT_TRUE(shell.memory.contains(digest_of("w0@30")));
}

TEST(Loading, AnotherRunsStageForgetsTheRest) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  shell.say(proto::ReleaseStage{1, 1, "done"});
  shell.say(assignment({.run = 2, .after_step = 5, .contents = {"b", "c"}}));
  EXPECT_EQ(shell.fetching(), Names{"c"}) << "what both have is used";
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("b")});
}

TEST(Loading, AnEmptyStandByForgetsAReleasedRunsSnapshotsAfterAWhile) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.say(proto::StandBy{.run = 1});
  EXPECT_FALSE(shell.memory.empty()) << "not while a stage of it is held";
  shell.say(proto::ReleaseStage{1, 1, "done"});
  EXPECT_FALSE(shell.memory.empty());
  shell.say(proto::StandBy{.run = 1});
  EXPECT_FALSE(shell.memory.empty()) << "it may be served next";
  shell.tick(std::chrono::minutes(5));
  EXPECT_TRUE(shell.memory.empty());
}

// Its run has ended: whoever serves what it learnt is given it by nobody, but what it lacks.
TEST(Loading, WhatARunLearntIsThereForWhoServesIt) {
  Shell shell;
  shell.join();
  shell.load(assignment({.contents = {"a", "b"}}));
  shell.say(proto::ReleaseStage{1, 1, "done"});
  shell.say(proto::StandBy{.run = 1});
  shell.say(assignment({.run = 2, .contents = {"b", "c"}}));
  EXPECT_EQ(shell.fetching(), Names{"c"});
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("b")});
}

// Whoever stands by for another run needs the room; what both have stays.
TEST(Loading, AStandByTakesTheRoomOfWhatARunLearnt) {
  Shell shell;
  shell.join();
  shell.load(assignment({.contents = {"a", "b"}}));
  shell.say(proto::ReleaseStage{1, 1, "done"});
  shell.say(proto::StandBy{.run = 1});
  shell.say(proto::StandBy{.run = 2, .tensors = {tensor_of("w0", "b"), tensor_of("w1", "c")}});
  EXPECT_EQ(shell.fetching(), Names{"c"});
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("b")});
}

TEST(Loading, WhatComesForAStageThatHasGoneIsForgotten) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::CopyState, 1);
  shell.work();
  const uint64_t generation = shell.peer.generation();
  shell.say(proto::ReleaseStage{1, 1, "lost"});
  shell.say(assignment({.run = 2, .contents = {"c"}}));
  const auto told = shell.told.size();
  shell.memory.insert(digest_of("late"));
  shell.act(shell.peer.on_hashed(shell.now, generation, {.kind = peer::TaskKind::Snapshot},
                                 {tensor_of("w0", "late")}));
  EXPECT_FALSE(shell.memory.contains(digest_of("late")));
  shell.act(shell.peer.on_runner_made(shell.now, generation, peer::RunnerSize{}));
  shell.act(shell.peer.on_links_up(shell.now, generation));
  shell.act(shell.peer.on_link_failed(shell.now, generation, {1}, {ErrorCode::Timeout, "gone"}));
  shell.act(shell.peer.on_task_done(shell.now, generation, {}, fail(ErrorCode::Internal, "kernel")));
  EXPECT_EQ(shell.told.size(), told);
}

TEST(Loading, AStageThatIsStillLoadingIsDroppedWithItsBroker) {
  Shell shell;
  shell.join();
  shell.say(assignment());
  shell.lose_broker();
  EXPECT_EQ(shell.runners_dropped, 1u);
  EXPECT_FALSE(shell.peer.assignment());
  shell.reconnect();
  EXPECT_TRUE(shell.told_of<proto::Hello>()[0].holding.empty());
}

TEST(Leaving, DrainsOnceItsStageIsTakenAway) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.act(shell.peer.request_drain(shell.now));
  EXPECT_EQ(shell.told_of<proto::Drain>().size(), 1u);
  EXPECT_FALSE(shell.left);
  shell.say(proto::ReleaseStage{1, 1, "moved"});
  EXPECT_TRUE(shell.left);
  EXPECT_TRUE(shell.why.has_value());
}

TEST(Leaving, WithoutAStageAtOnce) {
  Shell shell;
  shell.join();
  shell.act(shell.peer.request_drain(shell.now));
  EXPECT_TRUE(shell.left);
}

TEST(Leaving, SaysDrainAgainAfterItsBrokerCameBack) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.act(shell.peer.request_drain(shell.now));
  shell.lose_broker();
  EXPECT_FALSE(shell.left);
  shell.reconnect();
  shell.welcome();
  EXPECT_TRUE(shell.told_of<proto::Drain>().empty()) << "first the stage is resumed";
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_EQ(shell.told_of<proto::Drain>().size(), 1u);
  shell.say(proto::ReleaseStage{1, 1, "moved"});
  EXPECT_TRUE(shell.left);
}

TEST(Leaving, AWishToLeaveWithoutABrokerWaitsForTheStageToBeTaken) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.lose_broker();
  shell.act(shell.peer.request_drain(shell.now));
  EXPECT_FALSE(shell.left);
  shell.reconnect();
  shell.welcome();
  shell.say(proto::ReleaseStage{1, 1, "recovered without it"});
  EXPECT_TRUE(shell.left);
}

TEST(Leaving, ARefusalForGoodDropsTheStage) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.say(proto::Refusal{.code = ErrorCode::PermissionDenied, .message = "no"});
  EXPECT_TRUE(shell.left);
  EXPECT_FALSE(shell.why.has_value());
  EXPECT_EQ(shell.runners_dropped, 1u);
}

}  // namespace
}  // namespace weft::test
