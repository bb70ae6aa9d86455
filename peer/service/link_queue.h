// What a link has to send, and in which order: tensors by urgency, in pieces, so that one that is needed soon
// overtakes a large one that is under way; and what was sent and may have to be sent again. A tensor is given
// its number when its first piece goes. Belongs to the loop; asks nobody what time it is.
//
// What is begun is bounded, so that the other side, which takes memory for it, can hold us to it: tensors
// that were begun and not acknowledged are fewer than kBegunMax and take at most `window_bytes`, or there is
// one.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "net/frame.h"
#include "peer/machine/link.h"
#include "peer/machine/urgency.h"

namespace weft::peer {

inline constexpr uint64_t kBegunMax = 1024;
// What both ends of a link work out by themselves: `bytes` of all its edges in that direction.
constexpr uint64_t window_of(uint64_t bytes) { return (uint64_t{32} << 20) + 4 * bytes; }

class LinkQueue : public LinkOutbox {
 public:
  struct Options {
    uint64_t kept_bytes_max = uint64_t{4} << 30;  // what waits included
    uint64_t window_bytes = window_of(0);
  };
  LinkQueue() : LinkQueue(Options{}) {}
  explicit LinkQueue(Options options);

  // `frame`: as tensor_frame makes it. ResourceExhausted: the other side takes too little.
  Status add(const Urgency& urgency, net::OutFrame frame);
  // What goes next, which counts as sent: a piece, or `whole` tensors for a side that knows no pieces.
  // Nothing: there is none, or as much as may be is under way.
  std::optional<net::OutFrame> next(bool whole);

  // From the other side, as in LinkLedger. After resume() what it lacks goes again from its begin.
  Status acknowledged(uint64_t received) override;
  Status resume(uint64_t received) override;
  bool is_empty() const override { return waiting_.empty() && begun() == 0; }

  uint64_t unsent_bytes() const { return unsent_bytes_; }  // of what next() has yet to give
  uint64_t begun_bytes() const { return begun_.kept_bytes(); }
  size_t begun() const { return begun_.kept_frames(); }

 private:
  using Order = std::pair<Urgency, uint64_t>;  // what is equally urgent: as it came
  struct Tensor {
    Order order{};
    net::OutFrame frame{};  // whole
    size_t given = 0;       // bytes of the body
    bool is_given = false;  // all of it
  };
  bool may_begin(const Tensor& tensor) const;
  net::OutFrame give(uint64_t number, bool whole);
  void forget_below(uint64_t received);

  Options options_;
  uint64_t added_ = 0;
  std::map<Order, Tensor> waiting_;       // not begun
  std::map<Order, uint64_t> unfinished_;  // begun and not all given: their numbers
  LinkLedger<Tensor> begun_;
  uint64_t waiting_bytes_ = 0, unsent_bytes_ = 0;
};

}  // namespace weft::peer
