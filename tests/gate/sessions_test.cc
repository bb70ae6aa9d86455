// The sessions of a gate over connections that are the test.
#include "broker/service/sessions.h"

#include <gtest/gtest.h>

#include "proto/codec/codec.h"
#include "tests/gate/fake_connections.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using std::chrono::seconds;
using test::key;

using test_desks::kThen;
constexpr ConnectionId kFirst = 50;

class FakeConnection final : public net::Connection {
 public:
  explicit FakeConnection(const PeerId& whose) : key_(whose) {}
  const PeerId& remote() const override { return key_; }
  std::string remote_address() const override { return "192.0.2.1:1"; }
  void set_limits(const net::ConnectionLimits& limits) override { this->limits = limits; }
  void start(Handlers with) override { handlers = std::move(with); }
  void send(net::OutFrame frame) override { sent.push_back(*proto::decode(frame.head)); }
  void pause_reading(bool) override {}
  void close(Duration deadline) override { closed_within = deadline; }
  net::ConnectionStats stats() const override { return now; }
  size_t unsent() const override { return 0; }

  net::ConnectionLimits limits;
  Handlers handlers;
  net::ConnectionStats now;
  std::vector<proto::Message> sent;
  std::optional<Duration> closed_within;

 private:
  PeerId key_;
};

class SessionsTest : public ::testing::Test, protected Sessions::Outside {
 protected:
  void on_begun(ConnectionId which) override { begun_.push_back(which); }
  void on_frame(const SessionPtr& from, net::InFrame) override { frames_.push_back(from->number); }
  void on_frame_begun(const SessionPtr&, size_t) override {}
  void on_drained(const SessionPtr&) override {}
  void on_ended(const SessionPtr& whose, const std::optional<std::string>& why) override {
    EXPECT_FALSE(sessions_.find(whose->number)) << "it has ended when that is said";
    EXPECT_TRUE(ended_.emplace(whose->number, why.value_or("the core")).second) << "once";
  }
  std::shared_ptr<FakeConnection> begin(uint8_t whose, std::optional<proto::Role> role = proto::Role::Peer) {
    auto connection = std::make_shared<FakeConnection>(key(whose));
    sessions_.begin(connection, kThen);
    sessions_.find(begun_.back())->role = role;
    return connection;
  }
  std::vector<ConnectionId> heard(std::set<ConnectionId> held_up = {}) {
    std::vector<ConnectionId> which;
    for (const Heard& one : sessions_.heard(kThen, [&](ConnectionId of) { return held_up.contains(of); }))
      which.push_back(one.connection);
    return which;
  }
  using Numbers = std::vector<ConnectionId>;

  std::vector<std::string> log_;
  Sessions sessions_{{.first = kFirst,
                      .greeting_deadline = seconds(10),
                      .unread_deadline = seconds(30),
                      .log = [this](const std::string& line) { log_.push_back(line); }},
                     *this};
  std::vector<ConnectionId> begun_, frames_;
  std::map<ConnectionId, std::string> ended_;
};

TEST_F(SessionsTest, AStrangerMaySayLittleAndIsGoneWhenItDoesNotGreet) {
  const auto stranger = begin(1, std::nullopt), admitted = begin(2);
  EXPECT_EQ(begun_, (Numbers{kFirst, kFirst + 1}));
  EXPECT_EQ(stranger->limits.frame_size_max, proto::kHelloSizeMax);
  sessions_.close_who_do_not_greet(kThen + seconds(10));
  EXPECT_TRUE(ended_.empty());
  sessions_.close_who_do_not_greet(kThen + seconds(11));
  EXPECT_EQ(ended_.size(), 1u);
  EXPECT_TRUE(ended_.contains(kFirst));
  EXPECT_EQ(stranger->closed_within, Duration{}) << "at once";
  EXPECT_FALSE(admitted->closed_within);
}

TEST_F(SessionsTest, WhoIsRefusedIsToldAndHasTimeToReadIt) {
  const auto connection = begin(1);
  sessions_.refuse(kFirst, {ErrorCode::Timeout, "too slow"});
  ASSERT_EQ(connection->sent.size(), 1u);
  EXPECT_EQ(std::get<proto::Refusal>(connection->sent[0]).message, "too slow");
  EXPECT_GT(connection->closed_within.value_or(Duration{}), Duration{});
  EXPECT_EQ(ended_.at(kFirst), "too slow");
  EXPECT_EQ(log_.size(), 1u);
  sessions_.refuse(kFirst, {ErrorCode::Timeout, "again"});
  sessions_.send(kFirst, proto::EventsEnd{1});
  EXPECT_EQ(connection->sent.size(), 1u) << "it has gone";
  EXPECT_EQ(sessions_.bytes_queued(kFirst), 0u);
}

TEST_F(SessionsTest, OfOneThatHasEndedNothingComesAnyMore) {
  const auto first = begin(1), second = begin(2);
  first->handlers.on_frame({});
  second->handlers.on_closed(Error{ErrorCode::Unavailable, "reset"});
  second->handlers.on_frame({});
  sessions_.let_go(kFirst);
  first->handlers.on_frame({});
  first->handlers.on_closed(Error{});
  EXPECT_EQ(frames_, Numbers{kFirst});
  EXPECT_EQ(ended_, (std::map<ConnectionId, std::string>{{kFirst, "the core"}, {kFirst + 1, "reset"}}));
}

TEST_F(SessionsTest, AKeyIsSentAwayWithAllItsConnections) {
  const auto first = begin(1), other = begin(2), second = begin(1);
  sessions_.close_all_of(key(1), "sent away");
  EXPECT_EQ(ended_, (std::map<ConnectionId, std::string>{{kFirst, "sent away"}, {kFirst + 2, "sent away"}}));
  EXPECT_FALSE(other->closed_within);
}

TEST_F(SessionsTest, WhoTakesNothingIsClosedUnlessTheGateWasHeldUp) {
  const auto stuck = begin(1), slow = begin(2), idle = begin(3);
  stuck->now.bytes_queued = slow->now.bytes_queued = 1000;
  sessions_.close_who_do_not_read(kThen, false);
  slow->now.bytes_sent = 1;
  sessions_.close_who_do_not_read(kThen + seconds(30), false);
  EXPECT_TRUE(ended_.empty());
  sessions_.close_who_do_not_read(kThen + seconds(40), true);
  sessions_.close_who_do_not_read(kThen + seconds(60), false);
  EXPECT_TRUE(ended_.empty());
  slow->now.bytes_sent = 2;
  sessions_.close_who_do_not_read(kThen + seconds(71), false);
  EXPECT_EQ(ended_.size(), 1u);
  EXPECT_TRUE(ended_.contains(kFirst));
}

TEST_F(SessionsTest, APeerIsHeardWhenSomethingCameOrItIsHeldUp) {
  const auto first = begin(1), second = begin(2), user = begin(3, proto::Role::Submitter);
  EXPECT_EQ(heard(), Numbers{});
  first->now.bytes_received = user->now.bytes_received = 10;
  EXPECT_EQ(heard(), Numbers{kFirst});
  EXPECT_EQ(heard(), Numbers{}) << "nothing since";
  EXPECT_EQ(heard({kFirst + 1}), Numbers{kFirst + 1});
  sessions_.find(kFirst)->work = proto::StageWork{.run = 4};
  sessions_.find(kFirst)->saving = proto::StageSaving{.run = 5};
  first->now.bytes_received = 11;
  const auto once = sessions_.heard(kThen, [](ConnectionId) { return false; });
  ASSERT_EQ(once.size(), 1u);
  EXPECT_EQ(once[0].work ? once[0].work->run : 0, 4u);
  EXPECT_EQ(once[0].saving ? once[0].saving->run : 0, 5u);
  EXPECT_FALSE(sessions_.find(kFirst)->work || sessions_.find(kFirst)->saving) << "told once";
}

}  // namespace
}  // namespace weft::broker
