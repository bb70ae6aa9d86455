// What comes over the connections of a link: where the bytes go, and what is refused.
#include <utility>

#include "peer/service/bulk.h"
#include "peer/service/links.h"

namespace weft::peer {

// A tensor that the assignment expects goes straight into the memory that it keeps. Of any other the machine
// says what is wrong, once all of it has come.
Result<net::PayloadPlace> Links::on_head(plan::Seat seat, uint64_t number, uint8_t kind, size_t payload_size,
                                         std::span<const std::byte> head) {
  Link& link = links_.at(seat);
  Channel* channel = channel_of(link, number);
  if (link.is_down || channel == nullptr) return net::PayloadPlace{};
  channel->incoming.reset();
  const bool is_piece = kind == static_cast<uint8_t>(proto::FrameKind::Piece);
  if (!is_piece && kind != static_cast<uint8_t>(proto::FrameKind::Tensor)) return net::PayloadPlace{};
  Result<net::PayloadPlace> placed =
      is_piece != link.machine->in_pieces()
          ? fail(ErrorCode::InvalidArgument, "a frame that is not for this link")
      : is_piece ? place_piece(link, *channel, payload_size, head)
                 : place_tensor(link, payload_size, head);
  if (!placed) down(seat, placed.error());
  return placed;
}

Result<net::PayloadPlace> Links::place_tensor(Link& link, size_t payload_size,
                                              std::span<const std::byte> head) {
  WEFT_TRY(const proto::TensorHead tensor, proto::decode_tensor_head(head, payload_size));
  WEFT_TRY(const bool expected, expected_.expects(tensor.header));
  link.meter.begin(options_.loop->now(), payload_size, link.whole_bytes);
  if (!expected) return net::PayloadPlace{};
  return net::PayloadPlace{tensor.size, dag::allocate_tensor_bytes(payload_size - tensor.size)};
}

Result<net::PayloadPlace> Links::place_piece(Link& link, Channel& channel, size_t payload_size,
                                             std::span<const std::byte> head) {
  WEFT_TRY(proto::PieceStart start, proto::decode_piece_head(head, payload_size));
  const bool is_new = !link.machine->has_received(start.head.number);
  net::PayloadPlace placement;
  if (is_new) {
    WEFT_TRY(const bool expected, expected_.expects(start.head.header));
    WEFT_TRY(TensorAssembly::Begun begun,
             link.assembly.begin(start.head, link.machine->received(), expected));
    if (begun.is_first) link.meter.begin(options_.loop->now(), start.head.size, link.channels.came());
    if (start.head.size > 0) placement = {start.head_size, std::move(begun.memory)};
  }
  channel.incoming = LinkChannels::IncomingPiece{std::move(start.head), is_new};
  return placement;
}

void Links::on_frame(plan::Seat seat, uint64_t number, const net::InFrame& frame) {
  Link& link = links_.at(seat);
  if (link.is_down || !link.channels.contains(number)) return;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return down(seat, message.error());
    act(link, link.machine->on_message(options_.loop->now(), number, *message));
    return give(link);  // an acknowledgement makes room for more
  }
  Channel* channel = channel_of(link, number);
  if (channel != nullptr && frame.kind == static_cast<uint8_t>(proto::FrameKind::Piece) && channel->incoming)
    return on_piece(link, *channel);
  if (channel != nullptr && frame.kind == static_cast<uint8_t>(proto::FrameKind::Tensor) &&
      !link.machine->in_pieces())
    return on_tensor(link, frame);
  down(seat, {ErrorCode::InvalidArgument, "a frame that is not for a link"});
}

void Links::on_tensor(Link& link, const net::InFrame& frame) {
  const plan::Seat seat = seat_of(link);
  auto came = tensor_of(frame);
  if (!came) return down(seat, came.error());
  link.whole_bytes += frame.size();
  link.meter.end(options_.loop->now(), frame.size(), link.whole_bytes);
  act(link, link.machine->on_tensor(options_.loop->now(), link.machine->received(), frame.size()));
  handlers_.on_tensor(seat, came->header, std::move(came->payload));
}

// Its bytes are where place_piece had them.
void Links::on_piece(Link& link, Channel& channel) {
  const LinkChannels::IncomingPiece coming = *std::exchange(channel.incoming, std::nullopt);
  link.machine->on_piece();
  if (!coming.is_new) return;
  auto tensor = link.assembly.end(coming.piece);
  if (!tensor) return;
  link.meter.end(options_.loop->now(), coming.piece.size, link.channels.came());
  act(link, link.machine->on_tensor(options_.loop->now(), coming.piece.number, coming.piece.size));
  handlers_.on_tensor(seat_of(link), tensor->header, std::move(tensor->payload));
}

}  // namespace weft::peer
