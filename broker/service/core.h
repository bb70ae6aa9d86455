// The core's thread: takes events off the bus, drives the state machine, makes records durable, carries
// effects out. Owns the store; nothing else touches it.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "broker/broker.h"
#include "broker/service/bus.h"
#include "broker/service/planning.h"
#include "broker/store.h"
#include "net/worker.h"

namespace weft::broker {

struct CoreOptions {
  BrokerOptions broker;
  PlanningOptions planning;
  std::function<void(const std::string& line)> log;
};

class Core {
 public:
  // Takes over the store. `blobs`, `feeds` and `bus` outlive this.
  static Result<std::unique_ptr<Core>> start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                             storage::BlobStore& blobs, JobFeeds& feeds,
                                             std::function<void(const Error&)> on_fatal);
  ~Core();  // stops and joins

 private:
  Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
       JobFeeds& feeds, std::function<void(const Error&)> on_fatal, const StoredState& state);
  void run();
  void handle(const BusMessage& message);
  void introduce(const BusMessage& message);
  TokenVerdict judge(const proto::Hello& hello);
  void step(const Event& event);
  void commit();
  bool append(const std::vector<Record>& records);
  void open_feed(OpenFeed& feed);
  void remove_old_files(const StoredState& state);
  void put_damaged_blobs_aside();
  void carry_out(Effect& effect);
  void send_events(const SendEvents& request);
  void republish();
  void collect_garbage();
  void send(ConnectionId connection, const proto::Message& message);
  void to_gate(ConnectionId connection, BusKind kind, std::string payload = {});
  void to_gates(BusKind kind, uint64_t number, std::string payload);
  void from_worker(std::function<void()> work);  // any thread: runs on the core's

  CoreOptions options_;
  std::unique_ptr<Store> store_;
  Bus& bus_;
  std::function<void(const Error&)> on_fatal_;
  CoreSocket socket_;
  Broker broker_;
  JobFeeds& feeds_;
  storage::BlobStore& blobs_;
  std::map<proto::JobNumber, proto::Secret> opening_;  // feeds that are being opened, with their newest keys
  Instant next_collection_{};
  Effects pending_;                         // of this turn, not yet durable
  std::map<ConnectionId, uint64_t> taken_;  // bytes of messages since the last commit: the gate may send more
  bool disk_is_full_ = false;
  bool gate_is_there_ = false;
  std::map<proto::JobNumber, proto::JobStatus> statuses_;
  proto::PeerList peers_;
  std::map<ConnectionId, PeerId> introduced_;

  std::mutex inbox_mutex_;
  std::deque<std::function<void()>> inbox_;  // guarded by inbox_mutex_
  std::mutex wake_mutex_;
  std::unique_ptr<GateSocket> wake_;  // guarded by wake_mutex_
  std::atomic<bool> stopping_{false}, failed_{false}, looks_for_damage_{false};
  std::unique_ptr<net::Worker> disk_thread_;
  std::unique_ptr<Planning> planning_;
  std::thread thread_;
};

}  // namespace weft::broker
