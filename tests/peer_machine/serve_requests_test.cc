// Requests at the entry of a served model, and what the broker is told of them, also when it was away.
#include "tests/peer_machine/serving.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using peer::ServeRequests;
using peer::ServeScript;
using peer::TaskKind;
using proto::ServeEnd;
using proto::ServeProgress;
using proto::TensorHeader;
using Tokens = std::vector<int64_t>;

// ---- requests

TEST(Serve, ARequestGoesToTheRunnerAndPassesAreBegun) {
  Serving shell(0, 1);
  shell.request(5, 3);
  ASSERT_EQ(shell.requests.size(), 1u);
  EXPECT_EQ(std::get<proto::ServeRequest>(shell.requests[0].what).request, 5u);
  ASSERT_EQ(shell.tasks.size(), 1u);
  EXPECT_EQ(shell.tasks.front().task.kind, TaskKind::Begin);
  shell.finish({.served = {drawn(5, 3, {11})}, .more = true});
  ASSERT_EQ(shell.tasks.size(), 1u) << "there is more to do";
  shell.finish({.served = {drawn(5, 4, {12, 13}, ServeEnd::Stop)}});
  EXPECT_TRUE(shell.tasks.empty());
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].first, 3u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{11}));
  EXPECT_FALSE(progress[0].end.has_value());
  EXPECT_EQ(progress[1].first, 4u);
  EXPECT_EQ(tokens_of(progress[1]), (Tokens{12, 13}));
  EXPECT_EQ(progress[1].end, ServeEnd::Stop);
}

TEST(Serve, GuessesAreToldOnceWithWhateverIsToldNext) {
  Serving shell(0, 1);
  shell.request(5, 3);
  const auto guessed = [](uint32_t guesses, uint32_t right, ServeProgress progress) {
    progress.guesses = guesses;
    progress.guesses_right = right;
    return progress;
  };
  shell.finish({.served = {guessed(7, 3, drawn(5, 3, {11}))}, .more = true});
  auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].guesses, 7u);
  EXPECT_EQ(progress[0].guesses_right, 3u);
  shell.finish({.served = {guessed(2, 2, drawn(6, 3, {11}))}, .more = true});  // of one that is not known
  EXPECT_TRUE(shell.take_progress().empty());
  shell.request(5, 3);
  progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{11}));
  EXPECT_EQ(progress[0].guesses, 2u);
  EXPECT_EQ(progress[0].guesses_right, 2u);
}

TEST(Serve, WhatTheRingHoldsIsToldWithTheNextTokens) {
  Serving shell(0, 2);
  shell.request(5, 3);
  shell.finish({.under_way = 1, .load = {.positions = 16, .under_way = 1}});
  EXPECT_TRUE(shell.take_progress().empty()) << "by itself it is not told";
  shell.come_whole(1, 1, 1);
  shell.finish({.under_way = 1, .load = {.positions = 16, .under_way = 1, .passes = 1, .rows = 3}});
  shell.come_whole(2, 1, 1);
  shell.finish({.served = {drawn(5, 3, {11})},
                .under_way = 1,
                .load = {.positions = 32, .under_way = 1, .passes = 1, .rows = 2}});
  auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  ASSERT_TRUE(progress[0].load.has_value());
  EXPECT_EQ(progress[0].load->positions, 32u);
  EXPECT_EQ(progress[0].load->passes, 2u);
  EXPECT_EQ(progress[0].load->rows, 5u);
  shell.request(5, 3);
  progress = shell.take_progress();
  ASSERT_TRUE(progress.at(0).load.has_value());
  EXPECT_EQ(progress[0].load->positions, 32u);
  EXPECT_EQ(progress[0].load->passes, 0u) << "they are told once";
}

TEST(Serve, ARequestThatIsKnownIsToldAgainAndNotDrawnAnew) {
  Serving shell(0, 2);
  shell.request(5, 3);
  shell.finish({.served = {drawn(5, 3, {11, 12, 13})}, .under_way = 1});
  shell.take_progress();
  shell.request(5, 4);
  auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].first, 4u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{12, 13}));
  shell.request(5, 9);  // it knows more than was drawn: no token, and how far this is
  progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].first, 6u);
  EXPECT_TRUE(progress[0].tokens.empty());
  shell.come_whole(1, 1, 1);
  shell.finish({.served = {drawn(5, 6, {14}, ServeEnd::Length)}});
  shell.take_progress();
  shell.request(5, 3);
  progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{11, 12, 13, 14}));
  EXPECT_EQ(progress[0].end, ServeEnd::Length);
  EXPECT_EQ(shell.requests.size(), 1u);
  EXPECT_TRUE(shell.tasks.empty());
}

TEST(Serve, CancellingGoesToTheRunnerAsLongAsTokensAreDrawn) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.finish();
  shell.say(proto::CancelRequest{1, 1, 6});  // unknown
  EXPECT_TRUE(shell.tasks.empty());
  shell.say(proto::CancelRequest{1, 1, 5});
  ASSERT_EQ(shell.requests.size(), 2u);
  EXPECT_EQ(std::get<proto::CancelRequest>(shell.requests[1].what).request, 5u);
  ASSERT_EQ(shell.tasks.size(), 1u);
  shell.finish({.served = {drawn(5, 3, {}, ServeEnd::Cancelled)}});
  EXPECT_EQ(shell.take_progress().at(0).end, ServeEnd::Cancelled);
  shell.say(proto::CancelRequest{1, 1, 5});
  shell.request(5, 3, 0);  // none are wanted
  EXPECT_EQ(shell.requests.size(), 2u);
  EXPECT_TRUE(shell.tasks.empty() && shell.told.empty());
}

TEST(Serve, RequestsAreForTheEntryAlone) {
  Serving other(1, 2);
  other.request(5, 3);
  ASSERT_TRUE(other.failure().has_value());
  EXPECT_FALSE(other.failure()->unreachable.has_value());
  Shell training;
  training.join();
  training.load(assignment());
  training.say(proto::CancelRequest{1, 1, 5});
  EXPECT_EQ(training.told_of<proto::StageFailed>().size(), 1u);
  Serving entry(0, 2);
  entry.say(proto::ServeRequest{.run = 2, .plan_version = 1, .request = 1, .tokens = {1}, .tokens_max = 1});
  entry.say(proto::ServeRequest{.run = 1, .plan_version = 2, .request = 1, .tokens = {1}, .tokens_max = 1});
  EXPECT_TRUE(entry.requests.empty() && entry.told.empty()) << "of another run, of another plan";
}

TEST(Serve, RequestsBeyondTheBoundsAreToldAsFailed) {
  Serving shell(0, 1);
  for (uint64_t number = 1; number <= 4 + ServeRequests::kWaitingMax; ++number) shell.request(number, 1);
  EXPECT_EQ(shell.requests.size(), 4 + ServeRequests::kWaitingMax);
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty());
  shell.request(5000, 1);
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].end, ServeEnd::Failed);
  EXPECT_EQ(progress[0].error.value().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(shell.requests.size(), 4 + ServeRequests::kWaitingMax);

  Serving wide(0, 1);
  for (uint64_t number = 1; number <= 17; ++number) wide.request(number, size_t{1} << 20);
  EXPECT_EQ(wide.requests.size(), 16u) << "of all prompts together";
  EXPECT_EQ(wide.take_progress().at(0).end, ServeEnd::Failed);
}

TEST(Serve, LongProgressComesInSeveralMessages) {
  Serving shell(0, 1);
  shell.request(5, 3);
  Tokens tokens(2 * ServeRequests::kTokensAtOnce + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  shell.finish({.served = {drawn(5, 3, tokens, ServeEnd::Length)}});
  Tokens told;
  const auto progress = shell.take_progress();
  EXPECT_EQ(progress.size(), 3u);
  for (const ServeProgress& one : progress) {
    EXPECT_EQ(one.first, 3 + told.size());
    const Tokens some = tokens_of(one);
    told.insert(told.end(), some.begin(), some.end());
    EXPECT_EQ(one.end.has_value(), told.size() == tokens.size());
  }
  EXPECT_EQ(told, tokens);
}

// ---- the broker goes and comes

TEST(Serve, WhatIsDrawnWhileTheBrokerIsAwayIsToldOnceItHasResumedTheStage) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.request(6, 1);
  shell.finish({.served = {drawn(5, 3, {11}), drawn(6, 1, {21})}, .more = true});
  shell.take_progress();
  shell.lose_broker();
  shell.finish({.served = {drawn(5, 4, {12})}, .more = true});
  shell.finish({.served = {drawn(5, 5, {13}, ServeEnd::Stop)}, .more = true});
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty());
  EXPECT_EQ(shell.tasks.size(), 1u) << "the stage goes on";
  shell.reconnect();
  shell.welcome();
  EXPECT_TRUE(shell.told_of<ServeProgress>().empty()) << "the broker has not taken the stage up yet";
  shell.say(proto::ResumeStage{.run = 1, .plan_version = 1});
  ASSERT_EQ(shell.told_of<proto::StageResumed>().size(), 1u);
  const auto progress = shell.take_progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].first, 4u);
  EXPECT_EQ(tokens_of(progress[0]), (Tokens{12, 13}));
  EXPECT_EQ(progress[0].end, ServeEnd::Stop);
  EXPECT_EQ(progress[1].request, 6u) << "so that it notices if the last message was lost";
  EXPECT_EQ(progress[1].first, 2u);
  EXPECT_TRUE(progress[1].tokens.empty());
}

TEST(Serve, WhatHasEndedIsKnownForAMinute) {
  Serving shell(0, 1);
  shell.request(5, 3);
  shell.finish({.served = {drawn(5, 3, {11}, ServeEnd::Stop)}});
  shell.live(ServeRequests::kEndedFor - 1s);
  shell.take_progress();
  shell.request(5, 3);
  EXPECT_EQ(shell.take_progress().at(0).end, ServeEnd::Stop);
  shell.live(1s);
  EXPECT_EQ(shell.requests_here().ended(), 0u);
  shell.request(5, 3);
  EXPECT_EQ(shell.requests.size(), 2u) << "drawn anew";
}

TEST(Serve, OfWhatHasEndedTheNewestAreKept) {
  Serving shell(0, 1);
  const uint64_t count = ServeRequests::kEndedMax + 10;
  for (uint64_t number = 1; number <= count; ++number) {
    shell.request(number, 1);
    shell.finish({.served = {drawn(number, 1, {7}, ServeEnd::Stop)}});
  }
  EXPECT_EQ(shell.told_of<ServeProgress>().size(), count);
  EXPECT_EQ(shell.requests_here().ended(), ServeRequests::kEndedMax);
  EXPECT_EQ(shell.requests_here().open(), 0u);

  Serving wide(0, 1);
  const Tokens many(ServeRequests::kEndedTokensMax / 2, 7);
  for (uint64_t number = 1; number <= 3; ++number) {
    wide.request(number, 1);
    wide.finish({.served = {drawn(number, 1, many, ServeEnd::Length)}});
  }
  EXPECT_EQ(wide.requests_here().ended(), 2u);
}

}  // namespace
}  // namespace weft::test
