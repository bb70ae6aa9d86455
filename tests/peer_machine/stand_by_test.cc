// Tensors held for stages that others run.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using Names = std::set<std::string>;

proto::StandBy list(uint64_t step, const std::vector<std::string>& contents, uint64_t rate = 0) {
  proto::StandBy message{.run = 1, .step = step, .tensors = {}, .rate = rate};
  for (const std::string& content : contents) message.tensors.push_back(tensor_of("w", content));
  return message;
}

TEST(StandBy, FetchesWhatIsMissingAndSaysSo) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a", "b"}));
  EXPECT_EQ(shell.fetching(), (Names{"a", "b"}));
  shell.answer_fetches();
  ASSERT_EQ(shell.told_of<proto::StandingBy>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StandingBy>()[0].step, 1u);
  shell.say(list(2, {"a", "c"}));
  EXPECT_EQ(shell.fetching(), (Names{"c"}));
  EXPECT_EQ(shell.memory.size(), 2u) << "the list before is kept until the new one is complete";
  shell.answer_fetches();
  EXPECT_EQ(shell.told_of<proto::StandingBy>().size(), 2u);
  EXPECT_EQ(shell.memory, (std::set<Digest>{digest_of("a"), digest_of("c")}));
}

TEST(StandBy, GoesStraightToTheNewestList) {
  Shell shell;
  shell.join();
  // 64 bytes each, within 100 bytes a second: one at a time.
  shell.say(list(1, {"a1", "b1", "c1"}, 100));
  EXPECT_EQ(shell.fetching(), Names{"a1"});
  EXPECT_EQ(shell.fetches[0].rate, 100u);
  shell.say(list(2, {"a2", "b1"}, 100));
  shell.say(list(3, {"a3", "b1"}, 100));
  shell.memory.insert(digest_of("a1"));
  shell.fetches.clear();
  shell.act(shell.peer.on_blob(shell.now, digest_of("a1"), {}));
  EXPECT_TRUE(shell.memory.empty()) << "of a list that is no more";
  EXPECT_EQ(shell.fetching(), Names{"a3"});
  shell.answer_fetches();
  ASSERT_EQ(shell.told_of<proto::StandingBy>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::StandingBy>()[0].step, 3u);
}

TEST(StandBy, WhatIsNeededAtOnceIsFetchedWithoutALimit) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a", "b", "c"}, 100));
  EXPECT_EQ(shell.fetching(), Names{"a"});
  shell.say(assignment({.contents = {"a", "b"}}));
  ASSERT_EQ(shell.fetching(), (Names{"a", "b"}));
  for (const auto& fetch : shell.fetches) EXPECT_EQ(fetch.rate, 0u);
  shell.answer_fetches();
  EXPECT_TRUE(shell.runner.has_value());
}

// Lists of nothing take memory, too.
TEST(StandBy, ListsWithoutEndAreRefused) {
  Shell shell;
  shell.join();
  size_t refused = 0;
  for (proto::JobNumber run = 1; run <= 10; ++run) {
    proto::StandBy message{.run = run, .step = 1};
    for (int i = 0; i < 15'000; ++i)
      message.tensors.push_back(tensor_of("w" + std::to_string(i), "one content"));
    shell.say(message);
    const auto told = shell.told_of<proto::StandingBy>();
    refused = static_cast<size_t>(std::count_if(
        told.begin(), told.end(), [](const auto& standing) { return standing.failure.has_value(); }));
  }
  EXPECT_GE(refused, 4u);
  EXPECT_LE(refused, 6u) << "some 7.8 MB each, of 40 MiB";
  for (proto::JobNumber run = 1; run <= 10; ++run) shell.say(proto::StandBy{.run = run});
  shell.say(list(2, {"a"}));
  EXPECT_TRUE(shell.fetching().contains("a")) << "what was let go makes room";
}

TEST(StandBy, AWarmSpareLoadsWithoutFetching) {
  Shell shell;
  shell.join();
  shell.say(list(4, {"a", "b", "of another stage"}));
  shell.answer_fetches();
  shell.say(assignment({.plan_version = 2, .after_step = 4}));
  EXPECT_TRUE(shell.fetches.empty());
  EXPECT_TRUE(shell.runner.has_value());
  EXPECT_EQ(shell.memory.size(), 2u) << "it stands by no more";
}

TEST(StandBy, AListThatIsGoneIsGivenUpAndTheOneBeforeKept) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a"}));
  shell.answer_fetches();
  shell.say(list(2, {"b", "c"}));
  shell.answer_fetches(fail(ErrorCode::NotFound, "wiped"));
  EXPECT_EQ(shell.memory, std::set<Digest>{digest_of("a")});
  EXPECT_FALSE(shell.left);
  shell.say(list(3, {"d"}));
  shell.answer_fetches();
  EXPECT_EQ(shell.told_of<proto::StandingBy>().back().step, 3u);
}

TEST(StandBy, GoesOnAfterItsBrokerCameBack) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a", "b"}));
  shell.lose_broker();
  shell.reconnect();
  EXPECT_TRUE(shell.fetches.empty());
  shell.welcome();
  EXPECT_EQ(shell.fetching(), (Names{"a", "b"}));
  shell.answer_fetches();
  EXPECT_EQ(shell.told_of<proto::StandingBy>().size(), 1u);
}

TEST(StandBy, NoTensorsForgetTheRuns) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a"}));
  shell.answer_fetches();
  shell.say(list(2, {"b"}));
  shell.say(list(0, {}));
  EXPECT_TRUE(shell.memory.empty());
  shell.answer_fetches();
  EXPECT_TRUE(shell.memory.empty()) << "what was under way is not kept";
}

TEST(StandBy, WhatTheMemoryOfferedCannotHoldIsNotFetched) {
  peer::PeerOptions options;
  options.session.hello.device = proto::DeviceReport{.memory = Bytes{100}};
  Shell shell(options);
  shell.join();
  shell.say(list(1, {"a", "b"}));
  EXPECT_TRUE(shell.fetches.empty());
}

TEST(StandBy, IsForgottenWhenTheBrokerStaysAway) {
  Shell shell;
  shell.join();
  shell.say(list(1, {"a"}));
  shell.answer_fetches();
  shell.lose_broker();
  shell.tick(std::chrono::minutes(11));
  EXPECT_TRUE(shell.memory.empty());
}

}  // namespace
}  // namespace weft::test
