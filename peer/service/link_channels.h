// The connections of one link: which of them tensors go over, and how much each is given ahead of what it can
// send, so that what is made a moment later and needed sooner does not wait behind what was given.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "net/connection.h"
#include "peer/service/link_queue.h"
#include "peer/service/stream_choice.h"
#include "proto/codec/codec.h"

namespace weft::peer {

class LinkChannels {
 public:
  struct IncomingPiece {
    proto::PieceHead piece{};
    bool is_new = false;  // of a tensor that has not come
  };
  struct Channel {
    net::ConnectionPtr connection{};
    uint64_t bytes_heard = 0;
    size_t ahead = 0;                         // bytes that it is given at a time
    Instant given{};                          // when it was last given any while it had none
    std::optional<IncomingPiece> incoming{};  // the piece whose head came last
  };

  void add(uint64_t number, const net::ConnectionPtr& connection);
  // It is none of them any more. Nothing: it was not.
  net::ConnectionPtr take(uint64_t number);
  bool contains(uint64_t number) const { return channels_.contains(number); }
  Channel* find(uint64_t number);
  // Those over which something came since the last call; `all`: as if over all of them.
  std::vector<uint64_t> heard(bool all);

  // Tensors go over it, too, until the session ends. The session's first connection is the first.
  void carry(uint64_t number) { carrying_.push_back(number); }
  void end_session();
  bool is_carrying() const { return !carrying_.empty(); }
  // What the queue has, as far as those that are in use take more. `whole`: tensors do not go in pieces.
  void give(LinkQueue& queue, bool whole, Instant now);
  // All that it was given has gone. `streams`: of the link.
  void on_drained(Channel& channel, uint32_t streams, Instant now) const;
  void pause_reading(bool paused);

  // Bytes, of those that carry tensors.
  uint64_t came() const;
  size_t unsent() const;
  // Bytes that all connections have sent, since the last call.
  uint64_t take_sent();

 private:
  bool give_next(LinkQueue& queue, bool whole, Instant now);
  void count_busy(bool is_busy, Instant now);
  template <typename Self, typename Visit>
  static void each_carrying(Self& self, Visit&& visit) {
    for (const uint64_t number : self.carrying_)
      if (const auto at = self.channels_.find(number); at != self.channels_.end()) visit(at->second);
  }

  std::map<uint64_t, Channel> channels_;  // by number
  std::vector<uint64_t> carrying_;
  StreamChoice choice_;                // which of them this side uses
  std::optional<Instant> busy_since_;  // more waits than they take
  uint64_t busy_sent_ = 0;             // bytes that had left by then
  uint64_t sent_before_ = 0, sent_told_ = 0;
};

}  // namespace weft::peer
