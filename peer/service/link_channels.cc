#include "peer/service/link_channels.h"

#include <algorithm>
#include <utility>

namespace weft::peer {

namespace {
// What all connections of a link are given ahead, and each at least. Between the two as the connection takes
// it: what goes at once may be more the next time, what takes long is less.
constexpr size_t kAheadMin = proto::kPieceSize;
constexpr size_t kAheadMax = 512 << 10;
constexpr Duration kGoesAtOnce = std::chrono::milliseconds(1);
constexpr Duration kTakesLong = std::chrono::milliseconds(8);
constexpr Duration kBusyPart = std::chrono::milliseconds(50);  // of busy time is counted at once
}  // namespace

void LinkChannels::add(uint64_t number, const net::ConnectionPtr& connection) {
  channels_[number] = {
      .connection = connection, .bytes_heard = connection->stats().bytes_received, .ahead = kAheadMin};
}

net::ConnectionPtr LinkChannels::take(uint64_t number) {
  const auto at = channels_.find(number);
  if (at == channels_.end()) return nullptr;
  net::ConnectionPtr connection = std::move(at->second.connection);
  channels_.erase(at);
  sent_before_ += connection->stats().bytes_sent;
  return connection;
}

LinkChannels::Channel* LinkChannels::find(uint64_t number) {
  const auto at = channels_.find(number);
  return at != channels_.end() ? &at->second : nullptr;
}

std::vector<uint64_t> LinkChannels::heard(bool all) {
  std::vector<uint64_t> numbers;
  for (auto& [number, channel] : channels_) {
    const uint64_t bytes = channel.connection->stats().bytes_received;
    if (std::exchange(channel.bytes_heard, bytes) != bytes || all) numbers.push_back(number);
  }
  return numbers;
}

void LinkChannels::end_session() {
  carrying_.clear();
  choice_ = {};
  busy_since_.reset();
}

void LinkChannels::give(LinkQueue& queue, bool whole, Instant now) {
  while (give_next(queue, whole, now)) continue;
}

// The next piece to whichever of those in use has the least. False: none of them takes more, or there is
// nothing.
bool LinkChannels::give_next(LinkQueue& queue, bool whole, Instant now) {
  Channel* next = nullptr;
  size_t least = 0;
  each_carrying(*this, [&](Channel& channel) {
    if (!choice_.uses_all() && &channel != &channels_.at(carrying_.front())) return;
    const size_t queued = channel.connection->stats().bytes_queued;
    if (queued < channel.ahead && (next == nullptr || queued < least)) next = &channel, least = queued;
  });
  auto frame = next != nullptr ? queue.next(whole) : std::nullopt;
  count_busy(next == nullptr && queue.unsent_bytes() > 0, now);
  if (!frame) return false;
  if (least == 0) next->given = now;
  next->connection->send(std::move(*frame));
  return true;
}

void LinkChannels::on_drained(Channel& channel, uint32_t streams, Instant now) const {
  const Duration took = now - channel.given;
  if (took < kGoesAtOnce) channel.ahead *= 2;
  if (took > kTakesLong) channel.ahead = std::max(channel.ahead / 2, kAheadMin);
  channel.ahead = std::min(channel.ahead, choice_.uses_all() ? kAheadMax / streams : kAheadMax);
}

// Where there is a choice of connections.
void LinkChannels::count_busy(bool is_busy, Instant now) {
  if (!is_busy && !busy_since_) return;
  if (carrying_.size() < 2) return busy_since_.reset();
  if (is_busy && busy_since_ && now - *busy_since_ < kBusyPart) return;
  uint64_t sent = 0;
  each_carrying(*this, [&](const Channel& channel) { sent += channel.connection->stats().bytes_sent; });
  if (busy_since_ && sent >= busy_sent_) choice_.add(now, now - *busy_since_, sent - busy_sent_);
  busy_since_ = is_busy ? std::optional(now) : std::nullopt;
  busy_sent_ = sent;
}

void LinkChannels::pause_reading(bool paused) {
  each_carrying(*this, [&](Channel& channel) { channel.connection->pause_reading(paused); });
}

uint64_t LinkChannels::came() const {
  uint64_t bytes = 0;
  each_carrying(*this, [&](const Channel& channel) { bytes += channel.connection->stats().bytes_received; });
  return bytes;
}

size_t LinkChannels::unsent() const {
  size_t unsent = 0;
  each_carrying(*this, [&](const Channel& channel) { unsent += channel.connection->unsent(); });
  return unsent;
}

uint64_t LinkChannels::take_sent() {
  uint64_t sent = sent_before_;
  for (const auto& [number, channel] : channels_) sent += channel.connection->stats().bytes_sent;
  return sent - std::exchange(sent_told_, sent);
}

}  // namespace weft::peer
