#include "peer/service/control_connection.h"

#include "peer/service/bulk.h"
#include "proto/codec/codec.h"

namespace weft::peer {

namespace {
// Bytes told to a broker that does not read them; then the connection ends. Two of the largest messages.
constexpr size_t kUnreadMax = 32 << 20;
}  // namespace

void ControlConnection::connect() {
  attempt_ = net::connect(loop_, broker_, options_(), [this](Result<net::ConnectionPtr> result) {
    if (!result) return handlers_.on_connect_failed(result.error());
    connection_ = std::move(*result);
    begin();
  });
}

void ControlConnection::begin() {
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kMessageSizeMax;
  limits.send_queue_max = kUnreadMax;
  connection_->set_limits(limits);
  const std::string address = connection_->remote_address();
  connection_->start({.on_frame = [this](net::InFrame frame) { on_frame(frame); },
                      .on_closed = [this](const Error& error) { handlers_.on_lost(error); }});
  handlers_.on_connected(address);
}

void ControlConnection::on_frame(const net::InFrame& frame) {
  Result<proto::Message> message =
      fail(ErrorCode::InvalidArgument, "a frame of a kind that the broker does not send here");
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message))
    message = proto::decode(frame.payload.span());
  if (message) return handlers_.on_message(*message);
  handlers_.on_lost(message.error().within("the broker breaks the protocol"));
}

void ControlConnection::drop(Duration linger) {
  if (connection_) connection_->close(linger);
  connection_.reset();
}

void ControlConnection::tell(const proto::Message& message) {
  if (!connection_) return;
  net::OutFrame frame = message_frame(message);
  frame.goes_first = std::holds_alternative<proto::Heartbeat>(message);  // a sign of life waits for no report
  connection_->send(std::move(frame));
}

}  // namespace weft::peer
