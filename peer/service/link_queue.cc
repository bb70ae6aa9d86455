#include "peer/service/link_queue.h"

#include <algorithm>
#include <string>

#include "proto/codec/codec.h"

namespace weft::peer {

LinkQueue::LinkQueue(Options options)
    : options_(options), begun_(LinkLedgerLimits{.kept_bytes_max = options.kept_bytes_max}) {}

Status LinkQueue::add(const Urgency& urgency, net::OutFrame frame) {
  const uint64_t size = frame.payload_size();
  const uint64_t kept = waiting_bytes_ + begun_.kept_bytes();
  if (size > options_.kept_bytes_max - std::min(options_.kept_bytes_max, kept))
    return fail(ErrorCode::ResourceExhausted,
                std::to_string(kept) + " bytes in " + std::to_string(waiting_.size() + begun_.kept_frames()) +
                    " tensors wait or were not acknowledged, more are not kept");
  const Order order{urgency, added_++};
  waiting_bytes_ += size;
  unsent_bytes_ += size;
  waiting_.emplace(order, Tensor{.order = order, .frame = std::move(frame)});
  return {};
}

bool LinkQueue::may_begin(const Tensor& tensor) const {
  return begun_.kept_frames() == 0 ||
         (begun_.kept_frames() < kBegunMax &&
          begun_.kept_bytes() + tensor.frame.payload_size() <= options_.window_bytes);
}

std::optional<net::OutFrame> LinkQueue::next(bool whole) {
  const auto first = waiting_.begin();
  const bool begins = first != waiting_.end() && may_begin(first->second) &&
                      (unfinished_.empty() || first->first < unfinished_.begin()->first);
  if (!begins) {
    if (unfinished_.empty()) return std::nullopt;
    return give(unfinished_.begin()->second, whole);
  }
  const uint64_t number = begun_.sent();
  const uint64_t size = first->second.frame.payload_size();
  waiting_bytes_ -= size;
  unfinished_.emplace(first->first, number);
  // It was counted when it was added.
  WEFT_CHECK(begun_.keep(std::move(first->second), size).has_value());
  waiting_.erase(first);
  return give(number, whole);
}

net::OutFrame LinkQueue::give(uint64_t number, bool whole) {
  Tensor& tensor = begun_.kept(number);
  const net::SharedBytes& body = tensor.frame.body;
  const size_t size = body.bytes.size();
  const size_t piece = whole ? size : std::min(proto::kPieceSize, size - tensor.given);
  net::OutFrame frame =
      whole ? tensor.frame
            : net::OutFrame{.kind = static_cast<uint8_t>(proto::FrameKind::Piece),
                            .head = proto::encode_piece_head(number, static_cast<uint32_t>(tensor.given),
                                                             static_cast<uint32_t>(size), tensor.frame.head),
                            .body = {body.owner, body.bytes.subspan(tensor.given, piece)}};
  tensor.given += piece;
  unsent_bytes_ -= piece;
  if (tensor.given == size) {
    tensor.is_given = true;
    unsent_bytes_ -= tensor.frame.head.size();
    unfinished_.erase(tensor.order);
  }
  return frame;
}

// One that goes again may have come the first time, all the same: then nothing more of it is sent.
void LinkQueue::forget_below(uint64_t received) {
  for (uint64_t number = begun_.acknowledged(); number < std::min(received, begun_.sent()); ++number) {
    const Tensor& tensor = begun_.kept(number);
    if (tensor.is_given) continue;
    unfinished_.erase(tensor.order);
    unsent_bytes_ -= tensor.frame.payload_size() - tensor.given;
  }
}

Status LinkQueue::acknowledged(uint64_t received) {
  if (received <= begun_.sent()) forget_below(received);
  return begun_.acknowledged(received);
}

Status LinkQueue::resume(uint64_t received) {
  if (received >= begun_.acknowledged() && received <= begun_.sent()) forget_below(received);
  WEFT_TRY_STATUS(begun_.resume(received));
  for (uint64_t number = begun_.acknowledged(); number < begun_.sent(); ++number) {
    Tensor& tensor = begun_.kept(number);
    unsent_bytes_ += tensor.given + (tensor.is_given ? tensor.frame.head.size() : 0);
    tensor.given = 0;
    tensor.is_given = false;
    unfinished_.emplace(tensor.order, number);
  }
  return {};
}

}  // namespace weft::peer
