// A gate between real connections and a core that is the test.
#include "broker/service/gate.h"

#include <gtest/gtest.h>

#include <deque>

#include "net/connection.h"
#include "proto/codec/codec.h"
#include "security/identity.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using proto::Message;
using proto::Role;

constexpr Duration kPatience = std::chrono::seconds(60);

net::OutFrame frame_of(const Message& message) {
  return {
      .kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}};
}

class GateTest : public ::testing::Test {
 protected:
  GateTest() : blobs_(*storage::BlobStore::open(scratch_.folder() / "blobs")) {
    options_.listen = {"127.0.0.1", 0};
    options_.identity = identity_.get();
    options_.number = 3;
    options_.log = [](const std::string&) {};
  }
  ~GateTest() override {
    connection_.reset();
    gate_.reset();
  }

  // A gate, and a connection to it that the core has admitted.
  void start(Role role) {
    auto gate = Gate::start(options_, bus_, *blobs_, leases_, feeds_);
    ASSERT_TRUE(gate) << gate.error().message;
    gate_ = std::move(*gate);
    const auto attempt = net::connect(
        loop_, gate_->endpoint(), {.identity = client_.get(), .expected = identity_->id()},
        [this](Result<net::ConnectionPtr> connected) {
          ASSERT_TRUE(connected) << connected.error().message;
          connection_ = std::move(*connected);
          connection_->set_limits({.frame_size_max = 64 << 20});
          connection_->start({.on_frame = [this](net::InFrame frame) { frames_.push_back(std::move(frame)); },
                              .on_closed = [this](const Error&) { is_closed_ = true; }});
        });
    ASSERT_TRUE(run_until([this] { return connection_ != nullptr; }));
    connection_->send(frame_of(proto::Hello{.role = role, .name = "x"}));
    const auto hello = from_gate<Introduced>();
    ASSERT_TRUE(hello);
    EXPECT_EQ(hello->hello.name, "x");
    EXPECT_EQ(hello->who, client_->id());
    EXPECT_EQ(gate_of(hello->connection), options_.number);
    number_ = hello->connection;
    to_gate(Admit{number_, role});
    to_gate(Taken{number_, UINT64_MAX});
    to_client(proto::HelloAck{});
    ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
    frames_.clear();
  }
  struct Guest {
    std::unique_ptr<security::Identity> identity = *security::Identity::generate();
    std::unique_ptr<net::Attempt> attempt;
    net::ConnectionPtr connection;
    ConnectionId number = 0;
    size_t frames = 0;
    bool is_closed = false;
  };
  // Another connection that the core has admitted.
  std::unique_ptr<Guest> enter(Role role, const std::optional<net::Shape>& shape = {}) {
    auto guest = std::make_unique<Guest>();
    guest->attempt = net::connect(
        loop_, gate_->endpoint(),
        {.identity = guest->identity.get(), .expected = identity_->id(), .shape = shape},
        [here = guest.get()](Result<net::ConnectionPtr> connected) {
          ASSERT_TRUE(connected) << connected.error().message;
          here->connection = std::move(*connected);
          here->connection->set_limits({.frame_size_max = 64 << 20});
          here->connection->start({.on_frame = [here](const net::InFrame&) { ++here->frames; },
                                   .on_closed = [here](const Error&) { here->is_closed = true; }});
        });
    EXPECT_TRUE(run_until([&] { return guest->connection != nullptr; }));
    guest->connection->send(frame_of(proto::Hello{.role = role}));
    guest->number = value_or_fail(from_gate<Introduced>()).connection;
    to_gate(Admit{guest->number, role});
    to_gate(Taken{guest->number, UINT64_MAX});
    to_gate(Send{guest->number, std::make_shared<const Message>(proto::HelloAck{})});
    EXPECT_TRUE(run_until([&] { return guest->frames > 0; }));
    return guest;
  }
  template <typename T>
  static T value_or_fail(std::optional<T> value) {
    EXPECT_TRUE(value.has_value());
    return value.value_or(T{});
  }
  bool run_until(const std::function<bool()>& done) { return loop_.run_until(kPatience, done); }
  void to_gate(ToGate message) {
    core_.send(options_.number, std::make_shared<const ToGate>(std::move(message)));
  }
  void to_client(Message message) {
    to_gate(Send{number_, std::make_shared<const Message>(std::move(message))});
  }
  // The next T that the gate says; what else it says before that is passed over, but for a question about
  // this job, which must not come.
  template <typename T>
  std::optional<T> from_gate(std::optional<proto::JobNumber> and_no = {}) {
    std::optional<T> found;
    run_until([&] {
      while (const auto message = core_.receive(Duration{})) {
        EXPECT_EQ(message->gate, options_.number);
        if (const T* wanted = std::get_if<T>(&message->what)) {
          found = *wanted;
          return true;
        }
        const auto* received = std::get_if<Received>(&message->what);
        const auto* get = received ? std::get_if<proto::GetResult>(received->message.get()) : nullptr;
        EXPECT_FALSE(get != nullptr && and_no == get->job);
      }
      tick_ = loop_.after(std::chrono::milliseconds(5), [] {});  // the bus wakes no loop of ours
      return false;
    });
    return found;
  }
  template <typename M>
  std::optional<M> message_from_gate() {
    const auto received = from_gate<Received>();
    const M* message = received ? std::get_if<M>(received->message.get()) : nullptr;
    EXPECT_NE(message, nullptr) << (received ? proto::name_of(*received->message) : "nothing");
    return message == nullptr ? std::nullopt : std::optional(*message);
  }
  template <typename M>
  std::optional<M> next_for_client() {
    if (!run_until([this] { return !frames_.empty() || is_closed_; }) || frames_.empty()) return std::nullopt;
    const auto message = proto::decode(frames_.front().payload.span());
    frames_.pop_front();
    if (!message || !std::holds_alternative<M>(*message)) return std::nullopt;
    return std::get<M>(*message);
  }

  test::Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_;
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate(),
                                      client_ = *security::Identity::generate();
  BlobLeases leases_;
  JobFeeds feeds_;
  Bus bus_;
  CoreSocket core_{bus_};
  GateOptions options_;
  std::unique_ptr<Gate> gate_;
  net::Loop loop_;
  std::unique_ptr<net::Loop::Timer> tick_;
  net::ConnectionPtr connection_;
  ConnectionId number_ = 0;
  std::deque<net::InFrame> frames_;
  bool is_closed_ = false;
};

TEST_F(GateTest, AnswersHeartbeatsWhateverTheCoreDoes) {
  start(Role::Peer);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence)
    connection_->send(frame_of(
        proto::Heartbeat{sequence,
                         {},
                         proto::StageWork{.run = 1, .plan_version = 1, .segments_done = 10 * sequence},
                         proto::StageSaving{.run = 1, .plan_version = 1, .step = 9, .saved = {7}}}));
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    const auto ack = next_for_client<proto::HeartbeatAck>();
    ASSERT_TRUE(ack);
    EXPECT_EQ(ack->sequence, sequence);
  }
  // The core hears of the newest work, and that something came.
  for (;;) {
    const auto hearing = from_gate<Hearing>();
    ASSERT_TRUE(hearing);
    if (hearing->peers.empty() || !hearing->peers[0].work) continue;
    EXPECT_EQ(hearing->peers[0].connection, number_);
    EXPECT_EQ(hearing->peers[0].at, hearing->until);
    EXPECT_EQ(hearing->peers[0].work->segments_done, 30u);
    ASSERT_TRUE(hearing->peers[0].saving);
    EXPECT_EQ(hearing->peers[0].saving->saved.value, 7);
    break;
  }
}

// Who has more with the core than may lie there is not read from, and is there all the same.
TEST_F(GateTest, WhoWaitsForTheCoreIsHeard) {
  start(Role::Peer);
  for (int i = 0; i < 100; ++i) connection_->send(frame_of(proto::PeerLog{std::string(60'000, 'x')}));
  size_t received = 0;
  for (int heard = 0; heard < 4;) {  // long after what the socket holds was read
    run_until([&] {
      while (const auto message = core_.receive(Duration{})) {
        received += std::holds_alternative<Received>(message->what);
        const auto* hearing = std::get_if<Hearing>(&message->what);
        if (hearing == nullptr || received == 0) continue;
        EXPECT_EQ(hearing->peers.size(), 1u);
        ++heard;
        return true;
      }
      tick_ = loop_.after(std::chrono::milliseconds(5), [] {});
      return false;
    });
  }
  EXPECT_LT(received, 10u) << "256 KiB may lie with the core";
  EXPECT_GT(received, 0u);
  while (received < 100) {
    to_gate(Taken{number_, UINT64_MAX});  // it goes on below half of what may lie there
    ASSERT_TRUE(from_gate<Received>()) << received;
    ++received;
  }
}

TEST_F(GateTest, ReportsOfWhatNobodyAskedForStayHere) {
  start(Role::Peer);
  const auto report = [&](proto::JobNumber run, proto::PlanVersion version, uint64_t step) {
    connection_->send(frame_of(proto::StepReport{.run = run, .plan_version = version, .step = step}));
  };
  report(1, 1, 10);
  connection_->send(frame_of(proto::PeerLog{"after"}));
  EXPECT_TRUE(message_from_gate<proto::PeerLog>());
  to_client(proto::AssignStage{.run = 1, .plan_version = 2});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  report(1, 1, 11);
  report(2, 2, 12);
  connection_->send(frame_of(proto::StageFailed{.run = 1, .plan_version = 1}));
  report(1, 2, 13);
  const auto step = message_from_gate<proto::StepReport>();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->step, 13u);
  frames_.clear();
  to_client(proto::ReleaseStage{.run = 1, .plan_version = 2});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  report(1, 2, 14);
  connection_->send(frame_of(proto::PeerLog{"after"}));
  EXPECT_TRUE(message_from_gate<proto::PeerLog>());
}

// One trickles, and keeps the room; of those who wait, who serves a run is next, though it came last.
TEST_F(GateTest, LargeMessagesComeInTurnAndWhoServesGoesFirst) {
  options_.arrivals = {.max = 1 << 20, .deadline = std::chrono::milliseconds(100)};
  start(Role::Peer);
  net::Shape slow;
  slow.send.bytes_per_second = 20'000;
  const auto trickles = enter(Role::Peer, slow), user = enter(Role::Submitter);
  trickles->connection->send(
      {.kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = std::vector<std::byte>(900'000)});
  for (int heard = 0; heard < 3;) {  // some of it has come
    const auto hearing = from_gate<Hearing>();
    ASSERT_TRUE(hearing);
    for (const auto& peer : hearing->peers) heard += peer.connection == trickles->number;
  }
  user->connection->send(frame_of(proto::SubmitJob{.name = "user", .job = std::string(900'000, 'x')}));
  connection_->send(frame_of(proto::Heartbeat{1, {}, {}}));
  ASSERT_TRUE(next_for_client<proto::HeartbeatAck>());
  to_client(proto::AssignStage{.run = 1, .plan_version = 1});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  frames_.clear();
  proto::StepReport report{.run = 1, .plan_version = 1, .step = 5};
  report.squares.assign(100'000, 1.0);
  connection_->send(frame_of(report));
  const auto first = from_gate<Received>();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->connection, number_) << "who serves a run";
  EXPECT_TRUE(run_until([&] { return trickles->is_closed; }));
  to_gate(Taken{number_, UINT64_MAX});
  const auto second = from_gate<Received>();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->connection, user->number);
  EXPECT_FALSE(user->is_closed);
}

TEST_F(GateTest, APeerThatHasServedNothingSaysLittle) {
  start(Role::Peer);
  const auto idle = enter(Role::Peer);
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 5};
  report.tensors.assign(30'000, {dag::of_initializer("w"), {dag::DType::F32, {}}, {}});
  ASSERT_GT(proto::encode(report).size(), 1u << 20);
  idle->connection->send(frame_of(report));
  ASSERT_TRUE(run_until([&] { return idle->is_closed; }));
  to_client(proto::AssignStage{.run = 1, .plan_version = 1});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  connection_->send(frame_of(report));
  EXPECT_TRUE(message_from_gate<proto::CheckpointReport>());
}

TEST_F(GateTest, WhatIsNoMessageEndsItsConnection) {
  start(Role::Peer);
  connection_->send({.kind = static_cast<uint8_t>(proto::FrameKind::Message),
                     .head = std::vector<std::byte>(10, std::byte{0xff}),
                     .body = {}});
  const auto gone = from_gate<Disconnected>();
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->connection, number_);
  EXPECT_NE(gone->reason.find("no message"), std::string::npos) << gone->reason;
  EXPECT_TRUE(next_for_client<proto::Refusal>()) << "and it is told";
}

TEST_F(GateTest, WhoReadsNothingIsClosedWithWords) {
  options_.unread_deadline = std::chrono::milliseconds(600);
  start(Role::Peer);
  connection_->pause_reading(true);
  for (int i = 0; i < 500; ++i)  // 30 MB, more than the system's buffers hold
    to_client(proto::Refusal{.code = ErrorCode::Internal, .message = std::string(60'000, 'x')});
  const auto gone = from_gate<Disconnected>();
  ASSERT_TRUE(gone);
  EXPECT_NE(gone->reason.find("takes nothing"), std::string::npos) << gone->reason;
}

TEST_F(GateTest, APageIsAskedForWhenTheOneBeforeWasTaken) {
  start(Role::Submitter);
  connection_->send(frame_of(proto::GetEvents{.job = 7, .from_sequence = 1, .follow = true}));
  const auto asked = message_from_gate<proto::GetEvents>();
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->job, 7u);
  EventsPage page{.connection = number_, .job = 7};
  for (uint64_t sequence = 1; sequence <= 20; ++sequence)
    page.events.push_back({.job = 7,
                           .sequence = sequence,
                           .kind = proto::JobEventKind::Notice,
                           .text = std::string(60'000, 'x')});
  page.rest = proto::GetEvents{.job = 7, .from_sequence = 21, .follow = true};
  connection_->pause_reading(true);
  to_gate(page);
  to_gate(Taken{number_, UINT64_MAX});
  connection_->pause_reading(false);
  const auto again = message_from_gate<proto::GetEvents>();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->from_sequence, 21u);
  to_gate(EventsPage{.connection = number_, .job = 7, .follows_after = 20});
  to_gate(Taken{number_, UINT64_MAX});
  for (const uint64_t sequence : {21, 22})
    core_.publish(std::make_shared<const Published>(
        proto::JobEvent{.job = 7,
                        .sequence = sequence,
                        .kind = proto::JobEventKind::State,
                        .state = sequence == 22 ? proto::JobState::Finished : proto::JobState::Running}));
  for (uint64_t sequence = 1; sequence <= 22; ++sequence) {
    const auto event = next_for_client<proto::JobEvent>();
    ASSERT_TRUE(event);
    ASSERT_EQ(event->sequence, sequence);
  }
  EXPECT_TRUE(next_for_client<proto::EventsEnd>());
}

// Of a user, whose questions are small and answers large, one at a time.
TEST_F(GateTest, AUsersNextQuestionWaitsForTheAnswer) {
  start(Role::Submitter);
  for (const proto::JobNumber job : {1, 2, 3}) connection_->send(frame_of(proto::GetResult{job}));
  for (const proto::JobNumber job : {1, 2, 3}) {
    const auto asked = message_from_gate<proto::GetResult>();
    ASSERT_TRUE(asked);
    EXPECT_EQ(asked->job, job);
    for (int ticks = 0; ticks < 2; ++ticks) ASSERT_TRUE(from_gate<Hearing>(/*and_no=*/job + 1));
    to_gate(Taken{number_, UINT64_MAX});
  }
}

// What the gate hears of tokens, on its own thread.
class Listening final : public ServedView {
 public:
  void on_served(const ServedJob&) override {}
  void on_withdrawn(proto::JobNumber) override {}
  void on_progress(const PeerId& from, const proto::ServeProgress& progress) override {
    const MutexLock lock(mutex_);
    heard_.push_back({from, progress});
  }
  struct Heard {
    PeerId from{};
    proto::ServeProgress progress{};
  };
  std::vector<Heard> heard() const {
    const MutexLock lock(mutex_);
    return heard_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Heard> heard_ WEFT_GUARDED_BY(mutex_);
};

proto::ServeProgress token_of(proto::JobNumber run, proto::PlanVersion version, int64_t token) {
  return {.run = run, .plan_version = version, .request = 9, .first = 3, .tokens = {{.token = token}}};
}

// By the gate itself: the core is asked nothing, and hears nothing.
TEST_F(GateTest, TokensOfTheEntryGoStraightToTheDoorAndOthersAreDropped) {
  Listening door;
  options_.served = &door;
  start(Role::Peer);
  const auto second = enter(Role::Peer), user = enter(Role::Submitter);
  for (const ConnectionId peer : {number_, second->number})
    to_gate(Send{peer, std::make_shared<const Message>(proto::AssignStage{.run = 4, .plan_version = 2})});
  ASSERT_TRUE(run_until([&] { return !frames_.empty() && second->frames > 1; }));
  frames_.clear();
  const auto last_of = [&](auto& connection) {
    connection->send(frame_of(proto::PeerLog{"after"}));
    EXPECT_TRUE(message_from_gate<proto::PeerLog>()) << "nothing before it went to the core";
  };
  connection_->send(frame_of(token_of(4, 2, 70)));
  last_of(connection_);
  EXPECT_TRUE(door.heard().empty()) << "nobody is the entry yet";

  to_gate(ServedEntry{.job = 4, .plan_version = 2, .entry = client_->id()});
  connection_->send(frame_of(token_of(4, 1, 71)));
  connection_->send(frame_of(token_of(5, 2, 72)));
  second->connection->send(frame_of(token_of(4, 2, 73)));
  last_of(second->connection);
  connection_->send(frame_of(token_of(4, 2, 74)));
  last_of(connection_);
  ASSERT_EQ(door.heard().size(), 1u);
  EXPECT_EQ(door.heard()[0].from, client_->id());
  EXPECT_EQ(door.heard()[0].progress.tokens.at(0).token, 74);
  EXPECT_EQ(door.heard()[0].progress.first, 3u);

  to_gate(ServedEntry{.job = 4, .plan_version = 2, .entry = std::nullopt});
  connection_->send(frame_of(token_of(4, 2, 75)));
  last_of(connection_);
  EXPECT_EQ(door.heard().size(), 1u);
  // Of a user it is as any other message: the core says what it thinks of it.
  user->connection->send(frame_of(token_of(4, 2, 76)));
  EXPECT_TRUE(message_from_gate<proto::ServeProgress>());
  EXPECT_EQ(door.heard().size(), 1u);
  gate_.reset();
}

TEST_F(GateTest, RequestsGoToTheStageThatTheyAreForAndToNobodyElse) {
  start(Role::Peer);
  const auto request = [&](proto::PlanVersion version, uint64_t number) {
    gate_->tell_peer(
        client_->id(),
        proto::ServeRequest{
            .run = 4, .plan_version = version, .request = number, .tokens = {1, 2}, .tokens_max = 5});
  };
  request(2, 1);  // it has no stage
  to_client(proto::AssignStage{.run = 4, .plan_version = 2});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  frames_.clear();
  request(1, 2);  // of the plan before
  gate_->tell_peer(identity_->id(), proto::CancelRequest{.run = 4, .plan_version = 2, .request = 3});
  request(2, 4);
  gate_->tell_peer(client_->id(), proto::CancelRequest{.run = 4, .plan_version = 2, .request = 4});
  const auto came = next_for_client<proto::ServeRequest>();
  ASSERT_TRUE(came);
  EXPECT_EQ(came->request, 4u);
  EXPECT_EQ(came->tokens, (std::vector<int64_t>{1, 2}));
  const auto cancelled = next_for_client<proto::CancelRequest>();
  ASSERT_TRUE(cancelled);
  EXPECT_EQ(cancelled->request, 4u);
  to_client(proto::ReleaseStage{.run = 4, .plan_version = 2});
  ASSERT_TRUE(next_for_client<proto::ReleaseStage>());
  request(2, 5);
  to_client(proto::HelloAck{});
  EXPECT_TRUE(next_for_client<proto::HelloAck>()) << "and nothing before it";
}

// Who takes nothing is closed after a while; until then what it is to be asked does not pile up here.
TEST_F(GateTest, RequestsThatAPeerDoesNotTakeAreDropped) {
  start(Role::Peer);
  to_client(proto::AssignStage{.run = 4, .plan_version = 2});
  ASSERT_TRUE(run_until([this] { return !frames_.empty(); }));
  frames_.clear();
  connection_->pause_reading(true);
  proto::ServeRequest request{.run = 4, .plan_version = 2, .tokens_max = 5};
  request.tokens.assign(1 << 20, int64_t{1} << 40);  // 6 MB
  for (request.request = 1; request.request <= 20; ++request.request)
    gate_->tell_peer(client_->id(), request);
  connection_->send(frame_of(proto::PeerLog{"after"}));
  connection_->pause_reading(false);
  size_t came = 0;
  ASSERT_TRUE(run_until([&] {
    to_client(proto::HelloAck{});
    for (; !frames_.empty(); frames_.pop_front()) {
      const auto message = proto::decode(frames_.front().payload.span());
      if (message && std::holds_alternative<proto::HelloAck>(*message)) return true;
      ++came;
    }
    return false;
  }));
  EXPECT_GE(came, 2u);
  EXPECT_LT(came, 20u);
  EXPECT_FALSE(is_closed_);
}

}  // namespace
}  // namespace weft::broker
