// The broker's process in the simulation: the production core, driven as broker/service/core.cc does, with
// its planner, its feeds, its blobs and its relay.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "broker/broker.h"
#include "broker/turn.h"
#include "sim/bugs.h"
#include "sim/checkers.h"
#include "sim/disk.h"
#include "sim/network.h"

namespace weft::sim {

class BrokerHost {
 public:
  struct Options {
    broker::BrokerOptions broker;
    Duration append_low = std::chrono::microseconds(100), append_high = std::chrono::milliseconds(5);
    Bug bug = Bug::None;
    // Of candidates those with whom a step takes least, and a run that goes on moves where they are others;
    // else the first ones, and it moves by chance.
    bool plans_by_pace = false;
  };
  BrokerHost(World& world, Network& network, SimStore& store, SimBlobs& blobs, Checkers& checkers,
             const std::vector<JobSpec>& specs, Options options, uint64_t seed);

  void start();
  void crash();
  // In the middle of the next append, where there is most to lose; then calls `crashed`.
  void crash_in_append(std::function<void()> crashed) { crashed_ = std::move(crashed); }
  bool alive() const { return core_ != nullptr; }
  void freeze(bool frozen);
  bool frozen() const { return frozen_; }
  void set_slow_disk(bool slow) { slow_disk_ = slow; }
  void set_disk_full(bool full);
  void stop_moves_by_chance() { moves_by_chance_ = false; }
  void jump_clock(int64_t ms) { unix_offset_ms_ += ms; }
  uint64_t life() const { return life_; }

  // What its process does for somebody: now, or when it is thawed. Not at all when it dies before.
  void serve(std::function<void()> action);
  // Request and answer, for who reaches the broker; carried out there, at once. The transfer's time and what
  // breaks on the way are the caller's.
  Result<int64_t> blob_size(const Digest& blob) const;
  Status put_blob(const Digest& blob, int64_t size, bool durable);
  std::vector<Digest> missing(const std::vector<Digest>& blobs, bool durable);
  Result<uint64_t> microbatch(proto::JobNumber job, const proto::Secret& key,
                              const proto::AssignStage& assignment, proto::ProgramKind program, uint64_t step,
                              uint32_t microbatch) const;
  // Takes the side of a relayed link that comes with a ticket. Called with nothing when it is not granted or
  // the other does not come.
  using Joined = std::function<void(std::optional<Line>)>;
  void relay(NodeId from, const proto::Secret& ticket, Joined joined);

  // Every process that knows a peer's key.
  void set_key(NodeId node, const PeerId& key) { keys_[node] = key; }
  NodeId node_of(const PeerId& key) const;
  const broker::Broker* core() const { return core_.get(); }

 private:
  struct Client {
    Line line;
    bool introduced = false;
  };
  struct Relayed {
    NodeId node = 0;
    Joined joined;
    uint64_t number = 0;
  };

  broker::Now now() const;
  void run(std::function<void()> action);  // now, or when it is thawed
  void accept(Line line, Network::Accepted accepted);
  void on_packet(broker::ConnectionId id, const Packet& packet);
  void enqueue(broker::Event event);
  void turn();
  void tick();
  void step(const broker::Event& event);
  void commit();
  void append(uint64_t life);
  void finish_turn();
  void carry_out(broker::Effect& effect);
  void close(broker::ConnectionId connection);
  void send(const broker::Send& effect);
  void plan(broker::StartPlanning request);
  void reconsider(broker::Reconsider request);
  Result<broker::Reconsidered::Other> compare(uint32_t index, const broker::Reconsider& request,
                                              uint64_t turn, uint64_t secret) const;
  Status make_initial_values(const broker::PlannedRun& run, const JobSpec& spec);
  Duration append_time();

  World& world_;
  Network& network_;
  SimStore& store_;
  SimBlobs& blobs_;
  Checkers& checkers_;
  const std::vector<JobSpec>& specs_;
  Options options_;
  Draw draw_;
  std::map<NodeId, PeerId> keys_;

  std::unique_ptr<broker::Broker> core_;
  uint64_t life_ = 0;
  bool frozen_ = false, slow_disk_ = false, moves_by_chance_ = true;
  std::function<void()> crashed_;
  std::vector<std::function<void()>> backlog_;
  std::deque<broker::Event> inbox_;
  broker::Turn turn_;
  bool committing_ = false, turn_scheduled_ = false;
  std::map<broker::ConnectionId, Client> clients_;
  broker::ConnectionId next_connection_ = 1;
  struct Feed {
    proto::Secret key{};
    bool shifted = false;
  };
  std::map<proto::JobNumber, Feed> feeds_;
  std::set<proto::Secret> tickets_;
  std::map<proto::Secret, Relayed> waiting_;
  uint64_t relays_ = 0;
  Instant planner_free_{}, next_collection_{}, ticked_{};
  int64_t unix_offset_ms_ = 1'700'000'000'000;
  // Bugs
  std::vector<broker::Send> spoken_;  // of the turn: before it is durable
  std::map<proto::JobNumber, broker::CheckpointCommitted> last_point_;
  std::set<broker::ConnectionId> resumed_;
  std::map<broker::ConnectionId, uint64_t> added_;
  std::map<std::pair<proto::JobNumber, proto::PlanVersion>, double> last_norm_;
  std::map<proto::JobNumber, uint64_t> plans_;
};

}  // namespace weft::sim
