#include "broker/service/remote_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/door/remote_heard.h"

namespace weft::broker {
namespace {

using namespace test_door;
using serve::Finish;
using test::FakeEntry;

proto::ServeProgress progress(uint64_t number, uint64_t first, std::vector<int64_t> tokens,
                              std::optional<proto::ServeEnd> end = {}) {
  proto::ServeProgress told{.run = 7, .plan_version = 1, .request = number, .first = first, .end = end};
  for (const int64_t token : tokens) told.tokens.push_back({.token = token});
  return told;
}

TEST(RemoteRequests, TheTextIsThatOfAnEngine) {
  Fixture f;
  f.requests.place(served(1), f.now);
  FakeEntry entry(kContext, kVocabulary);
  for (const int64_t tokens_max : {5, 30, -1}) {
    serve::Request request = request_of({1, 2, 3}, tokens_max, 11);
    request.ends = {4};
    Heard heard;
    f.add(request, heard);
    f.run(entry);
    const auto [tokens, finish] = undisturbed(request);
    EXPECT_EQ(heard.tokens, tokens);
    EXPECT_EQ(heard.finish, finish);
  }
  EXPECT_EQ(entry.cancelled, 0u);  // it has ended them itself
}

TEST(RemoteRequests, WithoutAPlaceItSaysWhatLacks) {
  Fixture f;
  Heard early, fresh, under_way, late;
  f.add(request_of({1}, 9), early);
  EXPECT_TRUE(early.failed_with(ErrorCode::Unavailable));
  f.requests.place(served(std::nullopt), f.now);
  f.add(request_of({1}, 9), late);
  EXPECT_TRUE(late.failed_with(ErrorCode::Unavailable));
  EXPECT_NE(late.status.error().message.find("stage 1 of 2 has no peer"), std::string::npos);

  f.requests.place(served(1), f.now);
  f.add(request_of({1}, 9), under_way);
  f.requests.progress(peer(1), progress(under_way.id, 1, {5}), f.now);
  f.requests.place(served(std::nullopt), f.now);
  f.add(request_of({1}, 9), fresh);
  EXPECT_FALSE(fresh.finish);  // it waits
  EXPECT_EQ(fresh.id, 0u);     // and may still get a status of its own
  f.now += std::chrono::seconds(31);
  f.requests.tick(f.now);
  EXPECT_TRUE(fresh.failed_with(ErrorCode::Unavailable));
  EXPECT_FALSE(under_way.finish);
  f.now += std::chrono::seconds(90);
  f.requests.tick(f.now);
  EXPECT_TRUE(under_way.failed_with(ErrorCode::Unavailable));
}

TEST(RemoteRequests, ANewEntryGetsAllThatIsKnownAtOnce) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard first, second;
  f.add(request_of({1, 2}, 9, 41), first);
  f.add(request_of({3}, 5, 42), second);
  f.requests.progress(peer(1), progress(first.id, 2, {7, 8, 9}), f.now);
  f.sent.clear();
  f.requests.place(served(1), f.now);  // nothing has changed
  EXPECT_TRUE(f.sent.empty());
  f.requests.place(served(1, 2), f.now);  // the same peer, in another plan
  ASSERT_EQ(f.sent.size(), 2u);
  const auto& again = std::get<proto::ServeRequest>(f.sent[0].second);
  EXPECT_EQ(f.sent[0].first, peer(1));
  EXPECT_EQ(again.plan_version, 2u);
  EXPECT_EQ(again.request, first.id);
  EXPECT_EQ(again.tokens, (std::vector<int64_t>{1, 2, 7, 8, 9}));
  EXPECT_EQ(again.tokens_max, 6u);
  EXPECT_EQ(again.seed, 41u);
  EXPECT_EQ(f.last_request().tokens, std::vector<int64_t>{3});
  // It was away for a while, and what was sent to it may be lost.
  f.sent.clear();
  f.requests.place(served(std::nullopt), f.now);
  f.requests.place(served(1, 2), f.now);
  EXPECT_EQ(f.sent.size(), 2u);
}

TEST(RemoteRequests, WhatWaitsIsBounded) {
  Fixture f({.waiting_max = 3, .beyond_sequences = 2});
  f.requests.place(served(1), f.now);
  f.requests.place(served(std::nullopt), f.now);
  std::vector<Heard> heard(40);
  for (size_t i = 0; i < 4; ++i) f.add(request_of({1}, 9), heard[i]);
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(heard[i].finish);
  EXPECT_TRUE(heard[3].failed_with(ErrorCode::ResourceExhausted));
  f.requests.place(served(2, 2), f.now);
  EXPECT_EQ(f.sent.size(), 3u);
  for (size_t i = 4; i < heard.size(); ++i) f.add(request_of({1}, 9), heard[i]);
  EXPECT_EQ(f.sent.size(), 18u);  // 16 sequences, and two that wait there
  EXPECT_FALSE(heard[4 + 17].finish);
  EXPECT_TRUE(heard[4 + 18].failed_with(ErrorCode::ResourceExhausted));

  Fixture long_ones({.prompts_max = 10});
  long_ones.requests.place(served(1), f.now);
  Heard first, second;
  long_ones.add(request_of(std::vector<int64_t>(6, 1), 9), first);
  long_ones.add(request_of(std::vector<int64_t>(6, 1), 9), second);
  EXPECT_FALSE(first.finish);
  EXPECT_TRUE(second.failed_with(ErrorCode::ResourceExhausted));
}

TEST(RemoteRequests, WhatDoesNotFitIsToldWithItsNumbers) {
  Fixture f;
  ServedJob small = served(1);
  small.model.positions_max = 64;
  f.requests.place(small, f.now);
  const auto refusal = [&](const serve::Request& request, ErrorCode code) {
    Heard heard;
    f.add(request, heard);
    EXPECT_TRUE(heard.failed_with(code));
    return heard.status ? "" : heard.status.error().message;
  };
  EXPECT_EQ(refusal(request_of({1, 2, 3}, 94), ErrorCode::OutOfRange),
            "a prompt of 3 tokens and max_tokens of 94 go beyond the model's context of 96");
  EXPECT_EQ(refusal(request_of({1, 2, 3}, 80), ErrorCode::OutOfRange),
            "a sequence of 83 tokens needs more memory than there is; the largest that fits has 64");
  EXPECT_EQ(refusal(request_of({1, 2, 3}, -1), ErrorCode::OutOfRange),
            "a sequence of 96 tokens needs more memory than there is; the largest that fits has 64");
  EXPECT_EQ(refusal(request_of(std::vector<int64_t>(97, 1), -1), ErrorCode::OutOfRange),
            "the prompt has 97 tokens, the model's context is 96");
  refusal(request_of({}, 1), ErrorCode::InvalidArgument);
  refusal(request_of({kVocabulary}, 1), ErrorCode::InvalidArgument);
  refusal(request_of({-1}, 1), ErrorCode::InvalidArgument);
  EXPECT_TRUE(f.sent.empty());
}

TEST(RemoteRequests, APromptThatFillsTheContextEndsThere) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of(std::vector<int64_t>(kContext, 1), -1), heard);
  EXPECT_EQ(heard.finish, Finish::Length);
  EXPECT_TRUE(f.sent.empty());
}

TEST(RemoteRequests, TheEntryHearsOfTheEndWhereItWasNotTheOneThatEnded) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard left, enough;
  f.add(request_of({1}, 9), left);
  f.sent.clear();
  f.requests.cancel(left.id, f.now);
  EXPECT_EQ(left.finish, Finish::Cancelled);
  ASSERT_EQ(f.sent.size(), 1u);
  EXPECT_EQ(std::get<proto::CancelRequest>(f.sent[0].second).request, left.id);
  enough.leaves_after = 2;
  f.add(request_of({1}, 9), enough);
  f.sent.clear();
  f.requests.progress(peer(1), progress(enough.id, 1, {2, 3, 4}), f.now);
  EXPECT_EQ(enough.finish, Finish::Stop);
  EXPECT_EQ(enough.tokens.size(), 2u);
  EXPECT_EQ(std::get<proto::CancelRequest>(f.sent.at(0).second).request, enough.id);
  f.requests.cancel(12345, f.now);  // nobody
}

TEST(RemoteRequests, AGapIsAskedForOnceAndThenAgain) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of({1}, 9), heard);
  f.now += std::chrono::seconds(2);
  f.sent.clear();
  for (uint64_t first = 3; first < 8; ++first)
    f.requests.progress(peer(1), progress(heard.id, first, {2}), f.now);
  ASSERT_EQ(f.sent.size(), 1u);
  EXPECT_EQ(f.last_request().tokens, std::vector<int64_t>{1});
  f.requests.tick(f.now);
  EXPECT_EQ(f.sent.size(), 1u);
  f.now += std::chrono::seconds(2);
  f.requests.tick(f.now);
  EXPECT_EQ(f.sent.size(), 2u);
  f.requests.progress(peer(1), progress(heard.id, 1, {3, 3}), f.now);
  EXPECT_EQ(heard.tokens, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(f.value("weft_serve_asked_again_total"), 2);
}

TEST(RemoteRequests, SilenceIsAskedAboutAndAStallEnds) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard silent, other;
  f.add(request_of({1}, 9), silent);
  f.add(request_of({1}, -1), other);
  f.sent.clear();
  f.now += std::chrono::seconds(40);
  f.requests.progress(peer(1), progress(other.id, 1, {2}), f.now);
  f.now += std::chrono::seconds(40);
  f.requests.tick(f.now);
  ASSERT_EQ(f.sent.size(), 1u);
  EXPECT_EQ(f.last_request().request, silent.id);
  // Repeating what is known is no progress.
  for (Duration waited = std::chrono::seconds(40); waited < RemoteOptions{}.stalled;
       waited += std::chrono::seconds(30)) {
    EXPECT_FALSE(silent.finish);
    f.now += std::chrono::seconds(30);
    f.requests.progress(peer(1), progress(other.id, 1, {2}), f.now);
    f.requests.tick(f.now);
  }
  EXPECT_TRUE(silent.failed_with(ErrorCode::Timeout));
  EXPECT_TRUE(other.failed_with(ErrorCode::Timeout));
}

TEST(RemoteRequests, WhatIsToldOtherwiseIsAskedAnewBehindWhatStands) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of({1}, 9), heard);
  f.requests.progress(peer(1), progress(heard.id, 1, {2, 3}), f.now);
  uint64_t number = heard.id;
  for (int i = 0; i < 3; ++i) {
    f.sent.clear();
    f.requests.progress(peer(1), progress(number, 2, {4, 5}), f.now);
    ASSERT_EQ(f.sent.size(), 2u);
    EXPECT_EQ(std::get<proto::CancelRequest>(f.sent[0].second).request, number);
    EXPECT_NE(f.last_request().request, number);
    EXPECT_EQ(f.last_request().tokens, (std::vector<int64_t>{1, 2, 3}));
    EXPECT_EQ(f.last_request().tokens_max, 7u);
    number = f.last_request().request;
  }
  EXPECT_EQ(heard.tokens, (std::vector<int64_t>{2, 3}));  // what was told first
  EXPECT_EQ(f.lines.size(), 3u);
  f.requests.progress(peer(1), progress(number, 3, {kVocabulary}), f.now);
  EXPECT_TRUE(heard.failed_with(ErrorCode::Corrupted));
  EXPECT_EQ(f.value("weft_serve_contradictions_total"), 4);
}

TEST(RemoteRequests, OthersAreNotListenedTo) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of({1}, 9), heard);
  f.requests.progress(peer(2), progress(heard.id, 1, {2}), f.now);
  f.requests.progress(peer(1), progress(heard.id + 1, 1, {2}), f.now);
  proto::ServeProgress old = progress(heard.id, 1, {2});
  old.plan_version = 9;
  f.requests.progress(peer(1), old, f.now);
  EXPECT_TRUE(heard.tokens.empty());
  EXPECT_EQ(f.value("weft_serve_strays_total"), 2);
}

TEST(RemoteRequests, GuessesOfTheEntryAreCounted) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of({1}, 9), heard);
  EXPECT_EQ(f.value("weft_serve_guesses_total"), 0);
  proto::ServeProgress told = progress(heard.id, 1, {2});
  told.guesses = 7;
  told.guesses_right = 4;
  f.requests.progress(peer(1), told, f.now);
  told.request += 1;  // of one that has ended
  f.requests.progress(peer(1), told, f.now);
  f.requests.progress(peer(2), told, f.now);  // not the entry
  EXPECT_EQ(f.value("weft_serve_guesses_total"), 14);
  EXPECT_EQ(f.value("weft_serve_guesses_right_total"), 8);
}

TEST(RemoteRequests, APassingFailureIsTriedAgainAndAnotherIsTold) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard, full, broken;
  const auto failure = [](uint64_t number, uint64_t first, ErrorCode code) {
    proto::ServeProgress told = progress(number, first, {}, proto::ServeEnd::Failed);
    told.error = Error{code, "so it is"};
    return told;
  };
  f.add(request_of({1}, 9), heard);
  uint64_t before = 0;
  for (int i = 0; i < 9; ++i) {
    // An entry tells an end again that it has told: each try is another request to it.
    ASSERT_NE(f.last_request().request, before);
    before = f.last_request().request;
    EXPECT_FALSE(heard.finish);
    f.sent.clear();
    f.requests.progress(peer(1), failure(before, 1, ErrorCode::DeviceLost), f.now);
    EXPECT_TRUE(f.sent.empty());
    f.now += std::chrono::seconds(2);
    f.requests.tick(f.now);
    EXPECT_EQ(f.sent.empty(), i == 8);
  }
  EXPECT_TRUE(heard.failed_with(ErrorCode::DeviceLost));
  f.add(request_of({1}, 9), full);
  f.requests.progress(peer(1), failure(full.id, 1, ErrorCode::ResourceExhausted), f.now);
  EXPECT_TRUE(full.failed_with(ErrorCode::ResourceExhausted));
  f.add(request_of({1}, 9), broken);
  f.requests.progress(peer(1), failure(broken.id, 1, ErrorCode::Internal), f.now);
  EXPECT_TRUE(broken.failed_with(ErrorCode::Internal));
}

proto::ServeProgress not_finite(uint64_t number, uint64_t first, proto::PlanVersion plan_version = 1) {
  proto::ServeProgress told = progress(number, first, {}, proto::ServeEnd::Failed);
  told.plan_version = plan_version;
  told.error = Error{ErrorCode::Corrupted, "peer 7 made NaN"};
  return told;
}

TEST(RemoteRequests, ATextOfWhichTheModelMakesNanFailsUnlessAPeerWasAtFault) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard own, peers;
  f.add(request_of({1, 2}, 9), own);
  f.requests.progress(peer(1), not_finite(own.id, 2), f.now);
  EXPECT_FALSE(own.finish) << "whoever is at fault may be named yet";
  f.now += std::chrono::seconds(1);
  f.requests.tick(f.now);
  EXPECT_FALSE(own.finish);
  EXPECT_EQ(f.sent.size(), 1u) << "it is not asked for again";
  f.now += std::chrono::seconds(1);
  f.requests.tick(f.now);
  ASSERT_TRUE(own.failed_with(ErrorCode::Corrupted));
  EXPECT_EQ(
      own.status.error().message,
      "'tiny' makes numbers of this text that are not finite (NaN or infinity), so it has no answer to it");

  f.add(request_of({1, 2}, 9), peers);
  f.requests.progress(peer(1), progress(peers.id, 2, {7}), f.now);
  f.requests.progress(peer(1), not_finite(peers.id, 3), f.now);
  uint64_t number = peers.id;
  for (proto::PlanVersion version = 2; version <= 4; ++version) {
    f.requests.place(served(std::nullopt), f.now);  // who made it was named
    f.now += std::chrono::seconds(5);
    f.requests.tick(f.now);
    f.requests.place(served(1, version), f.now);
    const proto::ServeRequest again = f.last_request();
    EXPECT_NE(again.request, number) << "the entry would tell the same end again";
    EXPECT_EQ(again.tokens, (std::vector<int64_t>{1, 2, 7}));
    EXPECT_FALSE(peers.finish);
    number = again.request;
    f.requests.progress(peer(1), not_finite(number, 3, version), f.now);
  }
  EXPECT_TRUE(peers.failed_with(ErrorCode::Corrupted)) << "so many peers make it";
}

// Two whose NaN together is taken for a peer's fault, and one beside them.
TEST(RemoteRequests, ThoseThatTakePeersDownAreSentOneAtATime) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard first, second, sound;
  f.add(request_of({1}, 9), first);
  f.add(request_of({2}, 9), second);
  f.add(request_of({3}, 9), sound);
  proto::PlanVersion version = 1;
  const auto sent_to_next_place = [&] {
    f.sent.clear();
    f.requests.place(served(1, ++version), f.now);
    std::vector<int64_t> prompts;
    for (const auto& [to, message] : f.sent)
      prompts.push_back(std::get<proto::ServeRequest>(message).tokens[0]);
    return prompts;
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sent_to_next_place(), (std::vector<int64_t>{1, 2, 3}));
  auto told = progress(sound.id, 1, {5});
  told.plan_version = version;
  f.requests.progress(peer(1), told, f.now);
  EXPECT_EQ(sent_to_next_place(), (std::vector<int64_t>{1, 3}));
  f.sent.clear();
  f.requests.progress(peer(1), not_finite(first.id, 1, version), f.now);
  ASSERT_EQ(f.sent.size(), 1u) << "now it is the other one's turn";
  EXPECT_EQ(f.last_request().tokens[0], 2);
  f.now += std::chrono::seconds(2);
  f.requests.tick(f.now);
  EXPECT_TRUE(first.failed_with(ErrorCode::Corrupted));
  for (int i = 0; i < 10; ++i) sent_to_next_place();
  EXPECT_TRUE(second.failed_with(ErrorCode::Unavailable));
  EXPECT_NE(second.status.error().message.find("were lost 8 times"), std::string::npos)
      << second.status.error().message;
}

TEST(RemoteRequests, TheRingsLoadIsShownWhileItServes) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard;
  f.add(request_of({1, 2}, 2), heard);
  EXPECT_EQ(f.value("weft_serve_cache_positions_max"), 4096);
  auto told = progress(heard.id, 2, {7});
  told.load = {.positions = 32, .under_way = 2, .passes = 3, .rows = 12};
  f.requests.progress(peer(1), told, f.now);
  EXPECT_EQ(f.value("weft_serve_cache_positions"), 32);
  EXPECT_EQ(f.value("weft_serve_passes_under_way"), 2);
  f.requests.progress(peer(2), told, f.now);
  EXPECT_EQ(f.value("weft_serve_passes_total"), 3) << "of no stranger";
  told.first = 3;
  f.requests.progress(peer(1), told, f.now);
  ASSERT_TRUE(heard.finish);
  EXPECT_EQ(f.value("weft_serve_passes_total"), 6);
  EXPECT_EQ(f.value("weft_serve_rows_total"), 24);
  EXPECT_EQ(f.value("weft_serve_cache_positions"), 0);
  EXPECT_EQ(f.value("weft_serve_passes_under_way"), 0);
}

TEST(RemoteRequests, AfterItIsClosedNothingIsTaken) {
  Fixture f;
  f.requests.place(served(1), f.now);
  Heard heard, late;
  f.add(request_of({1}, 9), heard);
  f.requests.close({ErrorCode::Unavailable, "over"});
  f.add(request_of({1}, 9), late);
  EXPECT_TRUE(heard.failed_with(ErrorCode::Unavailable));
  EXPECT_TRUE(late.failed_with(ErrorCode::Unavailable));
}

}  // namespace
}  // namespace weft::broker
