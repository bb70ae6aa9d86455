#include "peer/service/links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "peer/service/bulk.h"
#include "security/token.h"

namespace weft::peer {

namespace {
constexpr Duration kRetryDelay = std::chrono::milliseconds(50);
constexpr size_t kUnsentMax = 128 << 10;  // bytes in a socket's buffer, behind which what is urgent waits
constexpr Duration kAsleep = std::chrono::seconds(2);  // between two ticks: this process did not run

std::string text_of(const std::map<std::string, std::string>& problems) {
  std::string text;
  for (const auto& [where, what] : problems) text += (text.empty() ? "" : "; ") + where + ": " + what;
  return text.empty() ? "nobody came" : text;
}

uint64_t edge_bytes(const proto::StageProgram& program, const proto::EdgeEnd& end) {
  return static_cast<uint64_t>(program.graph->spec(end.value).bytes().value);
}
}  // namespace

Links::Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers)
    : options_(std::move(options)), assignment_(std::move(assignment)), handlers_(std::move(handlers)) {
  for (const proto::LinkRoute& route : assignment_->links) {
    Link& link = links_[route.seat];
    link.route = route;
    uint64_t sends = 0, receives = 0;  // bytes of all edges
    for (const proto::StageProgram& program : assignment_->programs) {
      for (const proto::EdgeEnd& end : program.sends)
        if (other_end(end, 0) == route.seat) sends += edge_bytes(program, end);
      for (const proto::EdgeEnd& end : program.receives)
        if (other_end(end, 0) == route.seat) receives += edge_bytes(program, end);
    }
    link.queue = LinkQueue({.kept_bytes_max = options_.kept_bytes_max, .window_bytes = window_of(sends)});
    // Twice what is begun at a time by who keeps to it.
    link.assembly = TensorAssembly(2 * window_of(receives));
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

net::ConnectOptions Links::connect_options(const Link& link, const std::string& region) const {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = link.route.peer;
  options.deadline = options_.address_deadline;
  options.may_dial = options_.may_dial;
  if (options_.shape) options.shape = options_.shape(region);
  return options;
}

void Links::set_limits(net::Connection& connection, bool in_pieces) {
  net::ConnectionLimits limits;
  limits.frame_size_max = in_pieces ? proto::kPieceSize + proto::kPieceHeadSizeMax
                                    : proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
  // A tensor at a time. A neighbour that sends and does not read does not make acknowledgements pile up
  // without end.
  limits.send_queue_max = proto::kTensorSizeMax + (64 << 20);
  limits.unsent_max = kUnsentMax;
  connection.set_limits(limits);
}

proto::LinkHello Links::hello_of(const Link& link) const {
  return {.run = assignment_->run,
          .plan_version = assignment_->plan_version,
          .seat = assignment_->seat,
          .received = link.receipts.received(),
          .streams = options_.streams};
}

proto::LinkReady Links::ready_of(const Link& link) const {
  return {link.receipts.received(), options_.streams, link.session};
}

void Links::dial(Link& link) {
  link.dialled = options_.loop->now();
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
  net::ConnectOptions connect = connect_options(link, "");
  connect.may_dial = nullptr;  // the owner named the broker
  link.attempt =
      net::connect_by_relay(*options_.loop, options_.relay, {link.route.relay_ticket}, link.route.dials,
                            connect, [this, seat = link.route.seat](Result<net::ConnectionPtr> result) {
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
  link.greeting = make_way(*result, relayed);
  link.greeted = options_.loop->now();
  const net::ConnectionPtr connection = std::move(*result);
  set_limits(*connection, /*in_pieces=*/false);
  connection->start(handlers_of(seat, link.greeting.number));
  // Who dials introduces itself, also through the relay.
  if (!link.route.dials) return;
  (void)link.receipts.tell_received();
  connection->send(message_frame(hello_of(link)));
}

net::Connection::Handlers Links::handlers_of(plan::Seat seat, uint64_t number) {
  const std::weak_ptr<char> alive = alive_;
  return {
      .on_frame =
          [this, seat, number, alive](const net::InFrame& frame) {
            if (!alive.expired()) on_frame(seat, number, frame);
          },
      .on_closed =
          [this, seat, number, alive](const Error& error) {
            if (!alive.expired()) on_lost(seat, number, error);
          },
      .on_drained =
          [this, seat, number, alive] {
            if (!alive.expired()) on_drained(seat, number);
          },
      .on_head = [this, seat, number, alive](uint8_t kind, size_t size,
                                             std::span<const std::byte> head) -> Result<net::PayloadPlace> {
        return alive.expired() ? net::PayloadPlace{} : on_head(seat, number, kind, size, head);
      }};
}

std::optional<net::Connection::Handlers> Links::offer(const net::ConnectionPtr& connection,
                                                      const proto::LinkHello& hello) {
  if (hello.run != assignment_->run || hello.plan_version != assignment_->plan_version) return std::nullopt;
  const auto at = links_.find(hello.seat);
  if (at == links_.end() || at->second.route.dials || at->second.route.peer != connection->remote())
    return std::nullopt;
  if (hello.stream != 0) return offer_stream(at->second, connection, hello);
  const Way way = make_way(connection, /*relayed=*/false);
  if (!set_up(at->second, way, {hello.received, hello.streams, 0}, /*answers=*/true)) {
    connection->close();
    return std::nullopt;
  }
  return handlers_of(hello.seat, way.number);
}

// The other side waits at the relay, so whatever connection there is has ended for it.
void Links::on_invitation(const proto::Secret& ticket) {
  for (auto& [seat, link] : links_)
    if (!link.route.dials && !link.attempt && link.route.relay_ticket == ticket) dial_relay(link);
}

// A new connection takes the place of the one before: its way is the newest that the other side knows of.
bool Links::set_up(Link& link, Way way, const Greeting& theirs, bool answers) {
  const bool in_pieces = options_.streams > 0 && theirs.streams > 0;
  if (link.was_up && in_pieces != link.in_pieces) {
    link.problems["greeting"] = "it says otherwise than before whether it knows pieces";
    return false;
  }
  if (const Status resumed = link.queue.resume(theirs.received); !resumed) {
    link.problems["greeting"] = resumed.error().message;
    return false;
  }
  if (link.greeting.number == way.number) link.greeting = {};
  end_session(link);
  drop(link, link.greeting);
  link.attempt.reset();
  link.retry.reset();
  link.up = std::move(way);
  link.in_pieces = in_pieces;
  link.streams = in_pieces ? std::min(options_.streams, theirs.streams) : 1;
  link.session_began = options_.loop->now();
  set_limits(*link.up.connection, in_pieces);
  link.up.connection->pause_reading(is_paused_);
  link.was_up = true;
  link.relayed = link.up.relayed;
  link.problems.clear();
  link.acknowledged = options_.loop->now();
  link.session = theirs.session;
  if (answers) {
    std::array<uint8_t, sizeof(link.session)> drawn;
    security::fill_random(drawn);
    std::memcpy(&link.session, drawn.data(), drawn.size());
    (void)link.receipts.tell_received();
    link.up.connection->send(message_frame(ready_of(link)));
  }
  give(link);
  open_streams(link);
  if (!all_up_said_ && !failed_ && all_up()) {
    all_up_said_ = true;
    handlers_.on_all_up();
  }
  return true;
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
  const Greeting theirs = ready != nullptr ? Greeting{ready->received, ready->streams, ready->session}
                                           : Greeting{hello->received, hello->streams, 0};
  // Who dials has waited two round trips for the connection and one for this answer, if it came at once.
  const Instant now = options_.loop->now();
  link.round_trip = std::min((link.greeted - link.dialled) / 2, now - link.greeted);
  if (set_up(link, link.greeting, theirs, /*answers=*/!link.route.dials)) return;
  drop(link, link.greeting);
  ++link.tries;
  dial_later(link);
}

void Links::acknowledge(Link& link) {
  link.acknowledged = options_.loop->now();
  link.up.connection->send(message_frame(proto::LinkAck{link.receipts.tell_received()}));
}

void Links::send(plan::Seat seat, net::OutFrame frame) {
  const auto at = links_.find(seat);
  WEFT_CHECK(at != links_.end());
  Link& link = at->second;
  if (failed_) return;
  const auto tensor = proto::decode_tensor_head(frame.head, frame.payload_size());
  WEFT_CHECK(tensor.has_value());
  if (const Status kept = link.queue.add(urgency_of(tensor->header, *assignment_), std::move(frame)); !kept)
    return down(seat, kept.error());
  give(link);
}

// ---- the end of a connection, and of a link

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
  } else if (way_of(link, number) != nullptr) {
    end_session(link);
    link.since = options_.loop->now();
  } else {
    // A further connection that did not come about: the others do its work.
    std::erase_if(link.further, [&](const auto& entry) { return entry.second.way.number == number; });
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
    for (auto& [seat, link] : links_) shift_clocks(link, now - ticked_);
  ticked_ = now;
  for (auto& [seat, link] : links_) {
    if (failed_) return;
    on_link_tick(link, now);
  }
}

void Links::on_link_tick(Link& link, Instant now) {
  const plan::Seat seat = link.route.seat;
  std::vector<Way*> ways{&link.up, &link.greeting};
  for (auto& [index, stream] : link.further) ways.push_back(&stream.way);
  std::vector<std::pair<uint64_t, Duration>> silent;
  for (Way* way : ways) {
    if (!way->connection) continue;
    const uint64_t bytes = way->connection->stats().bytes_received;
    if (bytes != way->bytes_heard || is_paused_) way->heard = now;
    way->bytes_heard = bytes;
    // A neighbour may not have its stage yet, the first time.
    const Duration deadline = way_of(link, way->number) != nullptr ? options_.silence_deadline
                              : link.was_up                        ? options_.address_deadline
                                                                   : options_.ready_deadline;
    if (now - way->heard > deadline) silent.emplace_back(way->number, deadline);
  }
  for (const auto& [number, deadline] : silent)
    on_lost(seat, number,
            {ErrorCode::Timeout,
             "nothing came for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"});
  if (link.up.connection) {
    if (now - link.acknowledged >= options_.ack_interval) say_alive(link);
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
  for (auto& [seat, link] : links_) {
    link.meter.drop();
    each_way(link, [&](Way& way) { way.connection->pause_reading(paused); });
  }
}

bool Links::all_up() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.was_up; });
}

size_t Links::unsent() const {
  size_t unsent = 0;
  for (const auto& [seat, link] : links_) {
    if (!link.up.connection) continue;
    unsent += link.queue.unsent_bytes();
    each_way(link, [&](const Way& way) { unsent += way.connection->unsent(); });
  }
  return unsent;
}

std::vector<proto::LinkUse> Links::take_use() {
  std::vector<proto::LinkUse> uses;
  for (auto& [seat, link] : links_) {
    uint64_t sent = link.bytes_sent_before;
    each_way(link, [&](const Way& way) { sent += way.connection->stats().bytes_sent; });
    proto::LinkUse use = link.meter.take();
    use.seat = seat;
    use.bytes_sent = sent - link.bytes_sent_told;
    uses.push_back(use);
    link.bytes_sent_told = sent;
  }
  return uses;
}

}  // namespace weft::peer
