// The core's thread: takes events off the bus, drives the state machine, makes records durable, carries
// effects out. Owns the store; nothing else touches it.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "broker/broker.h"
#include "broker/service/blob_leases.h"
#include "broker/service/bus.h"
#include "broker/service/planning.h"
#include "broker/service/served.h"
#include "broker/store.h"
#include "broker/turn.h"
#include "net/worker.h"

namespace weft::broker {

struct CoreOptions {
  BrokerOptions broker;
  Duration collect_every = std::chrono::minutes(30);  // blobs that nobody speaks of
  PlanningOptions planning;
  ServedView* served = nullptr;  // hears of jobs that serve; outlives the core
  std::function<void(const std::string& line)> log;
};

class Core {
 public:
  // Takes over the store. `bus`, `blobs`, `leases` and `feeds` outlive this.
  static Result<std::unique_ptr<Core>> start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                             storage::BlobStore& blobs, BlobLeases& leases, JobFeeds& feeds,
                                             std::function<void(const Error&)> on_fatal);
  ~Core();  // stops and joins

 private:
  Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
       BlobLeases& leases, JobFeeds& feeds, std::function<void(const Error&)> on_fatal,
       const StoredState& state);
  static Now now();
  void run();
  void handle(const ToCore& message);
  void on_gate_ready(uint32_t gate);
  void introduce(Introduced event);
  void look_at_tokens();
  void step(const Event& event);
  void commit();
  bool append();
  bool fail_with(const Error& error);  // false
  void publish_events(std::span<const Record> records);
  void close_sender(ConnectionId connection);
  void open_feed(OpenFeed& feed);
  void say_feed(proto::JobNumber job, ToGate what);
  void check(CheckSubmission& request);
  void carry_out(Effect& effect);
  void send_events(const SendEvents& request);
  void answer(ConnectionId connection, proto::Message message);
  void to_gate(ConnectionId connection, ToGate message);
  void to_gates(ToGate message);  // to each
  void publish(PublishServed& served);
  std::optional<Instant> heard_until() const;
  void from_worker(std::function<void()> work);  // any thread: runs on the core's

  // Blobs (core_blobs.cc)
  void refer_to_blobs(std::span<const Record> records);
  void remove_old_files();
  void note_what_it_may_fetch(const Send& send);
  void look_for_damage(const Received& report);
  void verify_blobs(VerifyBlobs& request);
  void collect_garbage();

  CoreOptions options_;
  std::unique_ptr<Store> store_;
  Bus& bus_;
  std::function<void(const Error&)> on_fatal_;
  CoreSocket socket_;
  Broker broker_;
  JobFeeds& job_feeds_;
  storage::BlobStore& blobs_;
  BlobLeases& leases_;
  Instant next_collection_{};
  Turn turn_;
  std::map<ConnectionId, uint64_t> taken_;  // bytes of messages since the last commit: the gate may send more
  bool disk_is_full_ = false;

  std::map<uint32_t, Instant> gates_;  // that are there; until when each has told whom it heard
  // What a gate that comes later is told, too.
  std::map<proto::JobNumber, ToGate> feeds_;
  // Feeds that are being opened, with their newest keys.
  std::map<proto::JobNumber, proto::Secret> opening_;
  std::set<proto::Secret> tickets_;
  std::map<proto::JobNumber, ServedEntry> entries_;
  std::shared_ptr<const Published> peers_;

  struct Known {  // a connection that is there
    PeerId who{};
    std::shared_ptr<const proto::Message> stage{}, stand_by{};  // the last that it was told
  };
  std::map<ConnectionId, Known> connections_;
  std::map<PeerId, Instant> damage_looked_for_;  // because it said so
  std::vector<Digest> transient_kept_;           // by the last round

  Mutex inbox_mutex_, wake_mutex_;
  std::deque<std::function<void()>> inbox_ WEFT_GUARDED_BY(inbox_mutex_);
  std::unique_ptr<GateSocket> wake_ WEFT_GUARDED_BY(wake_mutex_);
  std::atomic<bool> stopping_{false}, failed_{false};
  std::unique_ptr<net::Worker> disk_thread_, served_thread_;
  std::unique_ptr<Planning> planning_;
  std::thread thread_;
};

}  // namespace weft::broker
