// The broker's process in the simulation: the production core, driven as broker/service/core.cc does, with
// its planner, its feeds, its blobs and its relay.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "broker/broker.h"
#include "broker/turn.h"
#include "sim/broker_bugs.h"
#include "sim/broker_planner.h"
#include "sim/bugs.h"
#include "sim/checkers.h"
#include "sim/disk.h"
#include "sim/network.h"
#include "sim/process.h"
#include "sim/relay.h"

namespace weft::sim {

class BrokerHost {
 public:
  struct Options {
    broker::BrokerOptions broker;
    Duration append_low = std::chrono::microseconds(100), append_high = std::chrono::milliseconds(5);
    Bug bug = Bug::None;
    bool plans_by_pace = false;  // BrokerPlanner::Options::by_pace
  };
  BrokerHost(World& world, Network& network, SimStore& store, SimBlobs& blobs, Checkers& checkers,
             const std::vector<JobSpec>& specs, Options options, uint64_t seed);

  void start();
  void crash();
  // In the middle of the next append, where there is most to lose; then calls `crashed`.
  void crash_in_append(std::function<void()> crashed) { crashed_ = std::move(crashed); }
  bool alive() const { return core_ != nullptr; }
  void freeze(bool frozen);
  bool frozen() const { return process_.frozen(); }
  void set_slow_disk(bool slow) { slow_disk_ = slow; }
  void set_disk_full(bool full);
  void stop_moves_by_chance() { planner_.stop_moves_by_chance(); }
  void jump_clock(int64_t ms) { unix_offset_ms_ += ms; }
  uint64_t life() const { return process_.life(); }

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
  void relay(NodeId from, const proto::Secret& ticket, Relay::Joined joined);

  // Every process that knows a peer's key.
  void set_key(NodeId node, const PeerId& key) { keys_[node] = key; }
  NodeId node_of(const PeerId& key) const;
  const broker::Broker* core() const { return core_.get(); }

 private:
  struct Client {
    Line line;
    bool introduced = false;
  };
  struct Feed {
    proto::Secret key{};
    bool shifted = false;
  };

  broker::Now now() const;
  void accept(const Line& line, const Network::Accepted& accepted);
  void on_packet(broker::ConnectionId id, const Packet& packet);
  void enqueue(broker::Event event);
  void turn();
  void tick();
  void step(const broker::Event& event);
  void commit();
  void append();
  void finish_turn();
  void carry_out(broker::Effect& effect);
  void close(broker::ConnectionId connection);
  void send(const broker::Send& effect);
  BrokerPlanner::Done enqueued();  // on this life's queue
  Duration append_time();

  World& world_;
  Network& network_;
  SimStore& store_;
  SimBlobs& blobs_;
  Checkers& checkers_;
  Options options_;
  Draw draw_;
  std::map<NodeId, PeerId> keys_;

  std::unique_ptr<broker::Broker> core_;
  Process process_;
  bool slow_disk_ = false;
  std::function<void()> crashed_;
  std::deque<broker::Event> inbox_;
  broker::Turn turn_;
  bool committing_ = false, turn_scheduled_ = false;
  std::map<broker::ConnectionId, Client> clients_;
  broker::ConnectionId next_connection_ = 1;
  std::map<proto::JobNumber, Feed> feeds_;
  Relay relay_;
  BrokerPlanner planner_;
  Instant next_collection_{}, ticked_{};
  int64_t unix_offset_ms_ = 1'700'000'000'000;
  BrokerBugs bugs_;
};

}  // namespace weft::sim
