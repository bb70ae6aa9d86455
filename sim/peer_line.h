// What a peer's process asks of the broker beside its connection, and gives to other peers. What goes to or
// comes from the broker passes the peer's own line one after the other, as over one connection; so does what
// is given to one peer; and what has a rate goes beside the others.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

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
  // Requests at a rate that have not begun are given up.
  void give_up_uploads();

  // A request of so many bytes to the broker; `serve` runs there and says how many bytes answer it; `done`
  // runs here.
  struct Answer {
    Status status{};
    int64_t bytes = 100;
  };
  struct Rates {  // bytes a second, at most; 0: as fast as it goes
    uint64_t request = 0, answer = 0;
  };
  using Done = std::function<void(const Status&)>;
  void request(int64_t bytes, const Rates& rates, std::function<Answer()> serve, Done done);

  // Calls `done` once, whatever comes first, in this life of the process.
  Done once(Done done);
  // As connections do while transfers fail; then `answer` is told.
  bool breaks(const Done& answer);
  // Bytes to another peer; `arrived` runs there, in no process.
  void give(NodeId to, int64_t bytes, uint64_t rate, std::function<void()> arrived);

 private:
  struct Transfer {
    int64_t bytes = 0, speed = 0;  // bytes a second: of the path, or its rate
    Done done{};                   // fails where it was given up before it began
  };
  struct Queue {
    std::deque<Transfer> waiting{};
    uint64_t life = 0;  // what is on its way since an earlier one is followed by nothing
    bool is_busy = false;
  };
  struct Way {  // to the broker and back
    Queue up{}, down{};
  };
  Way& way_of(uint64_t rate) { return rate != 0 ? rated_ : plain_; }
  void enter(Queue& queue, Network::Direction direction, Transfer transfer);
  void begin_first(Queue& queue, Network::Direction direction);
  void give_up_waiting(Queue& queue);
  void end(Queue& queue);
  void end_connection();  // with the broker
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
  Way plain_, rated_;
  std::map<std::pair<NodeId, bool>, Queue> given_;  // by receiver, and whether at a rate
  uint64_t served_by_ = 0;                          // the broker's life that requests go to
};

}  // namespace weft::sim
