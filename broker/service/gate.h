// A gate: holds the connections of peers and clients, and lets through to the core only what an authenticated
// one may say. Serves blobs, microbatches of data, past and new events, and the relay by itself.
//
// A stranger can make it hold one handshake for its deadline, then one frame of at most kHelloSizeMax bytes;
// both are counted against the limits of net/listener.h.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "broker/service/bus.h"
#include "broker/service/feeder.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/worker.h"
#include "proto/codec/codec.h"
#include "storage/blob_store.h"

namespace weft::broker {

struct GateOptions {
  net::Endpoint listen;
  const security::Identity* identity = nullptr;  // outlives this
  net::ListenLimits limits;
  Duration greeting_deadline = std::chrono::seconds(10);  // from the handshake to the core's answer
  std::function<void(const std::string& line)> log;
};

class Gate {
 public:
  static Result<std::unique_ptr<Gate>> start(GateOptions options, Bus& bus, storage::BlobStore& blobs,
                                             const JobFeeds& feeds);
  ~Gate();  // closes everything and joins

  net::Endpoint endpoint() const { return endpoint_; }

 private:
  struct Client;
  using ClientPtr = std::shared_ptr<Client>;

  Gate(GateOptions options, Bus& bus, storage::BlobStore& blobs, const JobFeeds& feeds);
  Status open();
  void drain_bus();
  void on_bus(const BusMessage& message);
  void on_event_stream(const Subscription::Item& item);

  void on_connection(net::ConnectionPtr connection);
  void on_frame(const ClientPtr& client, net::InFrame frame);
  void on_message_frame(const ClientPtr& client, const net::InFrame& frame);
  bool serve_here(const ClientPtr& client, const proto::Message& message);
  void on_closed(const ClientPtr& client, const std::string& reason);
  void close(const ClientPtr& client, const std::string& reason);
  void refuse(const ClientPtr& client, const Error& error);
  void send(const ClientPtr& client, const proto::Message& message);
  void tick();
  void to_core(const ClientPtr& client, BusKind kind, std::string payload);
  void begin_files_work(const ClientPtr& client, size_t size);
  void end_files_work(const ClientPtr& client, size_t size);
  // Stops and resumes reading from it, by what of it is in work and what it leaves unread.
  void pace(const ClientPtr& client);

  void get_blob(const ClientPtr& client, const proto::GetBlob& request);
  void next_download(const ClientPtr& client);
  void put_blob(const ClientPtr& client, const proto::PutBlob& request);
  void on_chunk(const ClientPtr& client, net::InFrame frame);
  void get_microbatch(const ClientPtr& client, const proto::GetMicrobatch& request);
  void read_microbatch(const ClientPtr& client, const proto::GetMicrobatch& request);
  void open_feed(proto::JobNumber job, const proto::Secret& key, bool open);
  void close_feed(proto::JobNumber job);
  void have_blobs(const ClientPtr& client, const proto::HaveBlobs& request);
  void follow(const ClientPtr& client, proto::JobNumber job, uint64_t sequence);
  bool relay_ticket_is_granted(const net::RelayTicket& ticket);

  GateOptions options_;
  Bus& bus_;
  storage::BlobStore& blobs_;
  Feeder feeder_;  // used on feeder_thread_ alone
  net::Endpoint endpoint_;

  net::Loop loop_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<GateSocket> core_;
  std::unique_ptr<Subscription> stream_;
  std::unique_ptr<net::Loop::Watch> core_watch_, stream_watch_;
  std::unique_ptr<net::Loop::Timer> timer_;
  uint64_t next_connection_ = 1;
  std::map<uint64_t, ClientPtr> clients_;
  size_t bytes_in_core_ = 0;  // of all
  struct Feed {
    proto::Secret key{};
    bool open = false;
    std::vector<std::pair<std::weak_ptr<Client>, proto::GetMicrobatch>> waiting;  // until it is open
  };
  std::map<proto::JobNumber, Feed> feeds_;
  std::set<proto::Secret> tickets_;  // of the runs' links; each is good for as long as it is granted
  // The stream's latest: what clients ask for.
  std::map<proto::JobNumber, proto::JobStatus> statuses_;
  proto::PeerList peers_;
  std::map<proto::JobNumber, std::deque<proto::JobEvent>> recent_;

  std::unique_ptr<net::Worker> files_thread_, feeder_thread_;
  std::thread thread_;
};

}  // namespace weft::broker
