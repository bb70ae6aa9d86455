// A peer's process in the simulation: the production machine (peer/machine), and around it what peer/service
// does with sockets and threads, on the virtual clock.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "sim/peer_links.h"
#include "sim/peer_shell.h"
#include "sim/peer_tasks.h"
#include "sim/peer_transfers.h"

namespace weft::sim {

class PeerHost {
 public:
  using Options = PeerShell::Options;
  using FindHost = std::function<PeerHost*(NodeId)>;
  PeerHost(World& world, Network& network, BrokerHost& broker, Checkers& checkers, Options options,
           uint64_t seed, FindHost find_host);

  void start();
  // The process ends; `silent`: its machine too, so that nobody is told.
  void crash(bool silent);
  void freeze(bool frozen);
  void drain();
  void lose_device();
  // What it is given from now on waits for so long.
  void hang_device(Duration duration) { tasks_.hang(duration); }
  bool hangs() const { return tasks_.hangs(); }
  // From now on, whenever it has left.
  void return_always() { returns_always_ = true; }
  // It comes back under another address: its connections are dead, and its old address is nobody's.
  void move();
  void set_speed(uint64_t speed) { shell_.options.speed = speed; }
  void set_transfers_fail(bool fail) { transfers_.set_fails(fail); }

  bool alive() const { return shell_.machine != nullptr; }
  bool frozen() const { return shell_.process.frozen(); }
  bool holds_stage() const { return shell_.machine && shell_.machine->assignment() != nullptr; }
  NodeId node() const { return shell_.options.node; }
  const Options& options() const { return shell_.options; }
  uint32_t address() const { return address_; }
  // A blob, to another peer.
  void give(const peer::FetchBlob& effect, NodeId to, PeerLine::Done done) {
    shell_.run([this, effect, to, done = std::move(done)] { transfers_.give(effect, to, done); });
  }
  const peer::Peer* machine() const { return shell_.machine.get(); }

 private:
  using Effects = peer::PeerEffects;

  void listen();  // for other peers
  void act(Effects effects);
  void wake();
  void check_memory();

  void connect();
  void on_connected(uint64_t attempt, const Line& line);
  void drop_broker();
  void tell(const proto::Message& message);
  void tell_line(const proto::Message& message);
  void come_back();

  PeerShell shell_;
  PeerLinks links_;
  PeerTasks tasks_;
  PeerTransfers transfers_;

  uint32_t address_ = 0;
  Instant wake_at_ = Instant::max();
  uint64_t wakes_ = 0;
  uint64_t connection_ = 0;  // counts attempts and connections: older ones are dropped
  Line line_;
  bool report_to_drop_ = false;
  uint64_t events_ = 0;
  bool returns_always_ = false;
};

}  // namespace weft::sim
