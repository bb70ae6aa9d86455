#include "tests/attacks/honest_peers.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <utility>
#include <variant>

#include "proto/codec/codec.h"

namespace weft::attacks {

namespace {
constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr size_t kJoiningAtOnce = 32;
constexpr Duration kRetry = std::chrono::milliseconds(500);  // as a peer does it

net::OutFrame frame_of(const proto::Message& message) {
  return {
      .kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}};
}
}  // namespace

struct HonestPeers::Peer {
  size_t number = 0;
  std::unique_ptr<security::Identity> identity;
  std::unique_ptr<net::Attempt> attempt;
  net::ConnectionPtr connection;
  bool is_joined = false;
  Duration interval = std::chrono::seconds(1);
  uint64_t sequence = 0, acknowledged = 0;
  Instant last_sent{}, unanswered_since{};
  std::optional<Instant> retry_at{};
};

HonestPeers::HonestPeers(net::Endpoint broker, const security::Token& token, size_t count)
    : broker_(std::move(broker)), token_(token) {
  for (size_t i = 0; i < count; ++i) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->number = i;
    peers_.back()->identity = *security::Identity::generate();
  }
  std::promise<void> begun;
  thread_ = std::thread([this, &begun] {
    net::Loop loop;
    loop_ = &loop;
    begun.set_value();
    tick();
    loop.run();
    timer_.reset();
    for (const auto& peer : peers_) {
      peer->attempt.reset();
      if (peer->connection) peer->connection->close();
      peer->connection.reset();
    }
  });
  begun.get_future().wait();
}

HonestPeers::~HonestPeers() {
  loop_->stop();
  thread_.join();
}

bool HonestPeers::wait_until_joined(Duration deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (report_.joined == peers_.size()) return true;
      if (report_.lost > 0) return false;
    }
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 5);
  }
}

HonestPeers::Report HonestPeers::report() {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  report_.answered = 0;
  report_.worst_round_trip = {};
  return report;
}

void HonestPeers::join(Peer& peer) {
  const auto lose = [this, &peer](const std::string& why) {
    peer.connection.reset();
    const std::lock_guard lock(mutex_);
    report_.reason = why;
    if (std::exchange(peer.is_joined, false))
      ++report_.lost;
    else
      peer.retry_at = loop_->now() + kRetry;
  };
  peer.attempt =
      net::connect(*loop_, broker_,
                   {.identity = peer.identity.get(),
                    .expected = token_.broker,
                    .deadline = std::chrono::seconds(30),
                    .shape = {}},
                   [this, &peer, lose](Result<net::ConnectionPtr> connected) {
                     if (!connected) return lose(connected.error().message);
                     peer.connection = std::move(*connected);
                     peer.connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
                     peer.connection->start(
                         {.on_frame = [this, &peer](const net::InFrame& frame) { on_frame(peer, frame); },
                          .on_closed = [lose](const Error& error) { lose(error.message); }});
                     proto::Hello hello{.software = "test", .role = proto::Role::Peer};
                     hello.token = proto::TokenProof{token_.id, token_.secret.bytes};
                     hello.name = "honest-" + std::to_string(peer.number);
                     hello.instance = peer.number + 1;
                     hello.device = proto::DeviceReport{
                         .device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "honest"};
                     peer.connection->send(frame_of(hello));
                   });
}

void HonestPeers::on_frame(Peer& peer, const net::InFrame& frame) {
  const auto message = proto::decode(frame.payload.span());
  if (!message) return;
  if (const auto* ack = std::get_if<proto::HelloAck>(&*message)) {
    peer.is_joined = true;
    ++done_;
    peer.interval = ack->heartbeat_interval;
    peer.last_sent = loop_->now();
    const std::lock_guard lock(mutex_);
    ++report_.joined;
  } else if (const auto* beat = std::get_if<proto::HeartbeatAck>(&*message)) {
    const Duration round_trip = loop_->now() - peer.unanswered_since;
    peer.acknowledged = beat->sequence;
    peer.unanswered_since = peer.last_sent;
    const std::lock_guard lock(mutex_);
    ++report_.answered;
    report_.worst_round_trip = std::max(report_.worst_round_trip, round_trip);
  }
}

void HonestPeers::tick() {
  const Instant now = loop_->now();
  // A port lets only so many of one address in at once.
  for (; begun_ < peers_.size() && begun_ < done_ + kJoiningAtOnce; ++begun_) join(*peers_[begun_]);
  for (const auto& peer : peers_) {
    if (peer->retry_at && now >= *peer->retry_at) {
      peer->retry_at.reset();
      join(*peer);
    }
    if (!peer->is_joined) continue;
    if (peer->acknowledged < peer->sequence) {
      const std::lock_guard lock(mutex_);
      report_.worst_round_trip = std::max(report_.worst_round_trip, now - peer->unanswered_since);
    }
    if (now - peer->last_sent < peer->interval) continue;
    if (peer->acknowledged == peer->sequence) peer->unanswered_since = now;
    peer->last_sent = now;
    peer->connection->send(frame_of(proto::Heartbeat{++peer->sequence, {1 << 30}, {}}));
  }
  timer_ = loop_->after(kTick, [this] { tick(); });
}

}  // namespace weft::attacks
