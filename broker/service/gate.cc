#include "broker/service/gate.h"

#include <algorithm>
#include <future>

#include "broker/service/gate_client.h"

namespace weft::broker {

using proto::FrameKind;
using proto::Message;
using proto::Role;

namespace {
constexpr size_t kRecentEventsMax = 4096;  // of a job: bridges the way from the store to the stream
constexpr size_t kClientsMax = 8192;
// Of one connection: bytes of messages that the core has not taken, and of chunks and requests that the disk
// has not, before reading from it stops. One message of any size may be on its way.
constexpr size_t kInCoreMax = 256 << 10;
constexpr size_t kInWorkMax = 32 << 20;
// Of all of them, in the core: beyond it whoever sends waits.
constexpr size_t kInCoreMaxOfAll = 32 << 20;
// What a control connection may leave unread before nothing is read from it: answers, mostly.
constexpr size_t kUnreadMax = 1 << 20;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
proto::Secret secret_of(std::string_view payload) {
  proto::Secret secret{};
  std::copy_n(payload.begin(), std::min(payload.size(), secret.size()), secret.begin());
  return secret;
}
}  // namespace

Gate::Gate(GateOptions options, Bus& bus, storage::BlobStore& blobs, const JobFeeds& feeds)
    : options_(std::move(options)), bus_(bus), blobs_(blobs), feeder_(feeds) {}

Result<std::unique_ptr<Gate>> Gate::start(GateOptions options, Bus& bus, storage::BlobStore& blobs,
                                          const JobFeeds& feeds) {
  std::unique_ptr<Gate> gate(new Gate(std::move(options), bus, blobs, feeds));
  // Everything of the loop is made on its thread.
  std::promise<Status> opened;
  auto result = opened.get_future();
  gate->thread_ = std::thread([raw = gate.get(), &opened] {
    const Status status = raw->open();
    const bool ok = status.has_value();
    opened.set_value(status);
    if (!ok) return;
    raw->loop_.run();
    for (auto& [number, client] : raw->clients_) client->connection->close();
    raw->clients_.clear();
    raw->timer_.reset();
    raw->listener_.reset();
    raw->core_watch_.reset();
    raw->stream_watch_.reset();
    raw->core_.reset();
    raw->stream_.reset();
  });
  WEFT_TRY_STATUS(result.get());
  return gate;
}

Gate::~Gate() {
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  files_thread_.reset();
  feeder_thread_.reset();
}

Status Gate::open() {
  files_thread_ = std::make_unique<net::Worker>();
  feeder_thread_ = std::make_unique<net::Worker>();
  core_ = std::make_unique<GateSocket>(bus_, gate_identity(0));
  stream_ = std::make_unique<Subscription>(bus_);
  net::ListenOptions listen;
  listen.identity = options_.identity;
  listen.limits = options_.limits;
  listen.relay_ticket_is_granted = [this](const net::RelayTicket& ticket) {
    return relay_ticket_is_granted(ticket);
  };
  WEFT_TRY(listener_,
           net::Listener::open(loop_, options_.listen, listen, [this](net::ConnectionPtr connection) {
             on_connection(std::move(connection));
           }));
  endpoint_ = listener_->endpoint();
  core_watch_ = loop_.watch_readable(core_->descriptor(), [this] { drain_bus(); });
  stream_watch_ = loop_.watch_readable(stream_->descriptor(), [this] { drain_bus(); });
  core_->send({.kind = BusKind::GateReady, .connection = 0, .payload = {}});
  loop_.post([this] { drain_bus(); });
  tick();
  return {};
}

// The descriptors are edge-triggered: both sockets are emptied wherever one of them may have become readable.
void Gate::drain_bus() {
  for (bool more = true; more;) {
    more = false;
    while (auto item = stream_->receive()) {
      on_event_stream(*item);
      more = true;
    }
    while (auto message = core_->receive()) {
      on_bus(*message);
      more = true;
    }
  }
}

void Gate::on_bus(const BusMessage& message) {
  switch (message.kind) {
    case BusKind::OpenFeed:
    case BusKind::ExpectFeed:
      return open_feed(message.connection, secret_of(message.payload), message.kind == BusKind::OpenFeed);
    case BusKind::CloseFeed:
      return close_feed(message.connection);
    case BusKind::GrantRelay:
      tickets_.insert(secret_of(message.payload));
      return;
    case BusKind::RevokeRelay:
      tickets_.erase(secret_of(message.payload));
      return;
    default:
      break;
  }
  const auto at = clients_.find(message.connection);
  if (at == clients_.end()) return;  // closed meanwhile
  const ClientPtr client = at->second;
  switch (message.kind) {
    case BusKind::Send: {
      const auto bytes = bytes_of(message.payload);
      client->connection->send({.kind = static_cast<uint8_t>(FrameKind::Message),
                                .head = {bytes.begin(), bytes.end()},
                                .body = {}});
      return;
    }
    case BusKind::Admit: {
      client->role = static_cast<Role>(message.payload.at(0));
      net::ConnectionLimits limits;
      limits.frame_size_max = proto::kMessageSizeMax;
      limits.send_queue_max = size_t{64}
                              << 30;  // blobs are mapped files, not memory; see kQueuedMax for how far ahead
      client->connection->set_limits(limits);
      return;
    }
    case BusKind::Close: {
      client->connection->close(std::chrono::seconds(2));
      bytes_in_core_ -= client->bytes_in_core;
      clients_.erase(at);
      return;
    }
    case BusKind::Taken: {
      const size_t size = std::min<uint64_t>(read_u64(message.payload, 0), client->bytes_in_core);
      client->bytes_in_core -= size;
      bytes_in_core_ -= size;
      return pace(client);
    }
    case BusKind::Follow:
      return follow(client, read_u64(message.payload, 0), read_u64(message.payload, 8));
    default:
      return;
  }
}

void Gate::on_event_stream(const Subscription::Item& item) {
  auto decoded = proto::decode(bytes_of(item.payload));
  if (!decoded) return;
  if (auto* status = std::get_if<proto::JobStatus>(&*decoded)) {
    statuses_[status->job] = std::move(*status);
  } else if (auto* peers = std::get_if<proto::PeerList>(&*decoded)) {
    peers_ = std::move(*peers);
  } else if (auto* event = std::get_if<proto::JobEvent>(&*decoded)) {
    const bool ends = event->kind == proto::JobEventKind::State && event->state >= proto::JobState::Finished;
    for (auto& [number, client] : clients_) {
      const auto following = client->following.find(event->job);
      if (following == client->following.end() || event->sequence <= following->second) continue;
      following->second = event->sequence;
      send(client, *event);
      if (!ends) continue;
      send(client, proto::EventsEnd{event->job});
      client->following.erase(event->job);
    }
    auto& recent = recent_[event->job];
    recent.push_back(std::move(*event));
    if (recent.size() > kRecentEventsMax) recent.pop_front();
    if (recent_.size() > 64) recent_.erase(recent_.begin());  // the oldest job's
  }
}

void Gate::follow(const ClientPtr& client, proto::JobNumber job, uint64_t sequence) {
  while (auto item = stream_->receive()) on_event_stream(*item);
  uint64_t& last = client->following[job];
  last = sequence;
  for (const proto::JobEvent& event : recent_[job]) {
    if (event.sequence <= last) continue;
    last = event.sequence;
    send(client, event);
    if (event.kind != proto::JobEventKind::State || event.state < proto::JobState::Finished) continue;
    send(client, proto::EventsEnd{job});
    client->following.erase(job);
    return;
  }
}

bool Gate::relay_ticket_is_granted(const net::RelayTicket& ticket) {
  drain_bus();  // a grant may be on its way
  if (!tickets_.contains(ticket.bytes)) return false;
  core_->send({.kind = BusKind::RelayWaiting,
               .connection = 0,
               .payload = {reinterpret_cast<const char*>(ticket.bytes.data()), ticket.bytes.size()}});
  loop_.post([this] { drain_bus(); });
  return true;
}

// ---- connections
// -------------------------------------------------------------------------------------------------

void Gate::on_connection(net::ConnectionPtr connection) {
  if (clients_.size() >= kClientsMax) return connection->close();
  const auto client = std::make_shared<Client>();
  client->number = next_connection_++;
  client->connection = connection;
  client->since = loop_.now();
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kHelloSizeMax;
  connection->set_limits(limits);
  clients_[client->number] = client;
  const std::weak_ptr<Client> weak = client;
  connection->start({.on_frame =
                         [this, weak](net::InFrame frame) {
                           if (const auto here = weak.lock()) on_frame(here, std::move(frame));
                         },
                     .on_closed =
                         [this, weak](const Error& error) {
                           if (const auto here = weak.lock()) on_closed(here, error.message);
                         },
                     .on_drained =
                         [this, weak] {
                           const auto here = weak.lock();
                           if (!here) return;
                           next_download(here);
                           pace(here);
                         }});
}

void Gate::on_closed(const ClientPtr& client, const std::string& reason) {
  if (clients_.erase(client->number) == 0) return;
  bytes_in_core_ -= client->bytes_in_core;
  if (client->introduced) {
    core_->send({.kind = BusKind::Disconnected, .connection = client->number, .payload = reason});
    drain_bus();
  }
}

void Gate::close(const ClientPtr& client, const std::string& reason) {
  client->connection->close();
  on_closed(client, reason);
}

void Gate::refuse(const ClientPtr& client, const Error& error) {
  send(client, proto::Refusal{.code = error.code, .message = error.message});
  client->connection->close(std::chrono::seconds(2));
  on_closed(client, error.message);
}

void Gate::send(const ClientPtr& client, const Message& message) {
  client->connection->send(
      {.kind = static_cast<uint8_t>(FrameKind::Message), .head = proto::encode(message), .body = {}});
}

void Gate::tick() {
  std::vector<ClientPtr> late;
  for (const auto& [number, client] : clients_)
    if (!client->role && loop_.now() - client->since > options_.greeting_deadline) late.push_back(client);
  for (const ClientPtr& client : late) close(client, "it did not introduce itself in time");
  drain_bus();
  for (const auto& [number, client] : clients_)
    if (client->is_paused) pace(client);
  timer_ = loop_.after(std::chrono::milliseconds(500), [this] { tick(); });
}

void Gate::on_frame(const ClientPtr& client, net::InFrame frame) {
  if (!client->role) {
    if (client->introduced || frame.kind != static_cast<uint8_t>(FrameKind::Message))
      return close(client, "it spoke before it was admitted");
    client->introduced = true;
    const std::string address = client->connection->remote_address().substr(0, 255);
    std::string payload(reinterpret_cast<const char*>(client->connection->remote().digest.bytes.data()), 32);
    payload += static_cast<char>(address.size());
    payload += address;
    payload += text_of(frame.payload.span());
    return to_core(client, BusKind::Introduced, std::move(payload));
  }
  switch (static_cast<FrameKind>(frame.kind)) {
    case FrameKind::Message:
      return on_message_frame(client, frame);
    case FrameKind::Chunk:
      return on_chunk(client, std::move(frame));
    default:
      return refuse(client, {ErrorCode::InvalidArgument, "a frame of a kind that the broker does not take"});
  }
}

// Blobs, data and status are served here; a control connection's messages are the core's. Which is which is
// read off the role, so that a peer's every report is not decoded twice.
void Gate::on_message_frame(const ClientPtr& client, const net::InFrame& frame) {
  if (*client->role != Role::Peer) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return refuse(client, message.error());
    if (serve_here(client, *message)) return;
    if (*client->role == Role::PeerBulk)
      return refuse(client, {ErrorCode::InvalidArgument,
                             std::string(proto::name_of(*message)) + " is not for a bulk connection"});
  }
  to_core(client, BusKind::Received, text_of(frame.payload.span()));
}

void Gate::to_core(const ClientPtr& client, BusKind kind, std::string payload) {
  client->bytes_in_core += payload.size();
  bytes_in_core_ += payload.size();
  core_->send({.kind = kind, .connection = client->number, .payload = std::move(payload)});
  drain_bus();
  pace(client);
}

void Gate::begin_files_work(const ClientPtr& client, size_t size) {
  client->bytes_in_work += size;
  pace(client);
}

void Gate::end_files_work(const ClientPtr& client, size_t size) {
  client->bytes_in_work -= size;
  pace(client);
}

void Gate::pace(const ClientPtr& client) {
  const size_t unread = client->role == Role::Peer ? client->connection->stats().bytes_queued : 0;
  const auto is_above = [&](size_t part) {
    return client->bytes_in_core > kInCoreMax / part || client->bytes_in_work > kInWorkMax / part ||
           unread > kUnreadMax / part ||
           (client->bytes_in_core > 0 && bytes_in_core_ > kInCoreMaxOfAll / part);
  };
  const bool pauses = client->is_paused ? is_above(2) : is_above(1);
  if (pauses == client->is_paused) return;
  client->is_paused = pauses;
  client->connection->pause_reading(pauses);
}

bool Gate::serve_here(const ClientPtr& client, const Message& message) {
  if (const auto* get = std::get_if<proto::GetBlob>(&message)) return get_blob(client, *get), true;
  if (const auto* put = std::get_if<proto::PutBlob>(&message)) return put_blob(client, *put), true;
  if (const auto* have = std::get_if<proto::HaveBlobs>(&message)) return have_blobs(client, *have), true;
  if (*client->role == Role::PeerBulk) {
    const auto* microbatch = std::get_if<proto::GetMicrobatch>(&message);
    if (microbatch == nullptr) return false;
    get_microbatch(client, *microbatch);
    return true;
  }
  drain_bus();  // what the core has said is known before it is asked for
  if (std::holds_alternative<proto::ListJobs>(message)) {
    proto::JobList list;
    for (const auto& [job, status] : statuses_) list.jobs.push_back(status);
    send(client, list);
    return true;
  }
  if (const auto* job = std::get_if<proto::GetJob>(&message)) {
    const auto status = statuses_.find(job->job);
    if (status == statuses_.end()) return false;  // the core knows how to refuse
    send(client, status->second);
    return true;
  }
  if (std::holds_alternative<proto::ListPeers>(message)) return send(client, peers_), true;
  return false;
}

}  // namespace weft::broker
