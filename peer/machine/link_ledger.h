// What makes a link outlive its connections, as plain counting: frames that were sent are kept until the
// other side has acknowledged them, and frames that came are counted, over all connections of the link. Pure.
// A frame is whatever the shell sends; it is kept, not looked at.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/result.h"

namespace weft::peer {

struct LinkLedgerLimits {
  uint64_t kept_bytes_max = uint64_t{4} << 30;
  uint32_t ack_frames = 8;  // so many frames, or so many bytes, are acknowledged without waiting for the tick
  uint64_t ack_bytes = 256 << 10;
};

template <typename Frame>
class LinkLedger {
 public:
  explicit LinkLedger(LinkLedgerLimits limits = {}) : limits_(limits) {}

  // A frame that is sent now, or over the next connection. ResourceExhausted: the other side takes too
  // little.
  Status keep(Frame frame, uint64_t bytes) {
    if (bytes > limits_.kept_bytes_max - kept_bytes_)
      return fail(ErrorCode::ResourceExhausted,
                  std::to_string(kept_bytes_) + " bytes in " + std::to_string(kept_.size()) +
                      " tensors were sent and not acknowledged, more are not kept");
    kept_.push_back({std::move(frame), bytes});
    kept_bytes_ += bytes;
    ++sent_;
    return {};
  }
  // From the other side: it has so many. OutOfRange: more than were sent.
  Status acknowledged(uint64_t received) {
    if (received > sent_)
      return fail(ErrorCode::OutOfRange, "the other side counts " + std::to_string(received) + " tensors, " +
                                             std::to_string(sent_) + " were sent");
    while (acknowledged_ < received) {
      kept_bytes_ -= kept_.front().bytes;
      kept_.pop_front();
      ++acknowledged_;
    }
    return {};
  }
  // The other side begins a new connection with its count: what is kept now goes over it, in order.
  // OutOfRange also when it counts fewer than it once did: it says so of an older connection, or has lost
  // what it had.
  Status resume(uint64_t received) {
    if (received < acknowledged_)
      return fail(ErrorCode::OutOfRange, "the other side counts " + std::to_string(received) + " tensors, " +
                                             std::to_string(acknowledged_) + " were acknowledged before");
    return acknowledged(received);
  }
  template <typename Send>
  void each_kept(Send&& send) const {
    for (const Kept& kept : kept_) send(kept.frame);
  }

  // A frame came. Whether it is time to acknowledge.
  bool count_received(uint64_t bytes) {
    ++received_;
    ++unsaid_frames_;
    unsaid_bytes_ += bytes;
    return unsaid_frames_ >= limits_.ack_frames || unsaid_bytes_ >= limits_.ack_bytes;
  }
  // The count to tell the other side; it is taken as told.
  uint64_t tell_received() {
    unsaid_frames_ = 0;
    unsaid_bytes_ = 0;
    return received_;
  }

  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  uint64_t kept_bytes() const { return kept_bytes_; }
  size_t kept_frames() const { return kept_.size(); }

 private:
  struct Kept {
    Frame frame;
    uint64_t bytes = 0;
  };
  LinkLedgerLimits limits_;
  std::deque<Kept> kept_;  // frames acknowledged_ + 1 to sent_
  uint64_t kept_bytes_ = 0;
  uint64_t sent_ = 0, acknowledged_ = 0;
  uint64_t received_ = 0;
  uint32_t unsaid_frames_ = 0;
  uint64_t unsaid_bytes_ = 0;
};

}  // namespace weft::peer
