// A gate: holds the connections of peers and clients, and lets through to the core only what an authenticated
// one may say, decoded. Answers heartbeats, and serves blobs, microbatches of data, past and new events, and
// the relay by itself.
//
// A stranger can make it hold one handshake for its deadline, then one frame of at most kHelloSizeMax bytes;
// both are counted against the limits of net/listener.h. Who was admitted is read from as fast as core and
// disk take what it says, and is sent what it asks for as fast as it takes that.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "broker/service/blob_leases.h"
#include "broker/service/bus.h"
#include "broker/service/download_desk.h"
#include "broker/service/event_desk.h"
#include "broker/service/feed_desk.h"
#include "broker/service/intake.h"
#include "broker/service/served.h"
#include "broker/service/stage_desk.h"
#include "broker/service/upload_desk.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/worker.h"
#include "proto/codec/codec.h"
#include "storage/blob_store.h"

namespace weft::broker {

struct GateOptions {
  uint32_t number = 0;  // each gate of a broker has another
  net::Endpoint listen;
  const security::Identity* identity = nullptr;  // outlives this
  net::ListenLimits limits;
  Duration greeting_deadline = std::chrono::seconds(10);  // from the handshake to the core's answer
  Duration unread_deadline = std::chrono::seconds(30);    // for a connection to take some of what is sent
  Arrivals::Options arrivals{};                           // of frames of more than 64 KiB
  uint64_t egress = 0;           // bytes a second, of blobs that nobody waits for; 0: no limit
  ServedView* served = nullptr;  // hears tokens; outlives this
  std::function<void(const std::string& line)> log;
};

class Gate final : private Connections,
                   private EventDesk::Outside,
                   private DownloadDesk::Outside,
                   private UploadDesk::Outside,
                   private FeedDesk::Outside {
 public:
  // `bus`, `blobs`, `leases` and `feeds` outlive this.
  static Result<std::unique_ptr<Gate>> start(GateOptions options, Bus& bus, storage::BlobStore& blobs,
                                             BlobLeases& leases, const JobFeeds& feeds);
  ~Gate() override;  // closes everything and joins

  net::Endpoint endpoint() const { return endpoint_; }
  // As TellPeer (served.h).
  void tell_peer(const PeerId& to, proto::Message message);

 private:
  struct Client;
  using ClientPtr = std::shared_ptr<Client>;

  Gate(GateOptions options, Bus& bus, storage::BlobStore& blobs, BlobLeases& leases, const JobFeeds& feeds);
  Status open();
  void drain_bus();
  void read_stream();
  void on_bus(const ToGate& message);
  void on_published(const std::shared_ptr<const Published>& value);

  void on_connection(const net::ConnectionPtr& connection);
  void on_frame(const ClientPtr& client, net::InFrame frame);
  void dispatch(const ClientPtr& client, net::InFrame frame);
  void on_drained(const ClientPtr& client);
  void introduce(const ClientPtr& client, const net::InFrame& frame);
  void admit(const ClientPtr& client, proto::Role role);
  void set_limits(const ClientPtr& client);
  void on_message_frame(const ClientPtr& client, net::InFrame frame);
  void on_heartbeat(const ClientPtr& client, const proto::Heartbeat& heartbeat);
  bool serve_here(const ClientPtr& client, const proto::Message& message);
  void send_from_core(const ClientPtr& client, const Send& sent);
  bool forget(const ClientPtr& client);  // false: it was already
  void on_closed(const ClientPtr& client, const std::string& reason);
  void close(const ClientPtr& client, const std::string& reason);
  void refuse(const ClientPtr& client, const Error& error);
  void send(const ClientPtr& client, const proto::Message& message);

  // What desks want of connections
  ClientPtr find(ConnectionId connection) const;  // null: it has gone
  size_t bytes_queued(ConnectionId to) const override;
  void send(ConnectionId to, const proto::Message& message) override;
  void send_frame(ConnectionId to, net::OutFrame frame) override;
  void refuse(ConnectionId which, const Error& why) override;
  bool may_ask(ConnectionId whose) const override;
  void ask(ConnectionId whose, const proto::GetEvents& page) override;
  void come_back(ConnectionId whose) override;
  void spare_turn_in(Duration wait) override;
  void work(ConnectionId whose, size_t size, Work work) override;
  void read(ConnectionId whose, const proto::GetMicrobatch& request) override;

  void tick();
  void close_who_do_not_read(bool was_held_up);
  void tell_who_was_heard();
  template <typename T>
  void say(T what, uint64_t size = 0);
  template <typename T>
  void to_core(const ClientPtr& client, T what, size_t size);

  // Served models: neither requests nor tokens wait for the core or its store
  void on_progress(const ClientPtr& client, const proto::ServeProgress& progress);
  void send_to_stage(const PeerId& to, const proto::Message& message);

  // How much at once
  void begin_to_arrive(const ClientPtr& client, size_t size);
  void let_arrive();
  void close_who_arrive_slowly();
  void pace(const ClientPtr& client);

  bool relay_ticket_is_granted(const net::RelayTicket& ticket);

  GateOptions options_;
  Bus& bus_;
  BlobLeases& leases_;
  Feeder feeder_;  // used on feeder_thread_ alone
  net::Endpoint endpoint_;

  net::Loop loop_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<GateSocket> core_;
  std::unique_ptr<Subscription> stream_;
  std::unique_ptr<net::Loop::Watch> core_watch_, stream_watch_;
  std::unique_ptr<net::Loop::Timer> timer_, egress_timer_;
  bool is_drain_posted_ = false;
  uint64_t next_connection_ = 1;
  std::map<uint64_t, ClientPtr> clients_;
  Intake intake_;
  Instant ticked_at_{};
  std::set<proto::Secret> tickets_;  // of the runs' links; each is good for as long as it is granted
  std::shared_ptr<const proto::PeerList> peers_;  // the newest
  StageDesk stages_{loop_.now()};
  EventDesk events_{*this, *this};
  FeedDesk feeds_{*this, *this};
  DownloadDesk downloads_;
  UploadDesk uploads_;

  std::unique_ptr<net::Worker> files_thread_, feeder_thread_;
  std::thread thread_;
};

}  // namespace weft::broker
