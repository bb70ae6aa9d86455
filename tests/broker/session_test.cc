// A peer's standing with its broker, by hand-moved time.
#include "peer/machine/session.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {

template <typename E>
std::optional<E> find(const SessionEffects& effects) {
  for (const SessionEffect& effect : effects)
    if (const auto* e = std::get_if<E>(&effect)) return *e;
  return std::nullopt;
}

const Instant kStart = Instant{} + std::chrono::hours(1);

Session joined(Instant now) {
  Session session({.hello = {}, .seed = 3});
  session.start(now);
  session.on_connected(now, {});
  session.on_message(now, proto::HelloAck{.software = "",
                                          .name = "",
                                          .heartbeat_interval = std::chrono::seconds(2),
                                          .lease = std::chrono::seconds(10)});
  return session;
}

TEST(Session, SaysHelloFirstAndHeartbeatsOnceAdmitted) {
  Session session({.hello = {}, .seed = 3});
  EXPECT_TRUE(find<ConnectToBroker>(session.start(kStart)));
  const auto tell = find<TellBroker>(session.on_connected(kStart, {}));
  ASSERT_TRUE(tell);
  EXPECT_TRUE(std::holds_alternative<proto::Hello>(tell->message));
  session = joined(kStart);
  EXPECT_FALSE(find<TellBroker>(session.on_tick(kStart + std::chrono::seconds(1), {}, {})));
  const auto beat = session.on_tick(kStart + std::chrono::seconds(2), {}, {});
  ASSERT_TRUE(find<TellBroker>(beat));
  EXPECT_TRUE(std::holds_alternative<proto::Heartbeat>(find<TellBroker>(beat)->message));
}

TEST(Session, BacksOffWithJitterAndComesBack) {
  Session session({.hello = {}, .seed = 3});
  session.start(kStart);
  Instant now = kStart;
  Duration last{};
  for (int i = 0; i < 10; ++i) {
    session.on_connect_failed(now, {ErrorCode::Unavailable, "refused"});
    ASSERT_TRUE(session.retry_at().has_value());
    last = *session.retry_at() - now;
    EXPECT_LE(last, std::chrono::seconds(15));
    EXPECT_GE(last, std::chrono::milliseconds(250));
    EXPECT_FALSE(
        find<ConnectToBroker>(session.on_tick(*session.retry_at() - std::chrono::milliseconds(1), {}, {})));
    now = *session.retry_at();
    EXPECT_TRUE(find<ConnectToBroker>(session.on_tick(now, {}, {})));
  }
  EXPECT_GE(last, std::chrono::milliseconds(7500)) << "the longest wait, at most half of it taken away";
}

TEST(Session, TheSameReasonIsSaidOnce) {
  Session session({.hello = {}, .seed = 3});
  session.start(kStart);
  EXPECT_TRUE(find<Say>(session.on_connect_failed(kStart, {ErrorCode::Unavailable, "refused"})));
  EXPECT_FALSE(find<Say>(session.on_connect_failed(kStart, {ErrorCode::Unavailable, "refused"})));
}

// Whoever looks sees that it goes on trying, and when it does so next.
TEST(Session, ABrokerThatStaysAwayIsSaidAgainEveryMinute) {
  Session session({.hello = {}, .seed = 3});
  session.start(kStart);
  Instant now = kStart;
  std::vector<Instant> said;
  std::string last;
  while (now < kStart + std::chrono::minutes(5)) {
    const auto line = find<Say>(session.on_connect_failed(now, {ErrorCode::Unavailable, "refused"}));
    if (line) said.push_back(now), last = line->line;
    now = session.retry_at().value_or(now + std::chrono::hours(1));
    session.on_tick(now, {}, {});
  }
  EXPECT_GE(said.size(), 4u);
  EXPECT_LE(said.size(), 5u);
  for (size_t i = 1; i < said.size(); ++i) EXPECT_GE(said[i] - said[i - 1], std::chrono::minutes(1));
  EXPECT_NE(last.find("refused"), std::string::npos) << last;
  EXPECT_NE(last.find("again_in="), std::string::npos) << last;
  EXPECT_EQ(last.find("tries=1 "), std::string::npos) << last;
}

TEST(Session, SaysWhyItLeavesAndThatItComesBack) {
  Session session = joined(kStart);
  session.set_goodbye({.reason = "on battery", .returns = true});
  const auto tell = find<TellBroker>(session.drain(/*holds_stage=*/true));
  ASSERT_TRUE(tell);
  const auto& drain = std::get<proto::Drain>(tell->message);
  EXPECT_EQ(drain.reason, "on battery");
  EXPECT_TRUE(drain.returns);
}

TEST(Session, ARefusalForGoodEndsIt) {
  Session session({.hello = {}, .seed = 3});
  session.start(kStart);
  session.on_connected(kStart, {});
  const auto effects =
      session.on_message(kStart, proto::Refusal{.code = ErrorCode::PermissionDenied, .message = "used"});
  const auto leave = find<Leave>(effects);
  ASSERT_TRUE(leave);
  ASSERT_FALSE(leave->why.has_value());
  EXPECT_EQ(leave->why.error().code, ErrorCode::PermissionDenied);
}

TEST(Session, SaysWhichStageItHolds) {
  Session session({.hello = {}, .seed = 3});
  session.start(kStart);
  const auto tell = find<TellBroker>(session.on_connected(kStart, {{4, 2, {1}}}));
  ASSERT_TRUE(tell);
  const auto& hello = std::get<proto::Hello>(tell->message);
  ASSERT_EQ(hello.holding.size(), 1u);
  EXPECT_EQ(hello.holding[0].plan_version, 2u);
}

TEST(Session, ABrokerThatGoesAwayIsTriedAgainSoonAndOften) {
  Session session = joined(kStart);
  Instant now = kStart;
  session.on_lost(now, {ErrorCode::Unavailable, "reset"});
  EXPECT_LE(*session.retry_at() - now, std::chrono::milliseconds(250));
  int tries = 0;
  for (; now < kStart + std::chrono::seconds(5); ++tries) {
    now = *session.retry_at();
    EXPECT_TRUE(find<ConnectToBroker>(session.on_tick(now, {}, {})));
    session.on_connect_failed(now, {ErrorCode::Unavailable, "refused"});
    EXPECT_LE(*session.retry_at() - now, std::chrono::milliseconds(500));
  }
  EXPECT_GE(tries, 10);
}

TEST(Session, WhatAnOldConnectionBringsDoesNothing) {
  Session session = joined(kStart);
  session.on_lost(kStart, {ErrorCode::Unavailable, "reset"});
  EXPECT_TRUE(session.on_message(kStart, proto::HelloAck{}).empty());
  EXPECT_TRUE(session.on_lost(kStart, {ErrorCode::Unavailable, "again"}).empty());
  EXPECT_EQ(session.state(), Session::State::Offline);
}

TEST(Session, NothingIsDueBeforeItsNextDeadline) {
  Session session = joined(kStart);
  for (int i = 0; i < 20; ++i) {
    const Instant due = session.next_deadline().value();
    EXPECT_TRUE(session.on_tick(due - Duration(1), {}, {}).empty());
    const auto effects = session.on_tick(due, {}, {});
    EXPECT_FALSE(effects.empty());
    if (find<ConnectToBroker>(effects)) session.on_connect_failed(due, {ErrorCode::Unavailable, "refused"});
  }
}

TEST(Session, ASilentBrokerIsLeftAfterTheLease) {
  Session session = joined(kStart);
  EXPECT_FALSE(find<DropBroker>(session.on_tick(kStart + std::chrono::seconds(10), {}, {})));
  EXPECT_TRUE(find<DropBroker>(session.on_tick(kStart + std::chrono::seconds(11), {}, {})));
  EXPECT_TRUE(session.retry_at().has_value());
}

TEST(Session, DrainsOnceItHoldsNothing) {
  Session session = joined(kStart);
  const auto drain = session.drain(/*holds_stage=*/true);
  EXPECT_TRUE(find<TellBroker>(drain));
  EXPECT_FALSE(find<Leave>(drain));
  EXPECT_FALSE(find<TellBroker>(session.drain(true))) << "said once";
  EXPECT_TRUE(find<Leave>(session.drain(false)));
}

TEST(Session, WithoutAStageItLeavesAtOnce) {
  Session session = joined(kStart);
  const auto effects = session.drain(false);
  EXPECT_TRUE(find<TellBroker>(effects));
  EXPECT_TRUE(find<Leave>(effects));
}

}  // namespace
}  // namespace weft::peer
