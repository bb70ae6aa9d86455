#include "peer/service/links.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "peer/service/bulk.h"

namespace weft::peer {

namespace {
constexpr Duration kRetryDelay = std::chrono::milliseconds(50);
// Smaller tensors come in one piece, or nearly so.
constexpr size_t kTimedSizeMin = 64 << 10;
constexpr Duration kAsleep = std::chrono::seconds(2);  // between two ticks: this process did not run

std::string text_of(const std::map<std::string, std::string>& problems) {
  std::string text;
  for (const auto& [where, what] : problems) text += (text.empty() ? "" : "; ") + where + ": " + what;
  return text.empty() ? "nobody came" : text;
}
}  // namespace

Links::Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers)
    : options_(std::move(options)), assignment_(std::move(assignment)), handlers_(std::move(handlers)) {
  for (const proto::LinkRoute& route : assignment_->links) {
    Link& link = links_[route.seat];
    link.route = route;
    link.ledger = LinkLedger<net::OutFrame>({.kept_bytes_max = options_.kept_bytes_max});
  }
}

void Links::start() {
  ticked_ = options_.loop->now();
  for (auto& [seat, link] : links_) {
    link.since = ticked_;
    if (link.route.dials) dial(link);
  }
  if (!all_up()) return;
  all_up_said_ = true;
  handlers_.on_all_up();
}

// ---- connecting
// -------------------------------------------------------------------------------------------------

net::ConnectOptions Links::connect_options(const Link& link, const std::string& region) const {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = link.route.peer;
  options.deadline = options_.address_deadline;
  if (options_.shape) options.shape = options_.shape(region);
  return options;
}

void Links::set_limits(net::Connection& connection) const {
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
  // What is kept may all be queued again. What was acknowledged is not kept, but a neighbour that says so
  // without reading does not make the queue grow without end.
  limits.send_queue_max = options_.kept_bytes_max + (64 << 20);
  connection.set_limits(limits);
}

void Links::dial(Link& link) {
  while (link.way < link.route.addresses.size()) {
    const std::string& address = link.route.addresses[link.way];
    const auto endpoint = net::parse_endpoint(address);
    if (endpoint) {
      link.attempt = net::connect(*options_.loop, *endpoint, connect_options(link, link.route.region),
                                  [this, seat = link.route.seat, address](Result<net::ConnectionPtr> result) {
                                    on_dialled(seat, /*relayed=*/false, address, std::move(result));
                                  });
      return;
    }
    link.problems[address] = endpoint.error().message;
    ++link.way;
    ++link.tries;
  }
  dial_relay(link);
}

// The TLS client there is the side that dials.
void Links::dial_relay(Link& link) {
  link.attempt = net::connect_by_relay(*options_.loop, options_.relay, {link.route.relay_ticket},
                                       link.route.dials, connect_options(link, ""),
                                       [this, seat = link.route.seat](Result<net::ConnectionPtr> result) {
                                         on_dialled(seat, /*relayed=*/true, "relay", std::move(result));
                                       });
}

// Every way once at once, then with growing pauses.
void Links::dial_later(Link& link) {
  if (failed_ || link.attempt || link.up.connection || link.greeting.connection) return;
  if (!link.route.dials && !link.relayed) return;  // the other side comes
  const size_t ways = link.route.dials ? link.route.addresses.size() + 1 : 1;
  const size_t rounds = link.tries / ways;
  const Duration delay =
      rounds == 0 ? Duration::zero()
                  : std::min(options_.retry_delay_max, kRetryDelay * (1 << std::min<size_t>(rounds, 10)));
  link.retry = options_.loop->after(delay, [this, seat = link.route.seat] {
    Link& later = links_.at(seat);
    if (later.attempt || later.up.connection || later.greeting.connection) return;
    if (later.route.dials)
      dial(later);
    else
      dial_relay(later);
  });
}

void Links::on_dialled(plan::Seat seat, bool relayed, const std::string& where,
                       Result<net::ConnectionPtr> result) {
  Link& link = links_.at(seat);
  link.attempt.reset();
  if (!result) {
    link.problems[where] = result.error().message;
    link.way = link.way < link.route.addresses.size() ? link.way + 1 : 0;
    ++link.tries;
    return dial_later(link);
  }
  drop(link, link.greeting);
  const uint64_t number = next_number_++;
  const net::ConnectionPtr connection = std::move(*result);
  link.greeting = {connection, number, relayed, options_.loop->now()};
  set_limits(*connection);
  connection->start(handlers_of(seat, number));
  // Who dials introduces itself, also through the relay.
  if (link.route.dials)
    connection->send(message_frame(proto::LinkHello{.run = assignment_->run,
                                                    .plan_version = assignment_->plan_version,
                                                    .seat = assignment_->seat,
                                                    .received = link.ledger.tell_received()}));
}

net::Connection::Handlers Links::handlers_of(plan::Seat seat, uint64_t number) {
  const std::weak_ptr<char> alive = alive_;
  return {.on_frame =
              [this, seat, number, alive](const net::InFrame& frame) {
                if (!alive.expired()) on_frame(seat, number, frame);
              },
          .on_closed =
              [this, seat, number, alive](const Error& error) {
                if (!alive.expired()) on_lost(seat, number, error);
              },
          .on_head = [this, seat, number, alive](uint8_t kind, size_t size,
                                                 std::span<const std::byte> head) -> Result<net::Placement> {
            return alive.expired() ? net::Placement{} : on_head(seat, number, kind, size, head);
          }};
}

std::optional<net::Connection::Handlers> Links::offer(const net::ConnectionPtr& connection,
                                                      const proto::LinkHello& hello) {
  if (hello.run != assignment_->run || hello.plan_version != assignment_->plan_version) return std::nullopt;
  const auto at = links_.find(hello.seat);
  if (at == links_.end() || at->second.route.dials || at->second.route.peer != connection->remote())
    return std::nullopt;
  set_limits(*connection);
  const uint64_t number = next_number_++;
  const Way way{connection, number, /*relayed=*/false, options_.loop->now(),
                connection->stats().bytes_received};
  if (!set_up(at->second, way, hello.received, /*answers=*/true)) {
    connection->close();
    return std::nullopt;
  }
  return handlers_of(hello.seat, number);
}

// The other side waits at the relay, so whatever connection there is has ended for it.
void Links::on_invitation(const proto::Secret& ticket) {
  for (auto& [seat, link] : links_)
    if (!link.route.dials && !link.attempt && link.route.relay_ticket == ticket) dial_relay(link);
}

// A new connection takes the place of the one before: its way is the newest that the other side knows of.
bool Links::set_up(Link& link, Way way, uint64_t received, bool answers) {
  if (const Status resumed = link.ledger.resume(received); !resumed) {
    link.problems["greeting"] = resumed.error().message;
    return false;
  }
  drop(link, link.up);
  if (link.greeting.number != way.number) drop(link, link.greeting);
  link.greeting = {};
  link.attempt.reset();
  link.retry.reset();
  link.up = std::move(way);
  link.up.connection->pause_reading(is_paused_);
  link.was_up = true;
  link.relayed = link.up.relayed;
  link.problems.clear();
  link.acknowledged = options_.loop->now();
  if (answers) link.up.connection->send(message_frame(proto::LinkReady{link.ledger.tell_received()}));
  link.ledger.each_kept([&](const net::OutFrame& frame) { link.up.connection->send(frame); });
  if (!all_up_said_ && !failed_ && all_up()) {
    all_up_said_ = true;
    handlers_.on_all_up();
  }
  return true;
}

// ---- frames
// -----------------------------------------------------------------------------------------------------

// A tensor that the assignment expects goes straight into the memory that it keeps. Of any other the machine
// says what is wrong, once all of it has come.
Result<net::Placement> Links::on_head(plan::Seat seat, uint64_t number, uint8_t kind, size_t payload_size,
                                      std::span<const std::byte> head) {
  if (failed_ || kind != static_cast<uint8_t>(proto::FrameKind::Tensor) ||
      number != links_.at(seat).up.number)
    return net::Placement{};
  const auto refuse = [&](const Error& error) {
    down(seat, error);
    return fail(error);
  };
  links_.at(seat).head_came = options_.loop->now();
  const auto tensor = proto::decode_tensor_head(head, payload_size);
  if (!tensor) return refuse(tensor.error());
  const auto expected = expected_of(tensor->header);
  if (!expected) return net::Placement{};
  const auto wrong = [&](const std::string& is, const std::string& should) {
    return refuse({ErrorCode::InvalidArgument,
                   "edge " + std::to_string(tensor->header.edge) + ": it is " + is + ", expected " + should});
  };
  if (tensor->header.spec != *expected->spec)
    return wrong(dag::to_string(tensor->header.spec), dag::to_string(*expected->spec));
  if (!proto::may_come_as(tensor->header.codec, expected->codec))
    return wrong(compress::name(tensor->header.codec), compress::name(expected->codec));
  return net::Placement{tensor->size, dag::allocate_tensor_bytes(payload_size - tensor->size)};
}

std::optional<Links::Expected> Links::expected_of(const proto::TensorHeader& header) const {
  for (const proto::StageProgram& program : assignment_->programs)
    if (program.kind == header.program)
      for (const proto::EdgeEnd& end : program.receives)
        if (end.edge == header.edge) return Expected{&program.graph->spec(end.value), end.codec};
  return std::nullopt;
}

void Links::on_frame(plan::Seat seat, uint64_t number, const net::InFrame& frame) {
  Link& link = links_.at(seat);
  if (failed_ || (number != link.up.number && number != link.greeting.number)) return;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return down(seat, message.error());
    if (number == link.greeting.number) return on_greeting(link, *message);
    const auto* ack = std::get_if<proto::LinkAck>(&*message);
    if (ack == nullptr)
      return down(seat,
                  {ErrorCode::InvalidArgument, std::string(proto::name_of(*message)) + " is not for a link"});
    link.tries = 0;
    if (const Status taken = link.ledger.acknowledged(ack->received); !taken) down(seat, taken.error());
    return;
  }
  if (frame.kind != static_cast<uint8_t>(proto::FrameKind::Tensor) || number != link.up.number)
    return down(seat, {ErrorCode::InvalidArgument, "a frame that is not for a link"});
  auto came = tensor_of(frame);
  if (!came) return down(seat, came.error());
  link.tries = 0;
  if (!is_paused_) time_frame(link, frame.size());
  if (link.ledger.count_received(frame.size())) acknowledge(link);
  handlers_.on_tensor(seat, came->header, std::move(came->payload));
}

// What came while nothing was read has waited here, and says nothing of the link: it seems fast. The broker
// takes that into account.
void Links::time_frame(Link& link, size_t size) const {
  if (size < kTimedSizeMin) return;
  const double took = std::max(seconds(options_.loop->now() - link.head_came), 1e-6);
  link.timed.bytes_timed += size;
  link.timed.seconds_timed += took;
  link.timed.fastest_bytes_per_second =
      std::max(link.timed.fastest_bytes_per_second, static_cast<double>(size) / took);
}

void Links::on_greeting(Link& link, const proto::Message& message) {
  const plan::Seat seat = link.route.seat;
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  const auto* hello = std::get_if<proto::LinkHello>(&message);  // through the relay
  const bool greets = link.route.dials
                          ? ready != nullptr
                          : hello != nullptr && hello->run == assignment_->run &&
                                hello->plan_version == assignment_->plan_version && hello->seat == seat;
  if (!greets)
    return down(
        seat, {ErrorCode::InvalidArgument, std::string(proto::name_of(message)) + " does not begin a link"});
  const uint64_t received = ready != nullptr ? ready->received : hello->received;
  if (set_up(link, link.greeting, received, /*answers=*/!link.route.dials)) return;
  drop(link, link.greeting);
  ++link.tries;
  dial_later(link);
}

void Links::acknowledge(Link& link) {
  link.acknowledged = options_.loop->now();
  link.up.connection->send(message_frame(proto::LinkAck{link.ledger.tell_received()}));
}

void Links::send(plan::Seat seat, net::OutFrame frame) {
  const auto at = links_.find(seat);
  WEFT_CHECK(at != links_.end());
  Link& link = at->second;
  if (failed_) return;
  if (link.up.connection) link.up.connection->send(frame);  // the bytes are shared
  const uint64_t size = frame.payload_size();
  if (const Status kept = link.ledger.keep(std::move(frame), size); !kept) down(seat, kept.error());
}

// ---- the end of a connection, and of a link
// ---------------------------------------------------------------------

void Links::drop(Link& link, Way& way) {
  if (way.connection) {
    link.bytes_sent_before += way.connection->stats().bytes_sent;
    way.connection->close();
  }
  way = {};
}

void Links::on_lost(plan::Seat seat, uint64_t number, const Error& error) {
  Link& link = links_.at(seat);
  if (number == link.greeting.number) {
    drop(link, link.greeting);
    link.way = link.way < link.route.addresses.size() ? link.way + 1 : 0;
  } else if (number == link.up.number) {
    drop(link, link.up);
    link.since = options_.loop->now();
  } else {
    return;
  }
  ++link.tries;
  link.problems["connection"] = error.message;
  dial_later(link);
}

void Links::on_tick() {
  const Instant now = options_.loop->now();
  // Who slept has heard nothing, and cannot blame the others for it.
  if (now - ticked_ > kAsleep)
    for (auto& [seat, link] : links_)
      for (Instant* at : {&link.since, &link.up.heard, &link.greeting.heard}) *at += now - ticked_;
  ticked_ = now;
  for (auto& [seat, link] : links_) {
    if (failed_) return;
    on_link_tick(link, now);
  }
}

void Links::on_link_tick(Link& link, Instant now) {
  const plan::Seat seat = link.route.seat;
  for (Way* way : {&link.up, &link.greeting}) {
    if (!way->connection) continue;
    const uint64_t bytes = way->connection->stats().bytes_received;
    if (bytes != way->bytes_heard || is_paused_) way->heard = now;
    way->bytes_heard = bytes;
    // A neighbour may not have its stage yet, the first time.
    const Duration deadline = way == &link.up ? options_.silence_deadline
                              : link.was_up   ? options_.address_deadline
                                              : options_.ready_deadline;
    if (now - way->heard > deadline)
      on_lost(seat, way->number,
              {ErrorCode::Timeout,
               "nothing came for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"});
  }
  if (link.up.connection) {
    if (now - link.acknowledged >= options_.ack_interval) acknowledge(link);
    return;
  }
  if (now - link.since <= (link.was_up ? options_.heal_deadline : options_.ready_deadline)) return;
  down(seat, {ErrorCode::Timeout, (link.was_up ? "the connection was lost and did not come back in time: "
                                               : "the link did not come up in time: ") +
                                      text_of(link.problems)});
}

void Links::down(plan::Seat seat, const Error& error) {
  if (failed_) return;
  failed_ = true;
  handlers_.on_down(seat, error);
}

void Links::pause_reading(bool paused) {
  is_paused_ = paused;
  for (auto& [seat, link] : links_)
    if (link.up.connection) link.up.connection->pause_reading(paused);
}

bool Links::all_up() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.was_up; });
}

size_t Links::unsent() const {
  size_t unsent = 0;
  for (const auto& [seat, link] : links_)
    if (link.up.connection) unsent += link.up.connection->unsent();
  return unsent;
}

std::vector<proto::LinkUse> Links::take_use() {
  std::vector<proto::LinkUse> uses;
  for (auto& [seat, link] : links_) {
    const uint64_t sent =
        link.bytes_sent_before + (link.up.connection ? link.up.connection->stats().bytes_sent : 0);
    proto::LinkUse use = std::exchange(link.timed, {});
    use.seat = seat;
    use.bytes_sent = sent - link.bytes_sent_told;
    uses.push_back(use);
    link.bytes_sent_told = sent;
  }
  return uses;
}

}  // namespace weft::peer
