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
#include "broker/service/planner.h"
#include "broker/store.h"
#include "broker/turn.h"
#include "net/worker.h"

namespace weft::broker {

struct CoreOptions {
  BrokerOptions broker;
  std::filesystem::path jobs_folder;
  std::function<void(const std::string& line)> log;
};

class Core {
 public:
  // Takes over the store. `blobs`, `contexts` and `bus` outlive this.
  static Result<std::unique_ptr<Core>> start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                             storage::BlobStore& blobs, JobContexts& contexts,
                                             std::function<void(const Error&)> on_fatal);
  ~Core();  // stops and joins

 private:
  Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
       JobContexts& contexts, std::function<void(const Error&)> on_fatal, const StoredState& state);
  void run();
  void handle(const BusMessage& message);
  void introduce(const BusMessage& message);
  TokenVerdict judge(const proto::Hello& hello);
  void step(const Event& event);
  void commit();
  bool append();
  void open_feed(OpenFeed& feed);
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
  Planner planner_;  // used on planner_thread_ alone
  JobContexts& contexts_;
  storage::BlobStore& blobs_;
  Instant next_collection_{};
  Turn turn_;
  std::map<ConnectionId, uint64_t> taken_;  // bytes of messages since the last commit: the gate may send more
  bool disk_is_full_ = false;
  bool gate_is_there_ = false;
  std::map<proto::JobNumber, proto::JobStatus> statuses_;
  proto::PeerList peers_;
  std::map<ConnectionId, PeerId> introduced_;

  std::mutex inbox_mutex_;
  std::deque<std::function<void()>> inbox_;  // guarded by inbox_mutex_
  std::unique_ptr<GateSocket> wake_;         // used on planner_thread_ alone
  std::atomic<bool> stopping_{false}, failed_{false}, looks_for_damage_{false};
  std::unique_ptr<net::Worker> planner_thread_, disk_thread_;
  std::thread thread_;
};

}  // namespace weft::broker
