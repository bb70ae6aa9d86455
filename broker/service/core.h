// The core's thread: takes events off the bus, drives the state machine, makes records durable, carries
// effects out, or hands them to the desk whose they are: what gates are told (gate_book.h), feeds
// (feed_openings.h), blobs (blob_keeper.h). Owns the store; nothing else touches it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "broker/broker.h"
#include "broker/service/blob_keeper.h"
#include "broker/service/bus.h"
#include "broker/service/disk_state.h"
#include "broker/service/feed_openings.h"
#include "broker/service/gate_book.h"
#include "broker/service/inbox.h"
#include "broker/service/planning.h"
#include "broker/service/served.h"
#include "broker/store.h"
#include "broker/turn.h"
#include "net/worker.h"
#include "web/metrics_page.h"

namespace weft::broker {

struct CoreOptions {
  BrokerOptions broker;
  Duration collect_every = std::chrono::minutes(30);  // blobs that nobody speaks of
  PlanningOptions planning;
  ServedView* served = nullptr;  // hears of jobs that serve; outlives the core
  // What ended jobs left goes after so long; nothing: it stays.
  std::optional<Duration> keep{};
  std::function<DiskState()> look_at_disk{};      // on a thread that may wait for it
  std::shared_ptr<web::LatestMetrics> metrics{};  // is told what the broker counts; null: nobody watches
  std::function<void(const std::string& line)> log;
};

class Core final : private GateBook::Outside, private BlobKeeper::Outside {
 public:
  // Takes over the store. `bus`, `blobs`, `leases` and `feeds` outlive this.
  static Result<std::unique_ptr<Core>> start(CoreOptions options, std::unique_ptr<Store> store, Bus& bus,
                                             storage::BlobStore& blobs, BlobLeases& leases, JobFeeds& feeds,
                                             std::function<void(const Error&)> on_fatal);
  ~Core() override;  // stops and joins

 private:
  Core(CoreOptions options, std::unique_ptr<Store> store, Bus& bus, storage::BlobStore& blobs,
       BlobLeases& leases, JobFeeds& feeds, std::function<void(const Error&)> on_fatal,
       const StoredState& state);
  static Now now();
  void run();
  void handle(const ToCore& message);
  void receive(Received message);
  void introduce(Introduced event);
  void look_at_tokens();
  void step(const Event& event);
  void commit();
  bool append();
  bool fail_with(const Error& error);  // false
  void on_durable(std::span<const Record> records);
  void forget(ConnectionId connection);
  void close_sender(ConnectionId connection);
  void open_feed(OpenFeed& feed);
  void check(CheckSubmission& request);
  void carry_out(Effect& effect);
  void send_events(const SendEvents& request);
  void answer(ConnectionId connection, proto::Message message);
  void publish_served(PublishServed& served);
  void collect_garbage();
  void forget_ended(int64_t unix_ms);
  void look_at_disk();

  // What desks want
  void send(uint32_t gate, std::shared_ptr<const ToGate> message) override;
  void publish(std::shared_ptr<const Published> value) override;
  void on_disk(std::function<void()> work) override;
  void on_verified(const BlobsVerified& verified) override;
  void on_kept(const BlobsKept& kept) override;
  void on_line(const std::string& line) override;

  CoreOptions options_;
  std::unique_ptr<Store> store_;
  std::function<void(const Error&)> on_fatal_;
  CoreSocket socket_;
  Broker broker_;
  storage::BlobStore& blobs_;
  Turn turn_;
  std::map<ConnectionId, uint64_t> taken_;  // bytes of messages since the last commit: the gate may send more
  bool disk_is_full_ = false;

  // Those that are there, and whose each is, for people: the label of the token that it showed, or its key.
  std::map<ConnectionId, std::string> connections_;
  DiskWatch disk_;

  GateBook gates_{*this};
  FeedOpenings feeds_;
  BlobKeeper keeper_;
  Inbox inbox_;
  std::atomic<bool> stopping_{false}, failed_{false};
  std::unique_ptr<net::Worker> disk_thread_, served_thread_;
  std::unique_ptr<Planning> planning_;
  std::thread thread_;
};

}  // namespace weft::broker
