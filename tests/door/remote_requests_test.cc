#include "broker/service/remote_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "tests/door/fake_entry.h"

namespace weft::broker {
namespace {

using serve::Finish;
using test::FakeEntry;

constexpr int64_t kContext = 96, kVocabulary = 24;
constexpr uint64_t kFirst = 1000;

PeerId peer(int number) {
  PeerId id;
  id.digest.bytes[0] = static_cast<uint8_t>(number);
  return id;
}

ServedJob served(std::optional<int> entry, proto::PlanVersion plan_version = 1) {
  ServedJob job{.job = 7, .model = {.name = "tiny"}};
  job.model.context = kContext;
  job.model.vocabulary = kVocabulary;
  job.model.positions_max = 4096;
  job.model.sequences_max = 16;
  if (entry)
    job.place = ServedPlace{.job = 7, .plan_version = plan_version, .entry = peer(*entry)};
  else
    job.unavailable = "stage 1 of 2 has no peer";
  return job;
}

// What one caller hears.
struct Heard {
  std::vector<int64_t> tokens;
  std::optional<Finish> finish;
  Status status;
  uint64_t id = 0;
  size_t leaves_after = SIZE_MAX;  // tokens

  serve::Listener listener() {
    return {.on_token =
                [this](const serve::Generated& generated) {
                  EXPECT_FALSE(finish) << "a token behind the end";
                  tokens.push_back(generated.draw.token);
                  return tokens.size() < leaves_after;
                },
            .on_end =
                [this](Finish how, const Status& why) {
                  EXPECT_FALSE(finish) << "two ends";
                  finish = how;
                  status = why;
                }};
  }
  bool failed_with(ErrorCode code) const {
    return finish == Finish::Failed && !status && status.error().code == code;
  }
};

serve::Request request_of(std::vector<int64_t> prompt, int64_t tokens_max, uint64_t seed = 1) {
  return {.prompt = std::move(prompt), .tokens_max = tokens_max, .sampling = {.seed = seed}};
}

// What an engine that nothing disturbs makes of it.
std::pair<std::vector<int64_t>, Finish> undisturbed(const serve::Request& request) {
  test::HashingDecoder decoder(kContext, kVocabulary);
  serve::Engine engine(decoder, {});
  Heard heard;
  EXPECT_TRUE(engine.add(request, heard.listener()));
  while (!engine.tick().idle) continue;
  return {heard.tokens, heard.finish.value()};
}

// The requests, and messages that they sent.
struct Fixture {
  explicit Fixture(RemoteOptions options = {})
      : requests(
            served(1), kFirst,
            [this](const PeerId& to, proto::Message message) { sent.emplace_back(to, std::move(message)); },
            [this](const std::string& line) { lines.push_back(line); }, options) {}

  void add(const serve::Request& request, Heard& heard) {
    requests.add(
        request, heard.listener(),
        [&heard](uint64_t id) {
          heard.id = id;
          return true;
        },
        now);
  }
  // All that was sent goes to the entry, which works until there is nothing to do; all that it says comes
  // back.
  void run(FakeEntry& entry, const PeerId& from = peer(1)) {
    do {
      for (const auto& [to, message] : std::exchange(sent, {})) entry.take(message);
      for (const auto& progress : entry.told()) requests.progress(from, progress, now);
    } while (entry.work() || !sent.empty());
  }
  // Of the requests that were sent and not handed on.
  const proto::ServeRequest& last_request() { return std::get<proto::ServeRequest>(sent.back().second); }
  double value(const char* name) const { return requests.metrics().value(name, {{"model", "tiny"}}); }

  Instant now{std::chrono::seconds(100)};
  std::vector<std::pair<PeerId, proto::Message>> sent;
  std::vector<std::string> lines;
  RemoteRequests requests;
};

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
  f.requests.progress(peer(1), failure(broken.id, 1, ErrorCode::Corrupted), f.now);
  EXPECT_TRUE(broken.failed_with(ErrorCode::Corrupted));
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

// ---- entries that are replaced, messages that are lost, come twice or late, and lies

class Storm {
 public:
  Storm(uint64_t seed, bool lies) : rng_(seed, 3), lies_(lies) {
    f_.requests.place(served(1), f_.now);
    callers_ = std::vector<Caller>(1 + rng_.below(8));
  }

  void run() {
    for (int step = 0; step < 4000 && !all_ended(); ++step) one_step(step < 1500);
    ASSERT_TRUE(all_ended()) << "a request has not ended";
    for (Caller& caller : callers_) judge(caller);
  }
  size_t replaced() const { return version_ - 1; }
  size_t whole() const { return whole_; }
  double contradictions() const { return f_.value("weft_serve_contradictions_total"); }

 private:
  struct Caller {
    Heard heard;
    serve::Request request;
    bool is_added = false;
  };

  bool chance(uint64_t percent) { return rng_.below(100) < percent; }
  bool all_ended() const {
    return std::ranges::all_of(callers_,
                               [](const Caller& caller) { return caller.heard.finish.has_value(); });
  }

  // After a while nothing is disturbed any more: then all have to end.
  void one_step(bool is_disturbed) {
    f_.now += std::chrono::milliseconds(rng_.below(2000));
    if (chance(20)) add_one();
    if (is_disturbed && chance(2)) replace();
    if (is_disturbed && placed_ && chance(1)) withdraw();
    if (is_disturbed && chance(1)) entry_->give_up();
    if (!is_disturbed && !placed_) replace();
    if (placed_ && entry_->work()) keep(entry_->told(), is_disturbed);
    for (const auto& [to, message] : std::exchange(f_.sent, {}))
      if (placed_ && to == peer(entry_peer_) && !(is_disturbed && chance(5))) entry_->take(message);
    keep(entry_->told(), is_disturbed);
    deliver(is_disturbed);
    f_.requests.tick(f_.now);
  }

  void add_one() {
    for (Caller& caller : callers_) {
      if (caller.is_added) continue;
      caller.is_added = true;
      std::vector<int64_t> prompt(1 + rng_.below(20));
      for (int64_t& token : prompt) token = static_cast<int64_t>(rng_.below(kVocabulary));
      caller.request =
          request_of(std::move(prompt), static_cast<int64_t>(1 + rng_.below(60)), rng_.next_u64());
      if (chance(20)) caller.request.tokens_max = -1;
      if (chance(30)) caller.request.ends = {static_cast<int64_t>(rng_.below(kVocabulary))};
      if (chance(30)) caller.request.sampling.alternatives = 2;
      if (chance(20)) caller.request.sampling.temperature = 0;
      return f_.add(caller.request, caller.heard);
    }
  }

  void withdraw() {
    placed_ = false;
    f_.requests.place(served(std::nullopt), f_.now);
  }
  void replace() {
    placed_ = true;
    ++version_;
    entry_peer_ = static_cast<int>(1 + rng_.below(4));
    entry_ = std::make_unique<FakeEntry>(kContext, kVocabulary);
    f_.requests.place(served(entry_peer_, version_), f_.now);
  }

  void keep(std::vector<proto::ServeProgress> told, bool is_disturbed) {
    for (proto::ServeProgress& one : told) {
      if (is_disturbed && chance(10)) continue;  // lost
      const size_t copies = is_disturbed && chance(10) ? 2 : 1;
      for (size_t i = 0; i < copies; ++i) on_the_way_.emplace_back(peer(entry_peer_), one);
    }
  }
  void deliver(bool is_disturbed) {
    while (!on_the_way_.empty() && !chance(30)) {
      const size_t at = is_disturbed && chance(30) ? rng_.below(on_the_way_.size()) : 0;
      auto [from, told] = on_the_way_[at];
      on_the_way_.erase(on_the_way_.begin() + static_cast<std::ptrdiff_t>(at));
      if (lies_ && is_disturbed && chance(5)) lie(told);
      f_.requests.progress(from, told, f_.now);
    }
  }

  // What a broker can see to be none: another token where one was told, one that the model does not have,
  // more beside it than was asked for, an end before what was told.
  void lie(proto::ServeProgress& told) {
    const Caller* of = nullptr;
    for (const Caller& caller : callers_)
      if (caller.heard.id == told.request) of = &caller;
    const uint64_t kind = rng_.below(4);
    if (kind == 0 && !told.tokens.empty()) told.tokens[0].token = kVocabulary + 3;
    if (kind == 1 && !told.tokens.empty()) told.tokens[0].alternatives.resize(9, {1, -1.0});
    if (of == nullptr || of->heard.tokens.empty()) return;
    const size_t prompt = of->request.prompt.size();
    if (kind == 2) {
      told.first = prompt;
      told.tokens = {{.token = (of->heard.tokens[0] + 1) % kVocabulary}};
    }
    if (kind == 3) {
      told.first = prompt;
      told.tokens.clear();
      told.end = proto::ServeEnd::Stop;
    }
  }

  void judge(Caller& caller) {
    const auto [tokens, finish] = undisturbed(caller.request);
    const Heard& heard = caller.heard;
    if (heard.finish == Finish::Failed) {
      EXPECT_TRUE(lies_ || heard.failed_with(ErrorCode::Unavailable)) << heard.status.error().message;
      EXPECT_TRUE(heard.failed_with(ErrorCode::Unavailable) || heard.failed_with(ErrorCode::Corrupted));
      ASSERT_LE(heard.tokens.size(), tokens.size());  // what was told is right all the same
      EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.end(), tokens.begin()));
    } else {
      EXPECT_EQ(heard.tokens, tokens);
      EXPECT_EQ(heard.finish, finish);
      ++whole_;
    }
  }

  Rng rng_;
  const bool lies_;
  Fixture f_;
  std::vector<Caller> callers_;
  size_t whole_ = 0;
  bool placed_ = true;
  proto::PlanVersion version_ = 1;
  int entry_peer_ = 1;
  std::unique_ptr<FakeEntry> entry_ = std::make_unique<FakeEntry>(kContext, kVocabulary);
  std::vector<std::pair<PeerId, proto::ServeProgress>> on_the_way_;
};

void storms(bool lies) {
  size_t replaced = 0, whole = 0;
  double contradictions = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Storm storm(seed, lies);
    storm.run();
    replaced += storm.replaced();
    whole += storm.whole();
    contradictions += storm.contradictions();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(replaced, 200u);
  EXPECT_GT(whole, 400u);  // of about 900
  EXPECT_EQ(contradictions > 0, lies);
}

TEST(RemoteRequestsStorm, WhateverIsReplacedLostOrRepeatedTheTextIsTheSame) { storms(false); }
TEST(RemoteRequestsStorm, ALieThatCanBeSeenChangesNoText) { storms(true); }

}  // namespace
}  // namespace weft::broker
