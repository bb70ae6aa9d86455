// The broker's relay in the simulation: two who come with one ticket get a connection.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "sim/network.h"

namespace weft::sim {

class Relay {
 public:
  Relay(World& world, Network& network) : world_(world), network_(network) {}

  void grant(const proto::Secret& ticket) { tickets_.insert(ticket); }
  void revoke(const proto::Secret& ticket);
  // Called once: with nothing when the ticket is not granted, is revoked, or the other does not come.
  using Joined = std::function<void(std::optional<Line>)>;
  // Whether it waits for another one now.
  bool come(NodeId from, const proto::Secret& ticket, Joined joined);
  // With its process: whoever waits gets nothing.
  void end();

 private:
  struct Waiting {
    NodeId node = 0;
    Joined joined;
    uint64_t number = 0;
  };
  std::optional<Waiting> take(const proto::Secret& ticket);

  World& world_;
  Network& network_;
  std::set<proto::Secret> tickets_;
  std::map<proto::Secret, Waiting> waiting_;
  uint64_t came_ = 0;
};

}  // namespace weft::sim
