// What each connection of a link that is up is given to carry.
#include <algorithm>
#include <utility>

#include "peer/service/bulk.h"
#include "peer/service/links.h"

namespace weft::peer {

namespace {
// What all connections of a link are given ahead, and each at least (Links::kAheadMin). Between the two as
// the connection takes it: what goes at once may be more the next time, what takes long is less.
constexpr size_t kAheadMax = 512 << 10;
constexpr Duration kGoesAtOnce = std::chrono::milliseconds(1);
constexpr Duration kTakesLong = std::chrono::milliseconds(8);
constexpr Duration kBusyPart = std::chrono::milliseconds(50);  // of busy time is counted at once
}  // namespace

Links::Way* Links::way_of(Link& link, uint64_t number) {
  const auto at = link.ways.find(number);
  return at != link.ways.end() && link.machine->carries(number) ? &at->second : nullptr;
}

uint64_t Links::bytes_came(const Link& link) {
  uint64_t bytes = 0;
  each_way(link, [&](const Way& way) { bytes += way.connection->stats().bytes_received; });
  return bytes;
}

void Links::give(Link& link) {
  while (give_next(link)) continue;
}

// The next piece to whichever of those in use has the least.
bool Links::give_next(Link& link) {
  Way* next = nullptr;
  size_t least = 0;
  each_way(link, [&](Way& way) {
    if (!link.choice.uses_all() && &way != &link.ways.at(link.carrying.front())) return;
    const size_t queued = way.connection->stats().bytes_queued;
    if (queued < way.ahead && (next == nullptr || queued < least)) next = &way, least = queued;
  });
  auto frame = next != nullptr ? link.queue.next(/*whole=*/!link.machine->in_pieces()) : std::nullopt;
  count_busy(link, next == nullptr && link.queue.unsent_bytes() > 0);
  if (!frame) return false;
  if (least == 0) next->given = options_.loop->now();
  next->connection->send(std::move(*frame));
  return true;
}

size_t Links::ahead_max(const Link& link) {
  return link.choice.uses_all() ? kAheadMax / link.machine->streams() : kAheadMax;
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
  if (link.carrying.size() < 2) return link.busy_since.reset();
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
