// What makes a link outlive its connections, as plain counting: frames that were sent are kept until the
// other side has acknowledged them, and frames that came are counted, over all connections of the link. Each
// has a number, from 0 in the order in which they were first sent; they may come in another order, and only
// those below which none is missing are acknowledged. Pure. A frame is whatever the shell sends; it is kept,
// not looked at.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/result.h"

namespace weft::peer {

struct LinkLedgerLimits {
  uint64_t kept_bytes_max = uint64_t{4} << 30;
  uint32_t ack_frames = 8;  // so many frames, or so many bytes, are acknowledged without waiting for the tick
  uint64_t ack_bytes = 256 << 10;
};

// What came.
class LinkReceipts {
 public:
  explicit LinkReceipts(LinkLedgerLimits limits = {}) : limits_(limits) {}

  // Whether the frame of that number came before: over a connection that broke before it was acknowledged.
  bool has_received(uint64_t number) const { return number < received_ || beyond_.contains(number); }
  // It came. Whether it is time to acknowledge. REQUIRES: it had not come. How far ahead of what is missing
  // numbers may be is the caller's to bound: each of those takes memory here.
  bool count_received(uint64_t number, uint64_t bytes) {
    beyond_[number] = bytes;
    for (auto next = beyond_.begin(); next != beyond_.end() && next->first == received_;
         next = beyond_.erase(next)) {
      ++received_;
      ++unsaid_frames_;
      unsaid_bytes_ += next->second;
    }
    return unsaid_frames_ >= limits_.ack_frames || unsaid_bytes_ >= limits_.ack_bytes;
  }
  // The next one came, where they come in order.
  bool count_received(uint64_t bytes) { return count_received(received_, bytes); }
  // The count to tell the other side; it is taken as told.
  uint64_t tell_received() {
    unsaid_frames_ = 0;
    unsaid_bytes_ = 0;
    return received_;
  }
  uint64_t received() const { return received_; }  // all below that number have come
  size_t received_beyond() const { return beyond_.size(); }

 private:
  LinkLedgerLimits limits_;
  uint64_t received_ = 0;
  std::map<uint64_t, uint64_t> beyond_;  // numbers above received_ that have come, and their bytes
  uint32_t unsaid_frames_ = 0;
  uint64_t unsaid_bytes_ = 0;
};

// What was sent.
template <typename Frame>
class LinkLedger {
 public:
  explicit LinkLedger(LinkLedgerLimits limits = {}) : limits_(limits) {}

  // A frame that is sent now, or over the next connection; its number is sent() before the call.
  // ResourceExhausted: the other side takes too little.
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
  // REQUIRES: acknowledged() <= number < sent().
  Frame& kept(uint64_t number) { return kept_[static_cast<size_t>(number - acknowledged_)].frame; }
  // From the other side: it has all below that number. OutOfRange: more than were sent.
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

  uint64_t sent() const { return sent_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t kept_bytes() const { return kept_bytes_; }
  size_t kept_frames() const { return kept_.size(); }

 private:
  struct Kept {
    Frame frame;
    uint64_t bytes = 0;
  };
  LinkLedgerLimits limits_;
  std::deque<Kept> kept_;  // those numbered acknowledged_ to sent_ - 1
  uint64_t kept_bytes_ = 0;
  uint64_t sent_ = 0, acknowledged_ = 0;
};

}  // namespace weft::peer
