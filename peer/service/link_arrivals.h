// Connections that other peers have dialled, until they have said what they are for: a stage's link, a
// measurement, or blobs. A neighbour may come before the broker's word about it does, so one waits a while.
// On the links' thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "net/connection.h"
#include "net/loop.h"
#include "proto/messages.h"

namespace weft::peer {

class LinkArrivals {
 public:
  // Whoever wants the connection says how it goes on; nothing: not (yet).
  using Taken = std::optional<net::Connection::Handlers>;
  struct Takers {
    std::function<Taken(const net::ConnectionPtr&, const proto::LinkHello&)> link;
    std::function<Taken(const net::ConnectionPtr&, const proto::ProbeHello&)> probe;
    std::function<Taken(const net::ConnectionPtr&, const proto::GetBlob&)> blobs;  // at once, or never
  };
  // The loop must outlive it.
  LinkArrivals(net::Loop& loop, Takers takers) : loop_(loop), takers_(std::move(takers)) {}

  void add(const net::ConnectionPtr& connection);  // beyond 256 it is closed
  // There may be somebody who wants one that waits.
  void match();
  void on_tick();  // those that have waited for 30 s go
  void clear() { arrivals_.clear(); }

 private:
  struct Arrival {
    net::ConnectionPtr connection;
    std::optional<proto::LinkHello> hello;
    std::optional<proto::ProbeHello> probe;
    Instant since;
    net::Connection::Handlers handlers;  // those of whoever has taken the connection over
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;
  void on_frame(const ArrivalPtr& arrival, const net::InFrame& frame);
  void hand_over(const ArrivalPtr& arrival, net::Connection::Handlers to);
  void drop(const ArrivalPtr& arrival);

  net::Loop& loop_;
  const Takers takers_;
  std::vector<ArrivalPtr> arrivals_;
};

}  // namespace weft::peer
