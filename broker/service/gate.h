// A gate: holds the connections of peers and clients, and lets through to the core only what an authenticated
// one may say, decoded. Answers heartbeats, and serves blobs, microbatches of data, past and new events, and
// the relay by itself: it hands what comes to the desk whose it is (desk.h).
//
// A stranger can make it hold one handshake for its deadline, then one frame of at most kHelloSizeMax bytes;
// both are counted against the limits of net/listener.h. Who was admitted is read from as fast as core and
// disk take what it says, and is sent what it asks for as fast as it takes that.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "broker/service/download_desk.h"
#include "broker/service/event_desk.h"
#include "broker/service/feed_desk.h"
#include "broker/service/gate_bus.h"
#include "broker/service/intake.h"
#include "broker/service/served.h"
#include "broker/service/sessions.h"
#include "broker/service/stage_desk.h"
#include "broker/service/upload_desk.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/worker.h"

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
  std::shared_ptr<const weights::WeightIndex> weights{};  // that need not be uploaded; null: none
  std::function<void(const std::string& line)> log;
};

class Gate final : private GateBus::Outside,
                   private Sessions::Outside,
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
  Gate(GateOptions options, storage::BlobStore& blobs, BlobLeases& leases, const JobFeeds& feeds);
  void run(Bus& bus, std::promise<Status>& opened);
  Status open(Bus& bus);
  void tick();

  // What the core says
  void on_bus(const ToGate& message) override;
  void on_published(const std::shared_ptr<const Published>& value) override;
  void admit(ConnectionId which, proto::Role role);
  void on_taken(const Taken& taken);
  void on_page(const EventsPage& page);
  void send_from_core(const Send& sent);
  bool relay_ticket_is_granted(const net::RelayTicket& ticket);

  // What comes
  void on_begun(ConnectionId which) override { intake_.begin(which); }
  void on_frame(const SessionPtr& from, net::InFrame frame) override;
  void on_frame_begun(const SessionPtr& from, size_t size) override;
  void on_drained(const SessionPtr& whose) override;
  void on_ended(const SessionPtr& whose, const std::optional<std::string>& why) override;
  void dispatch(const SessionPtr& from, net::InFrame frame);
  void introduce(const SessionPtr& from, const net::InFrame& frame);
  void on_message_frame(const SessionPtr& from, net::InFrame frame);
  bool serve_peer(const SessionPtr& from, const proto::Message& message);
  bool serve_here(const SessionPtr& from, const proto::Message& message);
  bool serve_blobs(const SessionPtr& from, const proto::Message& message);
  void on_heartbeat(const SessionPtr& from, const proto::Heartbeat& heartbeat);
  void on_progress(const SessionPtr& from, const proto::ServeProgress& progress);
  void refuse(const SessionPtr& whom, std::string why);
  void to_core(ConnectionId from, decltype(ToCore::what) what, size_t size);

  // Where it goes
  void send_to_stage(const PeerId& to, const proto::Message& message);
  void set_limits(const Session& session);
  void let_arrive();
  void pace(ConnectionId which);

  // What desks want
  bool may_ask(ConnectionId whose) const override;
  void ask(ConnectionId whose, const proto::GetEvents& page) override;
  void come_back(ConnectionId whose) override;
  void spare_turn_in(Duration wait) override;
  void work(ConnectionId whose, size_t size, Work work) override;
  void read(ConnectionId whose, const proto::GetMicrobatch& request) override;

  GateOptions options_;
  BlobLeases& leases_;
  Feeder feeder_;  // used on feeder_thread_ alone
  net::Endpoint endpoint_;

  net::Loop loop_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<GateBus> core_;
  std::unique_ptr<net::Loop::Timer> timer_, egress_timer_;
  Instant ticked_at_{};
  std::set<proto::Secret> tickets_;  // of the runs' links; each is good for as long as it is granted
  std::shared_ptr<const proto::PeerList> peers_;  // the newest

  Sessions sessions_;
  Intake intake_;
  StageDesk stages_;
  EventDesk events_;
  FeedDesk feeds_;
  DownloadDesk downloads_;
  UploadDesk uploads_;

  std::unique_ptr<net::Worker> files_thread_, feeder_thread_;
  std::thread thread_;
};

}  // namespace weft::broker
