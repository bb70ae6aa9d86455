// A peer's process in the simulation: the production machine (peer/machine), and around it what peer/service
// does with sockets and threads, on the virtual clock.
#pragma once

#include <memory>
#include <vector>

#include "peer/machine/peer.h"
#include "sim/broker_host.h"
#include "sim/liars.h"
#include "sim/links.h"
#include "sim/peer_line.h"
#include "sim/peer_memory.h"
#include "sim/process.h"
#include "sim/runner.h"

namespace weft::sim {

class PeerHost {
 public:
  struct Options {
    NodeId node = 0;
    PeerId key{};
    std::string fingerprint;
    bool reachable = true;     // by other peers; else only over the relay
    uint64_t promised = 1000;  // speed
    uint64_t speed = 1000;     // in truth
    Bytes memory{int64_t{8} << 30};
    Bug bug = Bug::None;
    std::shared_ptr<Liar> liar{};  // nothing: it says what is
  };
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
  void hang_device(Duration duration) { device_.hang(world_.now(), duration); }
  bool hangs() const { return device_.hangs(world_.now()); }
  // From now on, whenever it has left.
  void return_always() { returns_always_ = true; }
  // It comes back under another address: its connections are dead, and its old address is nobody's.
  void move();
  void set_speed(uint64_t speed) { options_.speed = speed; }
  void set_transfers_fail(bool fail) { transfers_.set_fails(fail); }

  bool alive() const { return machine_ != nullptr; }
  bool frozen() const { return process_.frozen(); }
  bool holds_stage() const { return machine_ && machine_->assignment() != nullptr; }
  NodeId node() const { return options_.node; }
  const Options& options() const { return options_; }
  uint32_t address() const { return address_; }
  const peer::Peer* machine() const { return machine_.get(); }

 private:
  using Effects = peer::PeerEffects;
  struct Stage {
    uint64_t generation;
    std::shared_ptr<const proto::AssignStage> assignment;
    std::unique_ptr<LinkSet> links;
    std::shared_ptr<HashRunner> runner;
  };
  struct Waiting {
    Line line;
    NodeId from = 0;
    proto::LinkHello hello;
    Instant since{};
  };

  void run(std::function<void()> action);  // now, or when it is thawed; not after this life
  void later(Duration delay, std::function<void()> action);
  void act(Effects effects);
  void wake();
  void tick_links(uint64_t generation);
  void retire_links();

  void connect();
  void drop_broker();
  void tell(const proto::Message& message);
  void tell_line(const proto::Message& message);
  void come_back();
  void accept(Line line, Network::Accepted accepted);
  PeerId key_of(NodeId node) const;
  // As peers advertise it: the node, and how often it has moved.
  static std::pair<NodeId, uint32_t> node_at(const std::string& address);
  void open_links(const peer::OpenLinks& effect);
  void on_tensor(uint64_t generation, const plan::Seat& from, const TensorPacket& packet, bool again);
  void probe(const proto::ProbeLink& link);
  void make_runner(const peer::MakeRunner& effect);
  void run_task(const peer::RunTask& effect);
  void finish_task(const peer::RunTask& effect, const std::shared_ptr<HashRunner>& runner,
                   const HashRunner::Inputs& inputs, Duration busy);
  void hash(uint64_t generation, const peer::Task& task, std::vector<HashRunner::Named> named,
            const std::shared_ptr<HashRunner>& runner);
  void fetch_blob(const peer::FetchBlob& effect);
  void fetch_data(const peer::FetchData& effect);
  void offer(const peer::OfferBlobs& effect);
  void upload(const peer::UploadBlob& effect);
  void fetch_from_peer(const peer::FetchBlob& effect, std::function<void(const Status&)> done);
  void give(const peer::FetchBlob& effect, NodeId to, std::function<void(const Status&)> done);
  void note_timing(const plan::Seat& from, const proto::TensorHeader& header);
  void check_memory();

  World& world_;
  Network& network_;
  BrokerHost& broker_;
  Checkers& checkers_;
  Options options_;
  Draw draw_;
  FindHost find_host_;

  std::unique_ptr<peer::Peer> machine_;
  Process process_;
  uint32_t address_ = 0;
  Instant wake_at_ = Instant::max();
  uint64_t wakes_ = 0;
  uint64_t connection_ = 0;  // counts attempts and connections: older ones are dropped
  Line line_;
  bool report_to_drop_ = false;
  std::optional<Stage> stage_;
  std::vector<Waiting> arrivals_;
  Microbatches microbatches_;
  LinkTimings timings_;
  PeerBlobs blobs_;
  PeerLine transfers_;
  SimDevice device_;
  uint64_t events_ = 0, probes_ = 0;
  bool returns_always_ = false;
};

}  // namespace weft::sim
