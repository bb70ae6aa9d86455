// The connections of one link that is up: the further ones, and what each is given to carry.
#include <algorithm>
#include <utility>

#include "peer/service/bulk.h"
#include "peer/service/links.h"

namespace weft::peer {

namespace {
// What all connections of a link are given ahead, and each at least. Between the two as the connection takes
// it: what goes at once may be more the next time, what takes long is less.
constexpr size_t kAheadMax = 512 << 10;
constexpr size_t kAheadMin = proto::kPieceSize;
constexpr Duration kGoesAtOnce = std::chrono::milliseconds(1);
constexpr Duration kTakesLong = std::chrono::milliseconds(8);
constexpr Duration kBusyPart = std::chrono::milliseconds(50);  // of busy time is counted at once
// Whatever breaks connections soon after there are several: not for the rest of the run.
constexpr uint32_t kBrokenSessionsMax = 3;
constexpr Duration kLasts = std::chrono::minutes(1);
}  // namespace

Links::Way Links::make_way(const net::ConnectionPtr& connection, bool relayed) {
  return {.connection = connection,
          .number = next_number_++,
          .relayed = relayed,
          .heard = options_.loop->now(),
          .bytes_heard = connection->stats().bytes_received,
          .ahead = kAheadMin};
}

Links::Way* Links::way_of(Link& link, uint64_t number) {
  Way* found = nullptr;
  each_way(link, [&](Way& way) {
    if (way.number == number) found = &way;
  });
  return found;
}

Links::Stream* Links::stream_of(Link& link, uint64_t number) {
  for (auto& [index, stream] : link.further)
    if (stream.way.connection && stream.way.number == number) return &stream;
  return nullptr;
}

// ---- further connections

// Who dials sees how far away the other side is. Not over the relay, which everybody shares; an emulated link
// is one connection, whose rate is the link's.
void Links::open_streams(Link& link) {
  if (!link.route.dials || link.up.relayed || link.streams < 2 || link.round_trip < options_.far ||
      link.broken_sessions >= kBrokenSessionsMax || link.way >= link.route.addresses.size())
    return;
  const net::ConnectOptions connect = connect_options(link, link.route.region);
  const auto endpoint = net::parse_endpoint(link.route.addresses[link.way]);
  if (!endpoint || connect.shape) return;
  for (uint32_t index = 1; index < link.streams; ++index)
    link.further[index].attempt = net::connect(
        *options_.loop, *endpoint, connect,
        [this, seat = link.route.seat, session = link.session, index](Result<net::ConnectionPtr> result) {
          on_stream_dialled(seat, session, index, std::move(result));
        });
}

void Links::on_stream_dialled(plan::Seat seat, uint64_t session, uint32_t index,
                              Result<net::ConnectionPtr> result) {
  Link& link = links_.at(seat);
  if (link.session != session || !link.further.contains(index)) return;
  if (!result) {
    link.further.erase(index);
    return;
  }
  Stream& stream = link.further[index];
  stream.attempt.reset();
  stream.way = make_way(*result, /*relayed=*/false);
  const net::ConnectionPtr connection = std::move(*result);
  set_limits(*connection, /*in_pieces=*/true);
  connection->start(handlers_of(seat, stream.way.number));
  proto::LinkHello hello = hello_of(link);
  hello.stream = index;
  hello.session = session;
  connection->send(message_frame(hello));
}

void Links::on_stream_ready(Link& link, Stream& stream, const proto::Message& message) {
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  if (ready == nullptr || ready->session != link.session)
    return down(link.route.seat, {ErrorCode::InvalidArgument, std::string(proto::name_of(message)) +
                                                                  " does not begin a further connection"});
  stream.is_up = true;
  stream.way.connection->pause_reading(is_paused_);
  give(link);
}

std::optional<net::Connection::Handlers> Links::offer_stream(Link& link, const net::ConnectionPtr& connection,
                                                             const proto::LinkHello& hello) {
  if (!link.up.connection || !link.in_pieces || hello.session != link.session ||
      hello.stream >= link.streams || link.further.contains(hello.stream)) {
    connection->close();
    return std::nullopt;
  }
  Stream& stream = link.further[hello.stream];
  stream.way = make_way(connection, /*relayed=*/false);
  stream.is_up = true;
  set_limits(*connection, /*in_pieces=*/true);
  connection->pause_reading(is_paused_);
  connection->send(message_frame(ready_of(link)));
  const uint64_t number = stream.way.number;
  give(link);
  return handlers_of(link.route.seat, number);
}

// All of them end; what has not come whole goes again over the next ones.
void Links::end_session(Link& link) {
  const bool had_further = std::any_of(link.further.begin(), link.further.end(),
                                       [](const auto& entry) { return entry.second.is_up; });
  const bool lasted = options_.loop->now() - link.session_began >= kLasts;
  if (link.up.connection) link.broken_sessions = had_further && !lasted ? link.broken_sessions + 1 : 0;
  for (auto& [index, stream] : link.further) drop(link, stream.way);
  link.further.clear();
  drop(link, link.up);
  link.session = 0;
  link.choice = {};
  link.busy_since.reset();
  link.assembly.clear();
  link.meter.drop();
}

void Links::shift_clocks(Link& link, Duration by) {
  for (Instant* at : {&link.since, &link.up.heard, &link.greeting.heard}) *at += by;
  for (auto& [index, stream] : link.further) stream.way.heard += by;
}

// Over each of them: any may carry nothing else for a while.
void Links::say_alive(Link& link) {
  acknowledge(link);
  for (auto& [index, stream] : link.further)
    if (stream.is_up) stream.way.connection->send(message_frame(proto::LinkAck{link.receipts.received()}));
}

uint64_t Links::bytes_came(const Link& link) {
  uint64_t bytes = 0;
  each_way(link, [&](const Way& way) { bytes += way.connection->stats().bytes_received; });
  return bytes;
}

// ---- giving

void Links::give(Link& link) {
  while (give_next(link)) continue;
}

// The next piece to whichever of those in use has the least.
bool Links::give_next(Link& link) {
  Way* next = nullptr;
  size_t least = 0;
  each_way(link, [&](Way& way) {
    if (!link.choice.uses_all() && &way != &link.up) return;
    const size_t queued = way.connection->stats().bytes_queued;
    if (queued < way.ahead && (next == nullptr || queued < least)) next = &way, least = queued;
  });
  auto frame = next != nullptr ? link.queue.next(/*whole=*/!link.in_pieces) : std::nullopt;
  count_busy(link, next == nullptr && link.queue.unsent_bytes() > 0);
  if (!frame) return false;
  if (least == 0) next->given = options_.loop->now();
  next->connection->send(std::move(*frame));
  return true;
}

size_t Links::ahead_max(const Link& link) {
  return link.choice.uses_all() ? kAheadMax / link.streams : kAheadMax;
}

void Links::on_drained(plan::Seat seat, uint64_t number) {
  Link& link = links_.at(seat);
  Way* way = way_of(link, number);
  if (failed_ || way == nullptr) return;
  const Duration took = options_.loop->now() - way->given;
  if (took < kGoesAtOnce) way->ahead *= 2;
  if (took > kTakesLong) way->ahead = std::max(way->ahead / 2, kAheadMin);
  way->ahead = std::min(way->ahead, ahead_max(link));
  give(link);
}

// Where there is a choice of connections.
void Links::count_busy(Link& link, bool is_busy) {
  if (!is_busy && !link.busy_since) return;
  const bool has_further = std::any_of(link.further.begin(), link.further.end(),
                                       [](const auto& entry) { return entry.second.is_up; });
  if (!has_further || !link.up.connection) return link.busy_since.reset();
  const Instant now = options_.loop->now();
  if (is_busy && link.busy_since && now - *link.busy_since < kBusyPart) return;
  uint64_t sent = 0;
  each_way(link, [&](const Way& way) { sent += way.connection->stats().bytes_sent; });
  if (link.busy_since && sent >= link.busy_sent)
    link.choice.add(now, now - *link.busy_since, sent - link.busy_sent);
  link.busy_since = is_busy ? std::optional(now) : std::nullopt;
  link.busy_sent = sent;
}

}  // namespace weft::peer
