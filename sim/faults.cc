#include "sim/faults.h"

#include <array>

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

Faults::Faults(Cast cast, uint64_t seed)
    : cast_(std::move(cast)), draw_(seed, 0x6661756c), agreements_(seed, 0x61677265) {
  if (agreements_.one_in(2)) agreements_between_ = agreements_.between(10, 100);
  // Some kinds only, so that each is seen alone, too.
  const uint64_t share = draw_.between(1, 4);
  for (uint8_t kind = 0; kind < static_cast<uint8_t>(Fault::kCount); ++kind)
    if (draw_.below(4) < share) kinds_.push_back(static_cast<Fault>(kind));
  if (kinds_.empty()) kinds_.push_back(static_cast<Fault>(draw_.below(static_cast<uint64_t>(Fault::kCount))));
  mean_ = draw_.doubling(seconds(2), seconds(40));
}

void Faults::start() {
  phase_ = 1;
  next();
}

void Faults::next() {
  // With restarts alone, one is over, links through its relay too, before the next.
  const Duration least = phase_ == 2 ? Duration(seconds(25)) : Duration{};
  cast_.world->after(least + draw_.between(Duration{}, 2 * mean_), [this, phase = phase_] {
    if (phase != phase_) return;
    strike(phase == 1 ? kinds_[draw_.below(kinds_.size())] : Fault::BrokerCrash);
    next();
  });
}

void Faults::until(Duration delay, std::function<void()> undo) {
  cast_.world->after(delay, [this, phase = phase_, undo = std::move(undo)] {
    if (phase == phase_) undo();  // else everything was put right
  });
}

PeerHost* Faults::any_peer() {
  auto& peers = *cast_.peers;
  // Rather those that work.
  for (int tries = 0; tries < 4; ++tries) {
    PeerHost& peer = *peers[draw_.below(peers.size())];
    if (peer.alive() && (tries > 1 || peer.holds_stage())) return &peer;
  }
  return nullptr;
}

void Faults::restart_later(PeerHost& peer, Duration delay) {
  until(delay, [&peer] {
    if (!peer.alive()) peer.start();
  });
}

void Faults::restart_broker_later(Duration delay) {
  until(delay, [this] {
    if (!cast_.broker->alive()) cast_.broker->start();
  });
}

void Faults::at_agreement(NodeId node) {
  if (phase_ != 1 || agreements_between_ == 0 || !agreements_.one_in(agreements_between_)) return;
  constexpr std::array kinds = {Fault::PeerCrash,  Fault::PeerVanish, Fault::PeerFreeze,
                                Fault::DeviceLost, Fault::Partition,  Fault::PairPartition,
                                Fault::Break,      Fault::BrokerCrash};
  const Fault fault = kinds[agreements_.below(kinds.size())];
  until(agreements_.between(Duration{}, Duration(milliseconds(500))), [this, node, fault] {
    if (fault == Fault::BrokerCrash) return strike(fault);
    for (auto& peer : *cast_.peers)
      if (peer->node() == node && peer->alive()) return strike_peer(fault, *peer);
  });
}

void Faults::strike(Fault fault) {
  cast_.world->note(What::Fault, static_cast<uint64_t>(fault));
  if (fault >= Fault::BrokerCrash && fault != Fault::BadTransfers) return strike_broker(fault);
  if (fault == Fault::PeerJoin) {
    if (PeerHost* peer = cast_.join()) peer->start();
    return;
  }
  if (PeerHost* peer = any_peer()) strike_peer(fault, *peer);
}

void Faults::strike_broker(Fault fault) {
  BrokerHost& broker = *cast_.broker;
  switch (fault) {
    case Fault::BrokerCrash: {
      if (!broker.alive()) return;
      // With restarts alone it is there again before anything runs out; else perhaps much later.
      const Duration away = phase_ == 2 || draw_.below(3) != 0 ? draw_.between(milliseconds(200), seconds(3))
                                                               : draw_.doubling(seconds(3), seconds(60));
      if (draw_.one_in(2))
        return broker.crash_in_append([this, away, phase = phase_] {
          if (phase == phase_)
            restart_broker_later(away);
          else
            cast_.broker->start();
        });
      broker.crash();
      return restart_broker_later(away);
    }
    case Fault::BrokerFreeze:
      if (!broker.alive() || broker.frozen()) return;
      broker.freeze(true);
      return until(draw_.doubling(milliseconds(500), seconds(20)), [&broker] {
        if (broker.alive()) broker.freeze(false);
      });
    case Fault::SlowDisk:
      broker.set_slow_disk(true);
      return until(draw_.doubling(seconds(2), seconds(30)), [&broker] { broker.set_slow_disk(false); });
    case Fault::DiskFull:
      broker.set_disk_full(true);
      return until(draw_.doubling(seconds(1), seconds(30)), [&broker] { broker.set_disk_full(false); });
    default:
      return broker.jump_clock(static_cast<int64_t>(draw_.below(20'000'000)) - 10'000'000);
  }
}

void Faults::strike_peer(Fault fault, PeerHost& peer) {
  Network& network = *cast_.network;
  const NodeId node = peer.node();
  cast_.world->note(What::Fault, static_cast<uint64_t>(fault), node);
  switch (fault) {
    case Fault::PeerCrash:
      peer.crash(/*silent=*/false);
      return restart_later(peer, draw_.doubling(milliseconds(500), seconds(60)));
    case Fault::PeerVanish:
      peer.crash(/*silent=*/true);
      return restart_later(peer, draw_.doubling(seconds(1), seconds(60)));
    case Fault::PeerFreeze:
      peer.freeze(true);
      return until(draw_.doubling(milliseconds(500), seconds(60)), [&peer] { peer.freeze(false); });
    case Fault::PeerLeave:
      peer.drain();
      return restart_later(peer, draw_.doubling(seconds(10), seconds(90)));
    case Fault::PeerSlow:
      peer.set_speed(std::max<uint64_t>(1, peer.options().promised / 100));
      return until(seconds(120), [&peer] { peer.set_speed(peer.options().promised); });
    case Fault::PeerMoves:
      peer.freeze(true);
      return until(draw_.doubling(seconds(1), seconds(40)), [&peer] {
        if (!peer.alive()) return;
        peer.freeze(false);
        peer.move();
      });
    case Fault::Twin: {
      for (auto& twin : *cast_.twins)
        if (!twin->alive() && twin->options().key == peer.options().key) {
          twin->start();
          return until(draw_.doubling(seconds(1), seconds(40)), [&twin] { twin->crash(/*silent=*/false); });
        }
      return;
    }
    case Fault::DeviceLost:
      peer.lose_device();
      return restart_later(peer, draw_.doubling(seconds(1), seconds(60)));
    case Fault::DeviceHangs:
      return peer.hang_device(draw_.doubling(seconds(5), seconds(90)));
    case Fault::Break:
      return network.break_one(node, draw_);
    case Fault::Blackhole:
      return network.blackhole_one(node, draw_);
    case Fault::Partition: {
      const uint64_t directions = draw_.between(1, 3);
      network.isolate(node, directions & 1, directions & 2);
      return until(draw_.doubling(milliseconds(500), seconds(40)),
                   [&network, node] { network.isolate(node, false, false); });
    }
    case Fault::PairPartition: {
      const NodeId other = (*cast_.peers)[draw_.below(cast_.peers->size())]->node();
      network.cut(node, other, true);
      if (draw_.one_in(2)) network.cut(other, node, true);
      return until(draw_.doubling(milliseconds(500), seconds(40)), [&network, node, other] {
        network.cut(node, other, false);
        network.cut(other, node, false);
      });
    }
    default:
      peer.set_transfers_fail(true);
      return until(draw_.doubling(seconds(2), seconds(30)), [&peer] { peer.set_transfers_fail(false); });
  }
}

void Faults::restart_only() {
  stop();
  phase_ = 2;
  mean_ = seconds(10);
  next();
}

void Faults::stop() {
  phase_ = phase_ + 10;
  Network& network = *cast_.network;
  network.heal();
  BrokerHost& broker = *cast_.broker;
  broker.set_disk_full(false);
  broker.set_slow_disk(false);
  if (broker.frozen()) broker.freeze(false);
  if (!broker.alive()) broker.start();
  for (auto& twin : *cast_.twins)
    if (twin->alive()) twin->crash(/*silent=*/false);
  for (auto& peer : *cast_.peers) {
    peer->set_transfers_fail(false);
    peer->set_speed(peer->options().promised);
    if (peer->frozen()) peer->freeze(false);
    peer->return_always();  // some are about to leave still
    if (!peer->alive()) peer->start();
  }
}

}  // namespace weft::sim
