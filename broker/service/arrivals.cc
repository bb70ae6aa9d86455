#include "broker/service/arrivals.h"

#include <algorithm>

#include "base/check.h"

namespace weft::broker {

void Arrivals::begin(ConnectionId connection, size_t size, bool is_urgent) {
  const bool is_new = all_.insert({connection, {.size = size, .is_urgent = is_urgent}}).second;
  WEFT_CHECK(is_new);
  (is_urgent ? urgent_ : others_).push_back(connection);
}

bool Arrivals::end(ConnectionId connection) {
  const auto at = all_.find(connection);
  if (at == all_.end()) return false;
  if (at->second.since)
    bytes_ -= at->second.size;
  else
    std::erase(at->second.is_urgent ? urgent_ : others_, connection);
  all_.erase(at);
  return true;
}

bool Arrivals::waits(ConnectionId connection) const {
  const auto at = all_.find(connection);
  return at != all_.end() && !at->second.since;
}

std::vector<ConnectionId> Arrivals::let_in(Instant now, size_t in_use) {
  std::vector<ConnectionId> let_in;
  while (!urgent_.empty() || !others_.empty()) {
    std::deque<ConnectionId>& queue = urgent_.empty() ? others_ : urgent_;
    Arrival& next = all_.at(queue.front());
    if (in_use + bytes_ > 0 && in_use + bytes_ + next.size > options_.max) break;
    bytes_ += next.size;
    next.since = now;
    let_in.push_back(queue.front());
    queue.pop_front();
  }
  return let_in;
}

std::vector<ConnectionId> Arrivals::late(Instant now) const {
  std::vector<ConnectionId> late;
  if (urgent_.empty() && others_.empty()) return late;
  for (const auto& [connection, arrival] : all_) {
    if (!arrival.since) continue;
    const Duration at_the_rate =
        static_cast<int64_t>(arrival.size) * Duration(std::chrono::seconds(1)) / options_.bytes_per_second;
    const bool yields = !urgent_.empty() && !arrival.is_urgent;
    if (now - *arrival.since > options_.deadline + (yields ? Duration{} : at_the_rate))
      late.push_back(connection);
  }
  return late;
}

}  // namespace weft::broker
