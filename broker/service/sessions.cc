#include "broker/service/sessions.h"

#include <chrono>

#include "proto/codec/codec.h"

namespace weft::broker {

namespace {
constexpr size_t kSessionsMax = 8192;
constexpr Duration kToReadTheLast = std::chrono::seconds(2);  // of what was sent, before a connection closes
}  // namespace

void Sessions::begin(const net::ConnectionPtr& connection, Instant now) {
  if (all_.size() >= kSessionsMax) return connection->close();
  const auto session = std::make_shared<Session>();
  session->number = next_++;
  session->connection = connection;
  session->since = session->taking_at = now;
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kHelloSizeMax;
  connection->set_limits(limits);
  all_[session->number] = session;
  outside_.on_begun(session->number);
  const std::weak_ptr<Session> weak = session;
  connection->start({.on_frame =
                         [this, weak](net::InFrame frame) {
                           if (const auto here = weak.lock()) outside_.on_frame(here, std::move(frame));
                         },
                     .on_closed =
                         [this, weak](const Error& error) {
                           if (const auto here = weak.lock()) end(here, error.message);
                         },
                     .on_drained =
                         [this, weak] {
                           if (const auto here = weak.lock()) outside_.on_drained(here);
                         },
                     .on_head = [this, weak](uint8_t, size_t size,
                                             std::span<const std::byte>) -> Result<net::PayloadPlace> {
                       if (const auto here = weak.lock()) outside_.on_frame_begun(here, size);
                       return net::PayloadPlace{};
                     }});
}

SessionPtr Sessions::find(ConnectionId which) const {
  const auto at = all_.find(which);
  return at == all_.end() ? nullptr : at->second;
}

std::vector<SessionPtr> Sessions::all() const {
  std::vector<SessionPtr> all;
  all.reserve(all_.size());
  for (const auto& [number, session] : all_) all.push_back(session);
  return all;
}

void Sessions::end(const SessionPtr& which, const std::optional<std::string>& why) {
  if (all_.erase(which->number) > 0) outside_.on_ended(which, why);
}

void Sessions::close(const SessionPtr& which, const std::string& why) {
  which->connection->close();
  end(which, why);
}

void Sessions::close_all_of(const PeerId& key, const std::string& why) {
  for (const SessionPtr& session : all())
    if (session->key() == key) close(session, why);
}

void Sessions::let_go(ConnectionId which) {
  const SessionPtr session = find(which);
  if (!session) return;
  session->connection->close(kToReadTheLast);
  end(session, std::nullopt);
}

void Sessions::close_all() {
  for (const auto& [number, session] : all_) session->connection->close();
  all_.clear();
}

size_t Sessions::bytes_queued(ConnectionId to) const {
  const SessionPtr session = find(to);
  return session ? session->bytes_queued() : 0;
}

void Sessions::send(ConnectionId to, const proto::Message& message) {
  send_frame(
      to,
      {.kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}});
}

void Sessions::send_frame(ConnectionId to, net::OutFrame frame) {
  if (const SessionPtr session = find(to)) session->connection->send(std::move(frame));
}

void Sessions::refuse(ConnectionId which, const Error& why) {
  const SessionPtr session = find(which);
  if (!session) return;
  options_.log("info connection_closed address=" + session->connection->remote_address() + " reason=\"" +
               why.message + "\"");
  send(which, proto::Refusal{.code = why.code, .message = why.message});
  session->connection->close(kToReadTheLast);
  end(session, why.message);
}

void Sessions::close_who_do_not_greet(Instant now) {
  for (const SessionPtr& session : all())
    if (!session->role && now - session->since > options_.greeting_deadline)
      close(session, "it did not introduce itself in time");
}

void Sessions::close_who_do_not_read(Instant now, bool was_held_up) {
  for (const SessionPtr& session : all()) {
    const net::ConnectionStats stats = session->connection->stats();
    if (was_held_up || stats.bytes_queued == 0 || stats.bytes_sent != session->bytes_sent)
      session->taking_at = now;
    session->bytes_sent = stats.bytes_sent;
    if (now - session->taking_at > options_.unread_deadline)
      refuse(session->number, {ErrorCode::Timeout, "it takes nothing of what it is sent"});
  }
}

// What a lease is judged by: when something came, a part of a message even, whether the core had time for it
// or not. Who is not read from because the broker is busy is there.
std::vector<Heard> Sessions::heard(Instant now, const std::function<bool(ConnectionId)>& is_held_up) {
  std::vector<Heard> heard;
  for (const auto& [number, session] : all_) {
    if (session->role != proto::Role::Peer) continue;
    const uint64_t received = session->connection->stats().bytes_received;
    if (received == session->bytes_received && !is_held_up(number)) continue;
    session->bytes_received = received;
    heard.push_back({number, now, std::exchange(session->work, std::nullopt),
                     std::exchange(session->saving, std::nullopt)});
  }
  return heard;
}

}  // namespace weft::broker
