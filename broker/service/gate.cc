#include "broker/service/gate.h"

#include <algorithm>
#include <future>

#include "base/overloaded.h"
#include "broker/service/gate_client.h"

namespace weft::broker {

using proto::FrameKind;
using proto::Message;
using proto::Role;

namespace {
constexpr Duration kTick = std::chrono::milliseconds(500);
constexpr size_t kClientsMax = 8192;
constexpr size_t kMessageCost = 1 << 10;  // what a message takes beside its bytes, about
// Of a peer that has served no run.
constexpr size_t kIdlePeersFrameMax = 1 << 20;
// What lies in a queue for longer than it takes to pause: a plan's stages, lists, results. A microbatch may
// be larger than that.
constexpr size_t kSendQueueMax = 64 << 20;
// Of requests that a peer has not taken: those that come beyond it are dropped, and sent again by who asked
// them.
constexpr size_t kRequestsQueuedMax = 16 << 20;

// A part of a published value, which lives as long as the part does.
template <typename T>
std::shared_ptr<const T> part_of(const std::shared_ptr<const Published>& value) {
  const T* part = std::get_if<T>(value.get());
  return part == nullptr ? nullptr : std::shared_ptr<const T>(value, part);
}
}  // namespace

Gate::Gate(GateOptions options, Bus& bus, storage::BlobStore& blobs, BlobLeases& leases,
           const JobFeeds& feeds)
    : options_(std::move(options)),
      bus_(bus),
      leases_(leases),
      feeder_(feeds),
      next_connection_(first_connection_of(options_.number)),
      intake_(options_.arrivals),
      downloads_(*this, *this, blobs, options_.egress),
      uploads_(*this, *this, blobs, leases) {}

Result<std::unique_ptr<Gate>> Gate::start(GateOptions options, Bus& bus, storage::BlobStore& blobs,
                                          BlobLeases& leases, const JobFeeds& feeds) {
  std::unique_ptr<Gate> gate(new Gate(std::move(options), bus, blobs, leases, feeds));
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
    raw->egress_timer_.reset();
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
  core_ = std::make_unique<GateSocket>(bus_, gate_identity(options_.number));
  stream_ = std::make_unique<Subscription>(bus_);
  net::ListenOptions listen;
  listen.identity = options_.identity;
  listen.limits = options_.limits;
  listen.relay_ticket_is_granted = [this](const net::RelayTicket& ticket) {
    return relay_ticket_is_granted(ticket);
  };
  WEFT_TRY(listener_,
           net::Listener::open(loop_, options_.listen, listen,
                               [this](const net::ConnectionPtr& connection) { on_connection(connection); }));
  endpoint_ = listener_->endpoint();
  core_watch_ = loop_.watch_readable(core_->descriptor(), [this] { drain_bus(); });
  stream_watch_ = loop_.watch_readable(stream_->descriptor(), [this] { drain_bus(); });
  say(GateReady{});
  ticked_at_ = loop_.now();
  tick();
  return {};
}

// ---- the bus

// The descriptors are edge-triggered: both sockets are emptied wherever one of them may have become readable.
void Gate::drain_bus() {
  for (bool more = true; more;) {
    more = false;
    while (const auto value = stream_->receive()) {
      on_published(value);
      more = true;
    }
    while (const auto message = core_->receive()) {
      on_bus(*message);
      more = true;
    }
  }
}

void Gate::read_stream() {
  while (const auto value = stream_->receive()) on_published(value);
}

template <typename T>
void Gate::say(T what, uint64_t size) {
  core_->send({.gate = options_.number, .size = size, .what = std::move(what)});
  if (std::exchange(is_drain_posted_, true)) return;
  loop_.post([this] {
    is_drain_posted_ = false;
    drain_bus();
  });
}

void Gate::on_bus(const ToGate& message) {
  // Of one that was closed meanwhile there is nothing to do.
  const auto with_client = [this](ConnectionId connection, const auto& action) {
    const auto at = clients_.find(connection);
    if (at != clients_.end()) action(ClientPtr(at->second));
  };
  std::visit(Overloaded{
                 [&](const Send& e) {
                   with_client(e.connection, [&](const auto& client) { send_from_core(client, e); });
                 },
                 [&](const Admit& e) {
                   with_client(e.connection, [&](const auto& client) { admit(client, e.role); });
                 },
                 [&](const Close& e) {
                   with_client(e.connection, [&](const auto& client) {
                     client->connection->close(std::chrono::seconds(2));
                     forget(client);
                   });
                 },
                 [&](const CloseAll& e) {
                   std::vector<ClientPtr> its;
                   for (const auto& [number, client] : clients_)
                     if (client->connection->remote() == e.who) its.push_back(client);
                   for (const ClientPtr& client : its) close(client, "its key was sent away");
                 },
                 [&](const Taken& e) {
                   with_client(e.connection, [&](const auto& client) {
                     intake_.taken(e.connection, e.size);
                     let_arrive();
                     events_.go_on(e.connection);
                     pace(client);
                   });
                 },
                 [&](const EventsPage& e) {
                   events_.on_page(e);
                   if (!e.follows_after) return;
                   read_stream();
                   events_.follow(e.connection, e.job, *e.follows_after);
                 },
                 [&](const FeedExpected& e) { feeds_.expect(e.job, e.data_key); },
                 [&](const FeedOpened& e) { feeds_.open(e.job, e.data_key); },
                 [&](const CloseFeed& e) { feeds_.close(e.job); },
                 [&](const GrantRelay& e) { tickets_.insert(e.ticket); },
                 [&](const RevokeRelay& e) { tickets_.erase(e.ticket); },
                 [&](const ServedEntry& e) { stages_.on_entry(e); },
             },
             message);
}

void Gate::on_published(const std::shared_ptr<const Published>& value) {
  if (auto peers = part_of<proto::PeerList>(value)) peers_ = std::move(peers);
  if (const auto event = part_of<proto::JobEvent>(value)) events_.on_event(event);
}

bool Gate::relay_ticket_is_granted(const net::RelayTicket& ticket) {
  drain_bus();  // a grant may be on its way
  if (!tickets_.contains(ticket.bytes)) return false;
  say(RelayWaiting{ticket.bytes});
  return true;
}

// ---- connections

void Gate::on_connection(const net::ConnectionPtr& connection) {
  if (clients_.size() >= kClientsMax) return connection->close();
  const auto client = std::make_shared<Client>();
  client->number = next_connection_++;
  client->connection = connection;
  client->since = client->taking_at = loop_.now();
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kHelloSizeMax;
  connection->set_limits(limits);
  clients_[client->number] = client;
  intake_.begin(client->number);
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
                           if (const auto here = weak.lock()) on_drained(here);
                         },
                     .on_head = [this, weak](uint8_t, size_t size,
                                             std::span<const std::byte>) -> Result<net::PayloadPlace> {
                       if (const auto here = weak.lock()) begin_to_arrive(here, size);
                       return net::PayloadPlace{};
                     }});
}

void Gate::on_drained(const ClientPtr& client) {
  downloads_.go_on(client->number, loop_.now());
  feeds_.go_on(client->number);
  events_.go_on(client->number);
  pace(client);
}

bool Gate::forget(const ClientPtr& client) {
  if (clients_.erase(client->number) == 0) return false;
  intake_.end(client->number);
  stages_.end(client->number);
  events_.end(client->number);
  feeds_.end(client->number);
  downloads_.end(client->number);
  uploads_.end(client->number);
  let_arrive();
  if (client->role) leases_.disconnect(client->connection->remote(), loop_.now());
  return true;
}

void Gate::on_closed(const ClientPtr& client, const std::string& reason) {
  if (!forget(client) || !client->introduced) return;
  say(Disconnected{client->number, reason});
}

void Gate::close(const ClientPtr& client, const std::string& reason) {
  client->connection->close();
  on_closed(client, reason);
}

void Gate::refuse(const ClientPtr& client, const Error& error) {
  options_.log("info connection_closed address=" + client->connection->remote_address() + " reason=\"" +
               error.message + "\"");
  send(client, proto::Refusal{.code = error.code, .message = error.message});
  client->connection->close(std::chrono::seconds(2));
  on_closed(client, error.message);
}

void Gate::send(const ClientPtr& client, const Message& message) {
  client->connection->send(
      {.kind = static_cast<uint8_t>(FrameKind::Message), .head = proto::encode(message), .body = {}});
}

// ---- how much at once

// Called with a frame's first bytes; where it is large, the others stay where they are until there is room.
void Gate::begin_to_arrive(const ClientPtr& client, size_t size) {
  if (!intake_.begin_frame(client->number, size, stages_.serves(client->connection->remote()))) return;
  let_arrive();
  pace(client);
}

void Gate::let_arrive() {
  for (const ConnectionId connection : intake_.let_in(loop_.now()))
    if (const ClientPtr client = find(connection)) pace(client);
}

void Gate::close_who_arrive_slowly() {
  for (const ConnectionId connection : intake_.late(ticked_at_))
    refuse(connection, {ErrorCode::Timeout, "what it sends comes too slowly, and others wait"});
}

void Gate::pace(const ClientPtr& client) {
  const auto pauses = intake_.pace(client->number, client->connection->stats().memory_queued);
  if (pauses) client->connection->pause_reading(*pauses);
}

// ---- what desks want

Gate::ClientPtr Gate::find(ConnectionId connection) const {
  const auto at = clients_.find(connection);
  return at == clients_.end() ? nullptr : at->second;
}

size_t Gate::bytes_queued(ConnectionId to) const {
  const ClientPtr client = find(to);
  return client ? client->bytes_queued() : 0;
}

void Gate::send(ConnectionId to, const Message& message) {
  if (const ClientPtr client = find(to)) send(client, message);
}

void Gate::send_frame(ConnectionId to, net::OutFrame frame) {
  if (const ClientPtr client = find(to)) client->connection->send(std::move(frame));
}

void Gate::refuse(ConnectionId which, const Error& why) {
  if (const ClientPtr client = find(which)) refuse(client, why);
}

bool Gate::may_ask(ConnectionId whose) const {
  const ClientPtr client = find(whose);
  return client && !intake_.is_with_core(whose);
}

void Gate::ask(ConnectionId whose, const proto::GetEvents& page) {
  if (const ClientPtr client = find(whose))
    to_core(client, Received{whose, std::make_shared<const Message>(page)}, 0);
}

void Gate::come_back(ConnectionId whose) {
  loop_.post([this, whose] { events_.go_on(whose); });
}

void Gate::spare_turn_in(Duration wait) {
  egress_timer_ = loop_.after(wait, [this] { downloads_.send_spares(loop_.now()); });
}

void Gate::work(ConnectionId whose, size_t size, Work work) {
  intake_.begin_work(whose, size);
  if (const ClientPtr client = find(whose)) pace(client);
  files_thread_->post([this, whose, size, work = std::move(work)] {
    loop_.post([this, whose, size, answer = work()] {
      intake_.end_work(whose, size);
      if (const ClientPtr client = find(whose)) pace(client);
      let_arrive();
      if (answer) send(whose, *answer);
    });
  });
}

void Gate::read(ConnectionId whose, const proto::GetMicrobatch& request) {
  feeder_thread_->post([this, whose, request] {
    const auto read = std::make_shared<const Result<Feeder::Fed>>(feeder_.read(request));
    loop_.post([this, whose, request, read] { feeds_.on_read(whose, request, *read); });
  });
}

// ---- time

void Gate::tick() {
  const Duration since_last_tick = loop_.now() - ticked_at_;
  ticked_at_ = loop_.now();
  std::vector<ClientPtr> late;
  for (const auto& [number, client] : clients_)
    if (!client->role && ticked_at_ - client->since > options_.greeting_deadline) late.push_back(client);
  for (const ClientPtr& client : late) close(client, "it did not introduce itself in time");
  drain_bus();
  // Where this thread was held up itself, what came meanwhile has not been read: nobody is judged by it.
  const bool was_held_up = since_last_tick > 4 * kTick;
  close_who_do_not_read(was_held_up);
  if (!was_held_up) close_who_arrive_slowly();
  if (!was_held_up) tell_who_was_heard();
  for (const auto& [number, client] : clients_)
    if (intake_.is_paused(number)) pace(client);
  if (const auto dropped = stages_.dropped_to_tell(ticked_at_))
    options_.log("info stale_reports_dropped count=" + std::to_string(*dropped));
  timer_ = loop_.after(kTick, [this] { tick(); });
}

void Gate::close_who_do_not_read(bool was_held_up) {
  std::vector<ClientPtr> stuck;
  for (const auto& [number, client] : clients_) {
    const net::ConnectionStats stats = client->connection->stats();
    if (was_held_up || stats.bytes_queued == 0 || stats.bytes_sent != client->bytes_sent)
      client->taking_at = ticked_at_;
    client->bytes_sent = stats.bytes_sent;
    if (ticked_at_ - client->taking_at > options_.unread_deadline) stuck.push_back(client);
  }
  for (const ClientPtr& client : stuck)
    refuse(client, {ErrorCode::Timeout, "it takes nothing of what it is sent"});
}

// What a lease is judged by: when something came, a part of a message even, whether the core had time for it
// or not. Who is not read from because the broker is busy is there.
void Gate::tell_who_was_heard() {
  Hearing hearing{.until = ticked_at_, .peers = {}};
  for (const auto& [number, client] : clients_) {
    if (client->role != Role::Peer) continue;
    const uint64_t received = client->connection->stats().bytes_received;
    if (received == client->bytes_received && !intake_.is_held_up(number)) continue;
    client->bytes_received = received;
    hearing.peers.push_back({number, ticked_at_, std::exchange(client->work, std::nullopt)});
  }
  say(std::move(hearing));
}

// ---- what comes

void Gate::on_frame(const ClientPtr& client, net::InFrame frame) {
  const bool was_large = intake_.end_frame(client->number);
  dispatch(client, std::move(frame));
  if (was_large) let_arrive();
}

void Gate::dispatch(const ClientPtr& client, net::InFrame frame) {
  if (!client->role) return introduce(client, frame);
  switch (static_cast<FrameKind>(frame.kind)) {
    case FrameKind::Message:
      return on_message_frame(client, std::move(frame));
    case FrameKind::Chunk:
      return uploads_.on_chunk(client->number, std::move(frame), loop_.now());
    default:
      return refuse(client, {ErrorCode::InvalidArgument, "a frame of a kind that the broker does not take"});
  }
}

void Gate::introduce(const ClientPtr& client, const net::InFrame& frame) {
  if (client->introduced || frame.kind != static_cast<uint8_t>(FrameKind::Message))
    return close(client, "it spoke before it was admitted");
  auto message = proto::decode(frame.payload.span());
  auto* hello = message ? std::get_if<proto::Hello>(&*message) : nullptr;
  if (hello == nullptr)
    return refuse(client, message ? Error{ErrorCode::InvalidArgument, "a connection begins with Hello"}
                                  : message.error());
  client->introduced = true;
  to_core(client,
          Introduced{.connection = client->number,
                     .who = client->connection->remote(),
                     .address = client->connection->remote_address().substr(0, 255),
                     .hello = std::move(*hello)},
          frame.payload.size());
}

void Gate::admit(const ClientPtr& client, Role role) {
  client->role = role;
  if (proto::is_user(role)) intake_.is_of_user(client->number);
  leases_.connect(client->connection->remote());
  set_limits(client);
}

void Gate::set_limits(const ClientPtr& client) {
  net::ConnectionLimits limits;
  limits.frame_size_max = *client->role == Role::Peer && !stages_.serves(client->number)
                              ? kIdlePeersFrameMax
                              : proto::kMessageSizeMax;
  limits.send_queue_max = kSendQueueMax + (*client->role == Role::PeerBulk ? proto::kTensorSizeMax : 0);
  client->connection->set_limits(limits);
}

// Each message is decoded here, once; of a peer's, only what may be of use.
void Gate::on_message_frame(const ClientPtr& client, net::InFrame frame) {
  const bool is_peer = *client->role == Role::Peer;
  if (is_peer && stages_.is_stale(client->number, proto::peek_report(frame.payload.span()))) return;
  auto message = proto::decode(frame.payload.span());
  if (!message) return refuse(client, message.error().within("it sent what is no message"));
  if (is_peer) {
    if (stages_.is_stale(client->number, proto::head_of(*message))) return;
    if (const auto* heartbeat = std::get_if<proto::Heartbeat>(&*message))
      return on_heartbeat(client, *heartbeat);
    if (const auto* progress = std::get_if<proto::ServeProgress>(&*message))
      return on_progress(client, *progress);
  } else {
    if (serve_here(client, *message)) return;
    if (*client->role == Role::PeerBulk)
      return refuse(client, {ErrorCode::InvalidArgument,
                             std::string(proto::name_of(*message)) + " is not for a bulk connection"});
  }
  const size_t size = frame.payload.size();
  Received received{.connection = client->number, .message = {}};
  if (std::holds_alternative<proto::SubmitJob>(*message)) {
    const auto payload = std::make_shared<const net::Buffer>(std::move(frame.payload));
    received.bytes = {payload->span(), payload};
  }
  received.message = std::make_shared<const Message>(std::move(*message));
  to_core(client, std::move(received), size);
}

// Answered here and at once, before whatever waits to be sent: neither a busy core nor a large message makes
// a peer think that its broker is gone.
void Gate::on_heartbeat(const ClientPtr& client, const proto::Heartbeat& heartbeat) {
  if (heartbeat.work) client->work = heartbeat.work;
  client->connection->send({.kind = static_cast<uint8_t>(FrameKind::Message),
                            .head = proto::encode(proto::HeartbeatAck{heartbeat.sequence}),
                            .body = {},
                            .goes_first = true});
  pace(client);
}

bool Gate::serve_here(const ClientPtr& client, const Message& message) {
  const PeerId& key = client->connection->remote();
  if (const auto* get = std::get_if<proto::GetBlob>(&message)) {
    downloads_.get(client->number, *get, loop_.now());
    return true;
  }
  if (const auto* put = std::get_if<proto::PutBlob>(&message)) {
    uploads_.put(client->number, key, *put, loop_.now());
    return true;
  }
  if (const auto* have = std::get_if<proto::HaveBlobs>(&message)) {
    uploads_.have(client->number, key, *have, loop_.now());
    return true;
  }
  if (*client->role == Role::PeerBulk) {
    const auto* microbatch = std::get_if<proto::GetMicrobatch>(&message);
    if (microbatch != nullptr) feeds_.get(client->number, *microbatch);
    return microbatch != nullptr;
  }
  drain_bus();  // what the core has said is known before it is asked for
  if (!find(client->number)) return true;
  if (const auto* events = std::get_if<proto::GetEvents>(&message)) {
    events_.get(client->number, *events);
    return true;
  }
  if (std::holds_alternative<proto::ListPeers>(message)) {
    send(client, peers_ ? *peers_ : proto::PeerList{});
    pace(client);
    return true;
  }
  return false;
}

// What a peer says of a run that it was let go from may be on its way: its limits stay.
void Gate::send_from_core(const ClientPtr& client, const Send& sent) {
  const Message& message = *sent.message;
  if (stages_.on_sent(client->number, client->connection->remote(), message) && client->role)
    set_limits(client);
  if (sent.bytes)
    client->connection->send({.kind = static_cast<uint8_t>(FrameKind::Message),
                              .head = {},
                              .body = {sent.bytes.owner, sent.bytes.bytes}});
  else
    send(client, message);
  pace(client);
}

// What a broker that was restarted has not heard it asks for again.
void Gate::on_progress(const ClientPtr& client, const proto::ServeProgress& progress) {
  const PeerId& peer = client->connection->remote();
  if (!stages_.is_entry(peer, progress)) drain_bus();  // what the core said of it may be on its way
  if (options_.served == nullptr || !stages_.is_entry(peer, progress)) return stages_.drop();
  options_.served->on_progress(peer, progress);
}

void Gate::tell_peer(const PeerId& to, proto::Message message) {
  loop_.post([this, to, message = std::move(message)] { send_to_stage(to, message); });
}

void Gate::send_to_stage(const PeerId& to, const Message& message) {
  const auto holder = stages_.holder_of(to, message);
  const ClientPtr client = holder ? find(*holder) : nullptr;
  if (!client || client->bytes_queued() > kRequestsQueuedMax) return;
  send(client, message);
  pace(client);
}

template <typename T>
void Gate::to_core(const ClientPtr& client, T what, size_t size) {
  size += kMessageCost;
  intake_.give_to_core(client->number, size);
  say(std::move(what), size);
  pace(client);
}

}  // namespace weft::broker
