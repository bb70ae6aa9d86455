// What a peer's process asks of the broker beside its connection, and gives to other peers: requests and
// answers that pass its own line one after the other, those at a rate beside the others.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "sim/broker_host.h"
#include "sim/network.h"
#include "sim/process.h"

namespace weft::sim {

class PeerLine {
 public:
  // All of them outlive it; callbacks run in the process.
  PeerLine(World& world, Network& network, BrokerHost& broker, Process& process, Draw& draw, NodeId node)
      : world_(world), network_(network), broker_(broker), process_(process), draw_(draw), node_(node) {}

  // The process has begun: nothing is on its way.
  void begin();
  void set_fails(bool fails) { fails_ = fails; }
  // Uploads at a rate that have not begun are given up.
  void give_up_uploads();

  // A request of so many bytes to the broker; `serve` runs there and says how many bytes answer it; `done`
  // runs here. `rate`: bytes a second, at most; 0: as fast as it goes.
  struct Answer {
    Status status{};
    int64_t bytes = 100;
  };
  using Done = std::function<void(const Status&)>;
  void request(int64_t bytes, uint64_t rate, std::function<Answer()> serve, Done done);

  // Calls `done` once, whatever comes first, in this life of the process.
  Done once(Done done);
  // As connections do while transfers fail; then `answer` is told.
  bool breaks(const Done& answer);
  // Bytes to another peer; `arrived` runs there, in no process.
  void give(NodeId to, int64_t bytes, uint64_t rate, std::function<void()> arrived);

 private:
  struct Free {  // from when on
    Instant up{}, down{};
  };
  Free& free_of(uint64_t rate) { return rate != 0 ? rated_ : free_; }
  // Of the next one to have passed, which begins when those before it have.
  Instant pass(Instant& free, int64_t bytes, int64_t speed);
  int64_t speed(NodeId from, NodeId to, uint64_t rate) const;
  void arrive(uint64_t rate, uint64_t broker_life, const std::function<Answer()>& serve, const Done& answer);
  void give_up(const Done& answer);
  void answer_from_broker(uint64_t rate, const Answer& result, const Done& answer);

  World& world_;
  Network& network_;
  BrokerHost& broker_;
  Process& process_;
  Draw& draw_;
  const NodeId node_;
  bool fails_ = false;
  Free free_, rated_;
  uint64_t served_by_ = 0;  // the broker's life that requests go to
};

}  // namespace weft::sim
