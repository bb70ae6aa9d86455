// What the parts of a simulated peer's process share: the world around it, its machine, the stage that it
// has, and how what happens comes to the machine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "peer/machine/peer.h"
#include "sim/broker_host.h"
#include "sim/liars.h"
#include "sim/links.h"
#include "sim/peer_memory.h"
#include "sim/process.h"
#include "sim/runner.h"

namespace weft::sim {

class PeerHost;

struct PeerShell {
  struct Options {
    NodeId node = 0;
    PeerId key{};
    std::string fingerprint;
    bool reachable = true;     // by other peers; else only over the relay
    uint64_t promised = 1000;  // speed
    uint64_t speed = 1000;     // in truth
    Bytes memory{int64_t{8} << 30};
    Bug bug = Bug::None;
    std::shared_ptr<Liar> liar{};          // nothing: it says what is
    std::function<void()> at_agreement{};  // called when it begins a task of one
  };
  struct Stage {
    uint64_t generation = 0;
    std::shared_ptr<const proto::AssignStage> assignment{};
    std::unique_ptr<LinkSet> links{};
    std::shared_ptr<HashRunner> runner{};
  };

  World& world;
  Network& network;
  BrokerHost& broker;
  Checkers& checkers;
  Draw draw;
  Options options;
  std::function<PeerHost*(NodeId)> find_host;
  // Carries out what the machine wants.
  std::function<void(peer::PeerEffects)> act;

  Process process{};
  std::unique_ptr<peer::Peer> machine{};  // nullptr: the process has ended
  std::optional<Stage> stage{};
  Microbatches microbatches{};
  AgreedTensors agreed{};
  PeerBlobs blobs{};

  void run(std::function<void()> action) {  // now, or when it is thawed; not after this life
    if (machine) process.run(std::move(action));
  }
  void later(Duration delay, std::function<void()> action) {
    world.after(delay, [guarded = process.guard(), action = std::move(action)] { guarded(action); });
  }
  bool has_stage(uint64_t generation) const { return stage && stage->generation == generation; }
  // Unless it has that one, it has it from now on.
  void begin_stage(uint64_t generation, const std::shared_ptr<const proto::AssignStage>& assignment) {
    if (has_stage(generation)) return;
    retire_links();
    stage = Stage{.generation = generation, .assignment = assignment};
  }
  // Something of them may be on the stack.
  void retire_links() {
    if (!stage || !stage->links) return;
    world.after(Duration{}, [links = std::shared_ptr<LinkSet>(std::move(stage->links))] {});
  }
};

}  // namespace weft::sim
