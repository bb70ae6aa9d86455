// What tensors pass on a virtual clock: the production models of a device's uplink, of what lies between two
// devices, and of a device's downlink.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "bench/wide_area/clock.h"
#include "net/model/link_model.h"
#include "net/model/shared_line.h"
#include "plan/cluster.h"
#include "proto/tensor_header.h"

namespace weft::bench {

// A line that the flows of one device share: bytes go in, and whoever waits for the last of them is told.
class AccessLine {
 public:
  AccessLine(Clock& clock, double bytes_per_second) : clock_(clock) {
    if (bytes_per_second < plan::kUnlimited) line_.emplace(bytes_per_second);
  }
  bool is_limited() const { return line_.has_value(); }
  uint32_t add(std::function<void(size_t size, Instant at)> passed) {
    passed_.push_back(std::move(passed));
    return line_ ? line_->add() : 0;
  }
  void enter(uint32_t flow, size_t size, Instant at) {
    line_->enter(flow, size, at);
    wake();
  }

 private:
  void wake() {
    std::optional<Instant> first;
    for (uint32_t flow = 0; flow < passed_.size(); ++flow)
      if (const auto next = line_->next(flow); next && (!first || *next < *first)) first = next;
    if (!first || (woken_ && *woken_ <= *first)) return;
    woken_ = *first;
    clock_.at(*first, [this, at = *first] {
      if (woken_ != at) return;
      woken_.reset();
      for (uint32_t flow = 0; flow < passed_.size(); ++flow)
        for (const auto& piece : line_->take(flow, clock_.now())) passed_[flow](piece.size, piece.at);
      wake();
    });
  }
  Clock& clock_;
  std::optional<net::SharedLine> line_;
  std::vector<std::function<void(size_t, Instant)>> passed_;  // by flow
  std::optional<Instant> woken_;
};

// What one stage sends another, in order: over the sender's uplink, the path, and the receiver's downlink. A
// line without a limit passes a tensor as a whole, and then its last byte is what counts.
class Flow {
 public:
  Flow(Clock& clock, const plan::LinkView& path, AccessLine& uplink, AccessLine& downlink)
      : clock_(clock),
        path_({.bytes_per_second = path.bytes_per_second, .delay = path.latency}, path.latency * 2, 1, 1),
        uplink_(uplink),
        downlink_(downlink) {
    if (uplink_.is_limited())
      on_uplink_ = uplink_.add([this](size_t size, Instant at) { enter_path(size, at); });
    if (downlink_.is_limited()) on_downlink_ = downlink_.add([this](size_t size, Instant) { arrive(size); });
  }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void send(size_t size, std::function<void()> arrived) {
    waiting_.push_back({size, std::move(arrived)});
    if (uplink_.is_limited())
      uplink_.enter(on_uplink_, size, clock_.now());
    else
      enter_path(size, clock_.now());
  }

 private:
  void enter_path(size_t size, Instant at) {
    if (!downlink_.is_limited()) {
      clock_.at(path_.enter(size, at), [this, size] { arrive(size); });
      return;
    }
    // In pieces: the downlink carries the first bytes while the path carries the last.
    for (size_t left = size; left > 0;) {
      const size_t piece = std::min(left, kPiece);
      downlink_.enter(on_downlink_, piece, path_.enter(piece, at));
      left -= piece;
    }
  }
  void arrive(size_t size) {
    came_ += size;
    while (!waiting_.empty() && came_ >= waiting_.front().size) {
      came_ -= waiting_.front().size;
      auto arrived = std::move(waiting_.front().arrived);
      waiting_.pop_front();
      arrived();
    }
  }
  static constexpr size_t kPiece = 64 << 10;
  struct Waiting {
    size_t size;
    std::function<void()> arrived;
  };
  Clock& clock_;
  net::LinkModel path_;
  AccessLine &uplink_, &downlink_;
  uint32_t on_uplink_ = 0, on_downlink_ = 0;
  std::deque<Waiting> waiting_;
  size_t came_ = 0;
};

// What a tensor takes on a link, with what its header, its frame and TLS add.
size_t wire_bytes(const proto::TensorHeader& header);

}  // namespace weft::bench
