#include "broker/service/gate.h"

#include "base/overloaded.h"
#include "proto/codec/codec.h"
#include "proto/codec/report_head.h"

namespace weft::broker {

using proto::FrameKind;
using proto::Message;
using proto::Role;

namespace {
constexpr Duration kTick = std::chrono::milliseconds(500);
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

net::ConnectionLimits limits_of(Role role, bool serves) {
  net::ConnectionLimits limits;
  limits.frame_size_max = role == Role::Peer && !serves ? kIdlePeersFrameMax : proto::kMessageSizeMax;
  limits.send_queue_max = kSendQueueMax + (role == Role::PeerBulk ? proto::kTensorSizeMax : 0);
  return limits;
}

Introduced introduction_of(const Session& from, proto::Hello hello) {
  return {.connection = from.number,
          .who = from.key(),
          .address = from.connection->remote_address().substr(0, 255),
          .hello = std::move(hello)};
}

// A submission keeps the bytes that it came in.
Received received_of(ConnectionId from, Message message, net::Buffer payload) {
  Received received{.connection = from, .message = {}};
  if (std::holds_alternative<proto::SubmitJob>(message)) {
    const auto kept = std::make_shared<const net::Buffer>(std::move(payload));
    received.bytes = {kept->span(), kept};
  }
  received.message = std::make_shared<const Message>(std::move(message));
  return received;
}
}  // namespace

Gate::Gate(GateOptions options, storage::BlobStore& blobs, BlobLeases& leases, const JobFeeds& feeds)
    : options_(std::move(options)),
      leases_(leases),
      feeder_(feeds),
      sessions_({.first = first_connection_of(options_.number),
                 .greeting_deadline = options_.greeting_deadline,
                 .unread_deadline = options_.unread_deadline,
                 .log = options_.log},
                *this),
      intake_(options_.arrivals),
      stages_(loop_.now()),
      events_(sessions_, *this),
      feeds_(sessions_, *this),
      downloads_(sessions_, *this, blobs, options_.egress),
      uploads_(sessions_, *this, blobs, leases, options_.weights) {}

Result<std::unique_ptr<Gate>> Gate::start(GateOptions options, Bus& bus, storage::BlobStore& blobs,
                                          BlobLeases& leases, const JobFeeds& feeds) {
  std::unique_ptr<Gate> gate(new Gate(std::move(options), blobs, leases, feeds));
  std::promise<Status> opened;
  auto result = opened.get_future();
  gate->thread_ = std::thread([raw = gate.get(), &bus, &opened] { raw->run(bus, opened); });
  WEFT_TRY_STATUS(result.get());
  return gate;
}

Gate::~Gate() {
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  files_thread_.reset();
  feeder_thread_.reset();
}

// Everything of the loop is made on its thread, and goes there.
void Gate::run(Bus& bus, std::promise<Status>& opened) {
  const Status status = open(bus);
  const bool ok = status.has_value();
  opened.set_value(status);
  if (!ok) return;
  loop_.run();
  sessions_.close_all();
  timer_.reset();
  egress_timer_.reset();
  listener_.reset();
  core_.reset();
}

Status Gate::open(Bus& bus) {
  files_thread_ = std::make_unique<net::Worker>();
  feeder_thread_ = std::make_unique<net::Worker>();
  GateBus::Outside& here = *this;
  core_ = std::make_unique<GateBus>(loop_, bus, options_.number, here);
  net::ListenOptions listen;
  listen.identity = options_.identity;
  listen.limits = options_.limits;
  listen.relay_ticket_is_granted = [this](const net::RelayTicket& ticket) {
    return relay_ticket_is_granted(ticket);
  };
  WEFT_TRY(listener_,
           net::Listener::open(loop_, options_.listen, listen, [this](const net::ConnectionPtr& connection) {
             sessions_.begin(connection, loop_.now());
           }));
  endpoint_ = listener_->endpoint();
  core_->say(GateReady{});
  ticked_at_ = loop_.now();
  tick();
  return {};
}

void Gate::tick() {
  const Duration since_last_tick = loop_.now() - ticked_at_;
  ticked_at_ = loop_.now();
  sessions_.close_who_do_not_greet(ticked_at_);
  core_->drain();
  // Where this thread was held up itself, what came meanwhile has not been read: nobody is judged by it.
  const bool was_held_up = since_last_tick > 4 * kTick;
  sessions_.close_who_do_not_read(ticked_at_, was_held_up);
  if (!was_held_up) {
    for (const ConnectionId late : intake_.late(ticked_at_))
      sessions_.refuse(late, {ErrorCode::Timeout, "what it sends comes too slowly, and others wait"});
    core_->say(Hearing{ticked_at_, sessions_.heard(ticked_at_, [this](ConnectionId which) {
                         return intake_.is_held_up(which);
                       })});
  }
  for (const ConnectionId paused : intake_.paused()) pace(paused);
  if (const auto dropped = stages_.dropped_to_tell(ticked_at_))
    options_.log("info stale_reports_dropped count=" + std::to_string(*dropped));
  timer_ = loop_.after(kTick, [this] { tick(); });
}

// ---- what the core says; of one that was closed meanwhile there is nothing to do

void Gate::on_bus(const ToGate& message) {
  std::visit(Overloaded{
                 [&](const Send& e) { send_from_core(e); },
                 [&](const Admit& e) { admit(e.connection, e.role); },
                 [&](const Close& e) { sessions_.let_go(e.connection); },
                 [&](const CloseAll& e) { sessions_.close_all_of(e.who, "its key was sent away"); },
                 [&](const Taken& e) { on_taken(e); },
                 [&](const EventsPage& e) { on_page(e); },
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

void Gate::admit(ConnectionId which, Role role) {
  const SessionPtr session = sessions_.find(which);
  if (!session) return;
  session->role = role;
  if (proto::is_user(role)) intake_.is_of_user(which);
  leases_.connect(session->key());
  set_limits(*session);
}

void Gate::set_limits(const Session& session) {
  session.connection->set_limits(limits_of(*session.role, stages_.serves(session.number)));
}

void Gate::on_taken(const Taken& taken) {
  intake_.taken(taken.connection, taken.size);
  let_arrive();
  events_.go_on(taken.connection);
  pace(taken.connection);
}

void Gate::on_page(const EventsPage& page) {
  events_.on_page(page);
  if (!page.follows_after) return;
  core_->drain_published();
  events_.follow(page.connection, page.job, *page.follows_after);
}

// What a peer says of a run that it was let go from may be on its way: its limits stay.
void Gate::send_from_core(const Send& sent) {
  const SessionPtr session = sessions_.find(sent.connection);
  if (!session) return;
  if (stages_.on_sent(session->number, session->key(), *sent.message) && session->role) set_limits(*session);
  if (sent.bytes)
    session->connection->send({.kind = static_cast<uint8_t>(FrameKind::Message),
                               .head = {},
                               .body = {sent.bytes.owner, sent.bytes.bytes}});
  else
    sessions_.send(session->number, *sent.message);
  pace(session->number);
}

bool Gate::relay_ticket_is_granted(const net::RelayTicket& ticket) {
  core_->drain();  // a grant may be on its way
  if (!tickets_.contains(ticket.bytes)) return false;
  core_->say(RelayWaiting{ticket.bytes});
  return true;
}

// ---- what comes

void Gate::on_ended(const SessionPtr& whose, const std::optional<std::string>& why) {
  const ConnectionId which = whose->number;
  intake_.end(which);
  stages_.end(which);
  events_.end(which);
  feeds_.end(which);
  downloads_.end(which);
  uploads_.end(which);
  let_arrive();
  if (whose->role) leases_.disconnect(whose->key(), loop_.now());
  if (why && whose->introduced) core_->say(Disconnected{which, *why});
}

void Gate::on_drained(const SessionPtr& whose) {
  downloads_.go_on(whose->number, loop_.now());
  feeds_.go_on(whose->number);
  events_.go_on(whose->number);
  pace(whose->number);
}

// A frame's first bytes; where it is large, the others stay where they are until there is room.
void Gate::on_frame_begun(const SessionPtr& from, size_t size) {
  if (!intake_.begin_frame(from->number, size, stages_.serves(from->key()))) return;
  let_arrive();
  pace(from->number);
}

void Gate::on_frame(const SessionPtr& from, net::InFrame frame) {
  const bool was_large = intake_.end_frame(from->number);
  dispatch(from, std::move(frame));
  if (was_large) let_arrive();
}

void Gate::dispatch(const SessionPtr& from, net::InFrame frame) {
  if (!from->role) return introduce(from, frame);
  switch (static_cast<FrameKind>(frame.kind)) {
    case FrameKind::Message:
      return on_message_frame(from, std::move(frame));
    case FrameKind::Chunk:
      return uploads_.on_chunk(from->number, std::move(frame), loop_.now());
    default:
      return refuse(from, "a frame of a kind that the broker does not take");
  }
}

void Gate::refuse(const SessionPtr& whom, std::string why) {
  sessions_.refuse(whom->number, {ErrorCode::InvalidArgument, std::move(why)});
}

void Gate::introduce(const SessionPtr& from, const net::InFrame& frame) {
  if (from->introduced || frame.kind != static_cast<uint8_t>(FrameKind::Message))
    return sessions_.close(from, "it spoke before it was admitted");
  auto message = proto::decode(frame.payload.span());
  if (!message) return sessions_.refuse(from->number, message.error());
  auto* hello = std::get_if<proto::Hello>(&*message);
  if (hello == nullptr) return refuse(from, "a connection begins with Hello");
  from->introduced = true;
  to_core(from->number, introduction_of(*from, std::move(*hello)), frame.payload.size());
}

// Each message is decoded here, once; of a peer's, only what may be of use.
void Gate::on_message_frame(const SessionPtr& from, net::InFrame frame) {
  const bool is_peer = *from->role == Role::Peer;
  if (is_peer && stages_.is_stale(from->number, proto::peek_report(frame.payload.span()))) return;
  auto message = proto::decode(frame.payload.span());
  if (!message) return sessions_.refuse(from->number, message.error().within("it sent what is no message"));
  if (is_peer ? serve_peer(from, *message) : serve_here(from, *message)) return;
  if (*from->role == Role::PeerBulk)
    return refuse(from, std::string(proto::name_of(*message)) + " is not for a bulk connection");
  const size_t size = frame.payload.size();
  to_core(from->number, received_of(from->number, std::move(*message), std::move(frame.payload)), size);
}

// What does not concern the core, of a peer's.
bool Gate::serve_peer(const SessionPtr& from, const Message& message) {
  if (stages_.is_stale(from->number, proto::head_of(message))) return true;
  if (const auto* heartbeat = std::get_if<proto::Heartbeat>(&message))
    return on_heartbeat(from, *heartbeat), true;
  if (const auto* progress = std::get_if<proto::ServeProgress>(&message))
    return on_progress(from, *progress), true;
  return false;
}

// Answered here and at once, before whatever waits to be sent: neither a busy core nor a large message makes
// a peer think that its broker is gone.
void Gate::on_heartbeat(const SessionPtr& from, const proto::Heartbeat& heartbeat) {
  if (heartbeat.work) from->work = heartbeat.work;
  if (heartbeat.saving) from->saving = heartbeat.saving;
  from->connection->send({.kind = static_cast<uint8_t>(FrameKind::Message),
                          .head = proto::encode(proto::HeartbeatAck{heartbeat.sequence}),
                          .body = {},
                          .goes_first = true});
  pace(from->number);
}

// What a broker that was restarted has not heard it asks for again.
void Gate::on_progress(const SessionPtr& from, const proto::ServeProgress& progress) {
  if (!stages_.is_entry(from->key(), progress)) core_->drain();  // what the core said may be on its way
  if (options_.served == nullptr || !stages_.is_entry(from->key(), progress)) return stages_.drop();
  options_.served->on_progress(from->key(), progress);
}

// What does not concern the core, of anybody else's.
bool Gate::serve_here(const SessionPtr& from, const Message& message) {
  if (serve_blobs(from, message)) return true;
  if (*from->role == Role::PeerBulk) {
    const auto* microbatch = std::get_if<proto::GetMicrobatch>(&message);
    if (microbatch != nullptr) feeds_.get(from->number, *microbatch);
    return microbatch != nullptr;
  }
  core_->drain();  // what the core has said is known before it is asked for
  if (!sessions_.find(from->number)) return true;
  if (const auto* events = std::get_if<proto::GetEvents>(&message)) {
    events_.get(from->number, *events);
    return true;
  }
  if (!std::holds_alternative<proto::ListPeers>(message)) return false;
  sessions_.send(from->number, peers_ ? *peers_ : proto::PeerList{});
  pace(from->number);
  return true;
}

bool Gate::serve_blobs(const SessionPtr& from, const Message& message) {
  const Instant now = loop_.now();
  if (const auto* get = std::get_if<proto::GetBlob>(&message))
    downloads_.get(from->number, *get, now);
  else if (const auto* put = std::get_if<proto::PutBlob>(&message))
    uploads_.put(from->number, from->key(), *put, now);
  else if (const auto* have = std::get_if<proto::HaveBlobs>(&message))
    uploads_.have(from->number, from->key(), *have, now);
  else
    return false;
  return true;
}

void Gate::to_core(ConnectionId from, decltype(ToCore::what) what, size_t size) {
  size += kMessageCost;
  intake_.give_to_core(from, size);
  core_->say(std::move(what), size);
  pace(from);
}

// ---- where it goes

void Gate::tell_peer(const PeerId& to, Message message) {
  loop_.post([this, to, message = std::move(message)] { send_to_stage(to, message); });
}

void Gate::send_to_stage(const PeerId& to, const Message& message) {
  const auto holder = stages_.holder_of(to, message);
  if (!holder || sessions_.bytes_queued(*holder) > kRequestsQueuedMax) return;
  sessions_.send(*holder, message);
  pace(*holder);
}

void Gate::let_arrive() {
  for (const ConnectionId which : intake_.let_in(loop_.now())) pace(which);
}

void Gate::pace(ConnectionId which) {
  const SessionPtr session = sessions_.find(which);
  if (!session) return;
  const auto pauses = intake_.pace(which, session->connection->stats().memory_queued);
  if (pauses) session->connection->pause_reading(*pauses);
}

// ---- what desks want

bool Gate::may_ask(ConnectionId whose) const { return !intake_.is_with_core(whose); }

void Gate::ask(ConnectionId whose, const proto::GetEvents& page) {
  to_core(whose, Received{whose, std::make_shared<const Message>(page)}, 0);
}

void Gate::come_back(ConnectionId whose) {
  loop_.post([this, whose] { events_.go_on(whose); });
}

void Gate::spare_turn_in(Duration wait) {
  egress_timer_ = loop_.after(wait, [this] { downloads_.send_spares(loop_.now()); });
}

namespace {
// A disk that is full, or a key's quota: whoever looks after the broker can do something about it.
void log_refused(const std::function<void(const std::string&)>& log, ConnectionId whose,
                 const proto::Message& message) {
  const auto* answer = std::get_if<proto::BlobAnswer>(&message);
  if (answer != nullptr && answer->code == ErrorCode::ResourceExhausted && !answer->message.empty())
    log("error blob_refused connection=" + std::to_string(whose) + " reason=\"" + answer->message + "\"");
}
}  // namespace

void Gate::work(ConnectionId whose, size_t size, Work work) {
  intake_.begin_work(whose, size);
  pace(whose);
  files_thread_->post([this, whose, size, work = std::move(work)] {
    loop_.post([this, whose, size, answer = work()] {
      intake_.end_work(whose, size);
      pace(whose);
      let_arrive();
      if (!answer) return;
      log_refused(options_.log, whose, *answer);
      sessions_.send(whose, *answer);
    });
  });
}

void Gate::read(ConnectionId whose, const proto::GetMicrobatch& request) {
  feeder_thread_->post([this, whose, request] {
    const auto read = std::make_shared<const Result<Feeder::Fed>>(feeder_.read(request));
    loop_.post([this, whose, request, read] { feeds_.on_read(whose, request, *read); });
  });
}

}  // namespace weft::broker
