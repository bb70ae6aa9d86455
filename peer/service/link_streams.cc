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

Links::Channel* Links::channel_of(Link& link, uint64_t number) {
  const auto at = link.channels.find(number);
  return at != link.channels.end() && link.machine->carries(number) ? &at->second : nullptr;
}

uint64_t Links::bytes_came(const Link& link) {
  uint64_t bytes = 0;
  each_channel(link, [&](const Channel& channel) { bytes += channel.connection->stats().bytes_received; });
  return bytes;
}

void Links::give(Link& link) {
  while (give_next(link)) continue;
}

// The next piece to whichever of those in use has the least.
bool Links::give_next(Link& link) {
  Channel* next = nullptr;
  size_t least = 0;
  each_channel(link, [&](Channel& channel) {
    if (!link.choice.uses_all() && &channel != &link.channels.at(link.carrying.front())) return;
    const size_t queued = channel.connection->stats().bytes_queued;
    if (queued < channel.ahead && (next == nullptr || queued < least)) next = &channel, least = queued;
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
  Channel* channel = channel_of(link, number);
  if (failed_ || channel == nullptr) return;
  const Duration took = options_.loop->now() - channel->given;
  if (took < kGoesAtOnce) channel->ahead *= 2;
  if (took > kTakesLong) channel->ahead = std::max(channel->ahead / 2, kAheadMin);
  channel->ahead = std::min(channel->ahead, ahead_max(link));
  give(link);
}

// Where there is a choice of connections.
void Links::count_busy(Link& link, bool is_busy) {
  if (!is_busy && !link.busy_since) return;
  if (link.carrying.size() < 2) return link.busy_since.reset();
  const Instant now = options_.loop->now();
  if (is_busy && link.busy_since && now - *link.busy_since < kBusyPart) return;
  uint64_t sent = 0;
  each_channel(link, [&](const Channel& channel) { sent += channel.connection->stats().bytes_sent; });
  if (link.busy_since && sent >= link.busy_sent)
    link.choice.add(now, now - *link.busy_since, sent - link.busy_sent);
  link.busy_since = is_busy ? std::optional(now) : std::nullopt;
  link.busy_sent = sent;
}

}  // namespace weft::peer
