// Copies that stay with their stage for others to fetch, and fetching them.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using Names = std::set<std::string>;
using proto::CommandKind;

PeerId peer_key(uint8_t n) {
  PeerId id;
  id.digest.bytes[0] = n;
  return id;
}

proto::BlobSource source(uint8_t peer, std::vector<uint32_t> tensors) {
  return {.peer = peer_key(peer), .addresses = {"here:1"}, .region = "r", .tensors = std::move(tensors)};
}

Shell loaded() {
  Shell shell;
  shell.join(std::chrono::seconds(600));
  shell.load(assignment());
  shell.told.clear();
  return shell;
}

// "w0", "w1" with these contents, all from one peer.
proto::StandBy list(uint64_t number, uint64_t step, const std::vector<std::string>& contents) {
  proto::StandBy message{.run = 1, .step = step, .tensors = {}, .rate = 0, .sources = {}, .list = number};
  proto::BlobSource from = source(7, {});
  for (uint32_t t = 0; t < contents.size(); ++t) {
    message.tensors.push_back(tensor_of("w" + std::to_string(t), contents[t]));
    from.tensors.push_back(t);
  }
  message.sources.push_back(from);
  return message;
}

void copy_directly(Shell& shell, uint64_t step, uint64_t settled = 0, uint64_t keep_from = 0) {
  shell.command(CommandKind::Advance, step, 0, settled, keep_from);
  shell.say(proto::Command{.run = 1,
                           .plan_version = 1,
                           .kind = CommandKind::CopyState,
                           .step = step,
                           .sequence = ++shell.sequence,
                           .settled = settled,
                           .keep_from = keep_from,
                           .direct = true});
  shell.work();
}

TEST(DirectCopy, IsReportedWhenItIsMadeAndOfferedToNobody) {
  Shell shell = loaded();
  copy_directly(shell, 1);
  EXPECT_TRUE(shell.offers.empty());
  const auto reports = shell.told_of<proto::CheckpointReport>();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].step, 1u);
  ASSERT_EQ(reports[0].tensors.size(), 2u);
  for (const auto& tensor : reports[0].tensors) EXPECT_TRUE(shell.memory.contains(tensor.sha256));
}

TEST(DirectCopy, GivesWayToTheNextWhereMemoryHasRoomForOneAlone) {
  peer::PeerOptions options;
  options.session.hello.device = proto::DeviceReport{.memory = Bytes{64 * 64}};
  options.bounds.snapshots = 1;
  Shell shell(options);
  shell.join(std::chrono::seconds(600));
  shell.load(assignment());
  for (uint64_t step = 1; step <= 3; ++step) {
    copy_directly(shell, step);
    EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), step);
    EXPECT_TRUE(shell.memory.contains(digest_of("w0@" + std::to_string(step))));
    EXPECT_FALSE(shell.memory.contains(digest_of("w0@" + std::to_string(step - 1))));
  }
}

TEST(DirectCopy, StaysUntilItIsSettled) {
  Shell shell = loaded();
  for (uint64_t step = 1; step <= 2; ++step) copy_directly(shell, step);
  for (const char* name : {"w0@1", "w1@1", "w0@2", "w1@2"})
    EXPECT_TRUE(shell.memory.contains(digest_of(name))) << name;
  shell.command(CommandKind::Advance, 3, 2, shell.sequence, 2);
  EXPECT_FALSE(shell.memory.contains(digest_of("w0@1")));
  EXPECT_TRUE(shell.memory.contains(digest_of("w0@2"))) << "what the run would go back to";
}

TEST(DirectCopy, AStageWithAsManyAsItMayKeepWaits) {
  Shell shell = loaded();
  for (uint64_t step = 1; step <= 6; ++step) copy_directly(shell, step);
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 4u);
  shell.command(CommandKind::Advance, 7, 6, shell.sequence - 4, 2);
  shell.work();
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 6u);
}

TEST(DirectCopy, IsReportedAgainToABrokerThatCameBackAndNotOffered) {
  Shell shell = loaded();
  copy_directly(shell, 1);
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  shell.told.clear();
  shell.say(proto::ResumeStage{1, 1});
  EXPECT_EQ(shell.told_of<proto::CheckpointReport>().size(), 1u);
  EXPECT_TRUE(shell.offers.empty());
}

TEST(DirectCopy, IsFetchedFromItsSourceAsTheDifferenceToTheCopyBefore) {
  Shell shell;
  shell.join();
  shell.say(list(1, 4, {"a4", "b4"}));
  ASSERT_EQ(shell.fetches.size(), 2u);
  for (const auto& fetch : shell.fetches) {
    ASSERT_NE(fetch.source, nullptr);
    EXPECT_EQ(fetch.source->peer, peer_key(7));
    EXPECT_FALSE(fetch.base.has_value());
  }
  shell.answer_fetches();
  shell.say(list(2, 8, {"a8", "b4"}));
  ASSERT_EQ(shell.fetching(), Names{"a8"});
  ASSERT_TRUE(shell.fetches[0].base.has_value());
  EXPECT_EQ(to_hex(*shell.fetches[0].base), to_hex(digest_of("a4")));
  shell.answer_fetches();
  const auto told = shell.told_of<proto::StandingBy>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].list, 2u);
  EXPECT_EQ(told[1].step, 8u);
  EXPECT_FALSE(told[1].failure.has_value());
}

TEST(DirectCopy, OfSeveralStagesIsFetchedFromAllAtOnceEachWithinTheRate) {
  Shell shell;
  shell.join();
  proto::StandBy message = list(1, 4, {"a", "b", "c", "d"});
  message.rate = 100;  // of which half a second carries less than one of 64 bytes
  message.sources = {source(7, {0, 1}), source(8, {2, 3})};
  shell.say(message);
  EXPECT_EQ(shell.fetching(), (Names{"a", "c"}));
  const auto first = shell.fetches.front();
  shell.fetches.pop_front();
  shell.memory.insert(first.sha256);
  shell.act(shell.peer.on_blob(shell.now, first.sha256, {}));
  EXPECT_EQ(shell.fetching(), (Names{"b", "c"}));
  shell.answer_fetches();
  EXPECT_EQ(shell.told_of<proto::StandingBy>().size(), 1u);
}

TEST(DirectCopy, ThatCannotBeHadIsToldAndTheOneBeforeKept) {
  Shell shell;
  shell.join();
  shell.say(list(1, 4, {"a4"}));
  shell.answer_fetches();
  shell.say(list(2, 8, {"a8", "b8"}));
  shell.answer_fetches(fail(ErrorCode::NotFound, "gone"));
  const auto told = shell.told_of<proto::StandingBy>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].list, 2u);
  ASSERT_TRUE(told[1].failure.has_value());
  EXPECT_EQ(told[1].failure->code, ErrorCode::NotFound);
  EXPECT_TRUE(shell.memory.contains(digest_of("a4")));
}

TEST(DirectCopy, AFailureIsNotToldToABrokerThatWouldTakeItForTheOpposite) {
  Shell shell;
  shell.act(shell.peer.start(shell.now));
  shell.act(shell.peer.on_connected(shell.now));
  proto::HelloAck ack{.minor = proto::kProtocolMinorOfDirectCopies - 1};
  ack.heartbeat_interval = std::chrono::seconds(2);
  ack.lease = std::chrono::seconds(600);
  shell.say(ack);
  shell.say(list(1, 4, {"a4"}));
  shell.answer_fetches(fail(ErrorCode::NotFound, "gone"));
  EXPECT_TRUE(shell.told_of<proto::StandingBy>().empty());
}

TEST(DirectCopy, AStageIsLoadedFromThePeersThatHaveItsTensors) {
  Shell shell;
  shell.join();
  proto::AssignStage assign = assignment();
  assign.sources = {source(9, {1})};
  shell.say(assign);
  ASSERT_EQ(shell.fetches.size(), 2u);
  EXPECT_EQ(shell.fetches[0].source, nullptr);
  ASSERT_NE(shell.fetches[1].source, nullptr);
  EXPECT_EQ(shell.fetches[1].source->peer, peer_key(9));
  shell.answer_fetches();
  EXPECT_TRUE(shell.runner.has_value());
}

TEST(DirectCopy, AStageWhoseSourceCannotBeReachedSaysThatItsTensorsAreGone) {
  Shell shell;
  shell.join(std::chrono::seconds(600));
  proto::AssignStage assign = assignment();
  assign.sources = {source(9, {0, 1})};
  shell.say(assign);
  for (int i = 0; i < 20 && shell.told_of<proto::StageFailed>().empty(); ++i) {
    shell.answer_fetches(fail(ErrorCode::Unavailable, "nobody answers"));
    shell.tick(std::chrono::seconds(5));
  }
  const auto failed = shell.told_of<proto::StageFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].error.code, ErrorCode::NotFound);
}

TEST(DirectCopy, WhatAnotherStageNeedsIsKeptUntilTheRunGoesOn) {
  Shell shell;
  shell.join(std::chrono::seconds(600));
  shell.say(list(1, 4, {"a", "b", "c", "d"}));
  shell.answer_fetches();
  proto::AssignStage assign = assignment({.plan_version = 2, .after_step = 4});
  assign.lends = {digest_of("c")};
  shell.load(assign);
  EXPECT_TRUE(shell.memory.contains(digest_of("c")));
  EXPECT_FALSE(shell.memory.contains(digest_of("d")));
  shell.command(CommandKind::Advance, 5);
  EXPECT_FALSE(shell.memory.contains(digest_of("c")));
}

// A spare that offers so much memory has two stages' copies, takes the first stage over and lends of the
// second.
Shell lending(proto::AssignStage& assign) {
  peer::PeerOptions options;
  options.session.hello.device = proto::DeviceReport{.memory = Bytes{64 * 64}};
  Shell shell(options);
  shell.join(std::chrono::seconds(600));
  shell.say(list(1, 4, {"a", "b", "c", "d"}));
  shell.answer_fetches();
  assign = assignment({.plan_version = 2, .after_step = 4});
  assign.lends = {digest_of("c"), digest_of("d"), digest_of("c")};  // two stages fetch c
  return shell;
}

TEST(DirectCopy, WhereMemoryIsSharedAStageIsLoadedWhenWhatItLendsHasBeenFetched) {
  proto::AssignStage assign;
  Shell shell = lending(assign);
  shell.say(assign);
  for (const char* given : {"c", "d"}) {
    EXPECT_FALSE(shell.runner.has_value());
    shell.act(shell.peer.on_giving(shell.now, digest_of(given), false));
    shell.act(shell.peer.on_giving(shell.now, digest_of(given), true));
    EXPECT_TRUE(shell.memory.contains(digest_of("c"))) << "may be asked for again";
  }
  shell.tick(std::chrono::seconds(15));
  EXPECT_FALSE(shell.runner.has_value()) << "another stage fetches c";
  shell.act(shell.peer.on_giving(shell.now, digest_of("c"), true));
  EXPECT_TRUE(shell.runner.has_value());
  EXPECT_FALSE(shell.memory.contains(digest_of("c")));
  EXPECT_FALSE(shell.memory.contains(digest_of("d")));
}

TEST(DirectCopy, AStageThatLendsWaitsWhileThereIsProgressAndNotForWhoNeverComes) {
  proto::AssignStage assign;
  Shell shell = lending(assign);
  shell.say(assign);
  for (int i = 0; i < 10; ++i) {
    shell.act(shell.peer.on_giving(shell.now, digest_of("c"), false));
    shell.tick(std::chrono::seconds(15));
    EXPECT_FALSE(shell.runner.has_value());
  }
  shell.tick(std::chrono::seconds(15));
  EXPECT_TRUE(shell.runner.has_value());
  EXPECT_FALSE(shell.memory.contains(digest_of("c")));
}

// Whoever was assigned its stage a moment earlier came for it before this one was; and what the stage begins
// with itself takes no room that it would not have taken.
TEST(DirectCopy, AStageThatLendsDoesNotWaitForWhatWasGivenBeforeOrIsItsOwn) {
  proto::AssignStage assign;
  Shell shell = lending(assign);
  assign.lends = {digest_of("a"), digest_of("c")};
  shell.act(shell.peer.on_giving(shell.now, digest_of("c"), true));
  shell.say(assign);
  EXPECT_TRUE(shell.runner.has_value());
}

TEST(DirectCopy, WhatIsLentGoesWithTheStage) {
  proto::AssignStage assign;
  Shell shell = lending(assign);
  shell.say(assign);
  shell.say(proto::ReleaseStage{.run = 1, .plan_version = 2, .reason = "over"});
  EXPECT_FALSE(shell.memory.contains(digest_of("c")));
  shell.act(shell.peer.on_giving(shell.now, digest_of("c"), true));
  shell.tick(std::chrono::seconds(60));
  EXPECT_FALSE(shell.runner.has_value());
}

}  // namespace
}  // namespace weft::test
