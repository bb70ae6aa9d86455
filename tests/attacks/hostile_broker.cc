#include "tests/attacks/hostile_broker.h"

namespace weft::attacks {

net::OutFrame frame_of(const proto::Message& message) {
  return {
      .kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}};
}

HostileBroker::HostileBroker() {
  net::ListenOptions options;
  options.identity = identity_.get();
  listener_ = *net::Listener::open(loop_, {"127.0.0.1", 0}, options,
                                   [this](const net::ConnectionPtr& connection) { on_accepted(connection); });
}

void HostileBroker::on_accepted(const net::ConnectionPtr& connection) {
  connection->set_limits({.frame_size_max = proto::kMessageSizeMax, .send_queue_max = size_t{1} << 31});
  accepted_.insert(connection);
  const std::weak_ptr<net::Connection> weak = connection;
  connection->start({.on_frame =
                         [this, weak](const net::InFrame& frame) {
                           if (const auto here = weak.lock()) on_frame(here, frame);
                         },
                     .on_closed =
                         [this, weak](const Error&) {
                           const auto here = weak.lock();
                           if (here == control_) control_.reset();
                           if (here == bulk_) bulk_.reset();
                           accepted_.erase(here);
                         }});
}

void HostileBroker::on_frame(const net::ConnectionPtr& connection, const net::InFrame& frame) {
  const auto message = proto::decode(frame.payload.span());
  if (!message) return;  // the bytes of a blob that is put
  if (const auto* hello = std::get_if<proto::Hello>(&*message)) {
    connection->send(frame_of(ack));
    (hello->role == proto::Role::PeerBulk ? bulk_ : control_) = connection;
    if (hello->role == proto::Role::Peer) ++admissions_;
    return;
  }
  if (connection == control_) {
    if (const auto* heartbeat = std::get_if<proto::Heartbeat>(&*message)) {
      ++heartbeats_;
      connection->send(frame_of(proto::HeartbeatAck{heartbeat->sequence}));
    }
    if (on_control) on_control(*message);
  } else if (on_bulk) {
    on_bulk(*message);
  }
}

bool HostileBroker::say(const proto::Message& message) {
  if (control_) control_->send(frame_of(message));
  return control_ != nullptr;
}
bool HostileBroker::answer(const proto::Message& message) {
  if (bulk_) bulk_->send(frame_of(message));
  return bulk_ != nullptr;
}
void HostileBroker::answer(net::OutFrame frame) {
  if (bulk_) bulk_->send(std::move(frame));
}
size_t HostileBroker::unsent() const {
  return (control_ ? control_->stats().bytes_queued : 0) + (bulk_ ? bulk_->stats().bytes_queued : 0);
}

}  // namespace weft::attacks
