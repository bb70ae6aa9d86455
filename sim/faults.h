// What goes wrong, and when: drawn from the seed, first of all which kinds at all and how often.
#pragma once

#include <memory>
#include <vector>

#include "sim/broker_host.h"
#include "sim/peer_host.h"

namespace weft::sim {

enum class Fault : uint8_t {
  PeerCrash,
  PeerVanish,  // with its machine
  PeerFreeze,
  PeerLeave,  // politely
  PeerJoin,
  PeerSlow,    // 1% of the promised speed
  PeerMoves,   // sleeps, and returns under a new address
  Twin,        // a second process with the key of the first
  DeviceLost,  // the process ends with it
  DeviceHangs,
  Break,          // a connection; one side hears of it later
  Blackhole,      // a connection that brings nothing any more
  Partition,      // all of a peer's paths, in one direction or both
  PairPartition,  // of two peers
  BrokerCrash,
  BrokerFreeze,
  SlowDisk,
  DiskFull,
  ClockJump,
  BadTransfers,
  kCount,
};

class Faults {
 public:
  struct Cast {  // whom faults happen to
    World* world;
    Network* network;
    BrokerHost* broker;
    std::vector<std::unique_ptr<PeerHost>>* peers;
    std::vector<std::unique_ptr<PeerHost>>* twins;
    std::function<PeerHost*()> join;  // a new peer; null: enough of them
  };
  Faults(Cast cast, uint64_t seed);

  void start();
  // The peer begins a task of an agreement: some are lost just then.
  void at_agreement(NodeId node);
  // From now on only the broker may be restarted.
  void restart_only();
  // No faults, and what is wrong is put right.
  void stop();

 private:
  void next();
  void strike(Fault fault);
  void strike_broker(Fault fault);
  void strike_peer(Fault fault, PeerHost& peer);
  void restart_later(PeerHost& peer, Duration delay);
  void restart_broker_later(Duration delay);
  void until(Duration delay, std::function<void()> undo);
  PeerHost* any_peer();

  Cast cast_;
  Draw draw_, agreements_;
  uint64_t agreements_between_ = 0;  // two that somebody is lost in, on average; 0: they are spared
  std::vector<Fault> kinds_;
  Duration mean_{};
  uint64_t phase_ = 0;
};

}  // namespace weft::sim
