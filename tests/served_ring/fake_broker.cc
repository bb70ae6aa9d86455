#include "tests/served_ring/fake_broker.h"

#include "peer/service/bulk.h"
#include "storage/blob_store.h"

namespace weft::served {

FakeBroker::FakeBroker(net::Loop& loop) : loop_(loop) {
  net::ListenOptions options;
  options.identity = identity_.get();
  listener_ = *net::Listener::open(loop_, {"127.0.0.1", 0}, options,
                                   [this](const ConnectionPtr& connection) { on_accepted(connection); });
}

Digest FakeBroker::put(const dag::Tensor& tensor) {
  const Digest sha256 = storage::sha256(tensor.bytes());
  blobs_.emplace(sha256, tensor);
  return sha256;
}

void FakeBroker::say(const PeerId& peer, const proto::Message& message) {
  if (const auto at = controls_.find(peer); at != controls_.end())
    at->second->send(peer::message_frame(message));
}

void FakeBroker::hang_up() {
  for (const auto& connection : std::set(accepted_)) connection->close();
  accepted_.clear();
  controls_.clear();
}

void FakeBroker::on_accepted(const ConnectionPtr& connection) {
  connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
  accepted_.insert(connection);
  const std::weak_ptr<net::Connection> weak = connection;
  connection->start({.on_frame =
                         [this, weak](const net::InFrame& frame) {
                           const auto here = weak.lock();
                           const auto message = proto::decode(frame.payload.span());
                           if (here && message) on_message_of(here, *message);
                         },
                     .on_closed =
                         [this, weak](const Error&) {
                           const auto here = weak.lock();
                           std::erase_if(controls_, [&](const auto& one) { return one.second == here; });
                           accepted_.erase(here);
                         }});
}

void FakeBroker::on_message_of(const ConnectionPtr& connection, const proto::Message& message) {
  if (const auto* hello = std::get_if<proto::Hello>(&message)) return on_hello(connection, *hello);
  if (const auto* wanted = std::get_if<proto::GetBlob>(&message)) return give(connection, *wanted);
  if (const auto* heartbeat = std::get_if<proto::Heartbeat>(&message))
    connection->send(peer::message_frame(proto::HeartbeatAck{heartbeat->sequence}));
  if (on_message) on_message(connection->remote(), message);
}

void FakeBroker::on_hello(const ConnectionPtr& connection, const proto::Hello& hello) {
  connection->send(peer::message_frame(proto::HelloAck{.software = "test",
                                                       .name = "peer",
                                                       .heartbeat_interval = std::chrono::seconds(1),
                                                       .lease = std::chrono::seconds(60)}));
  if (hello.role != proto::Role::Peer) return;
  const PeerId peer = connection->remote();
  controls_[peer] = connection;
  addresses_[peer] = hello.device->addresses.front();
  for (const proto::StageHeld& held : hello.holding)
    say(peer, proto::ResumeStage{held.run, held.plan_version});
}

size_t FakeBroker::given(const PeerId& peer) const {
  const auto given = given_.find(peer);
  return given == given_.end() ? 0 : given->second;
}

void FakeBroker::give(const ConnectionPtr& connection, const proto::GetBlob& wanted) {
  ++given_[connection->remote()];
  const auto bytes = std::make_shared<const dag::Tensor>(blobs_.at(wanted.sha256));
  const size_t size = bytes->bytes().size();
  connection->send(peer::message_frame(proto::BlobAnswer{.request = wanted.request, .size = size}));
  for (size_t at = 0; at < size; at += proto::kChunkSizeMax)
    connection->send(
        {.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
         .head = proto::encode_chunk_head(wanted.request),
         .body = {bytes, bytes->bytes().subspan(at, std::min(proto::kChunkSizeMax, size - at))}});
}

}  // namespace weft::served
