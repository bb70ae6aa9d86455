// Entries that are replaced, messages that are lost, come twice or late, and lies.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "broker/service/remote_requests.h"
#include "tests/door/remote_heard.h"

namespace weft::broker {
namespace {

using namespace test_door;
using serve::Finish;
using test::FakeEntry;

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
