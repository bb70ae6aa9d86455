#include "sim/relay.h"

#include <utility>

namespace weft::sim {

namespace {
constexpr Duration kRelayWait = std::chrono::seconds(10);
}  // namespace

std::optional<Relay::Waiting> Relay::take(const proto::Secret& ticket) {
  const auto at = waiting_.find(ticket);
  if (at == waiting_.end()) return std::nullopt;
  Waiting waiting = std::move(at->second);
  waiting_.erase(at);
  return waiting;
}

void Relay::revoke(const proto::Secret& ticket) {
  tickets_.erase(ticket);
  if (const auto waiting = take(ticket)) waiting->joined(std::nullopt);
}

bool Relay::come(NodeId from, const proto::Secret& ticket, Joined joined) {
  if (!tickets_.contains(ticket)) {
    joined(std::nullopt);
    return false;
  }
  if (const auto other = take(ticket)) {
    if (other->node != from) {
      const auto [a, b] = network_.join_by_relay(other->node, from);
      other->joined(a);
      joined(b);
      return false;
    }
    other->joined(std::nullopt);  // itself, before
  }
  const uint64_t number = ++came_;
  waiting_[ticket] = {from, std::move(joined), number};
  world_.after(kRelayWait, [this, ticket, number] {
    const auto at = waiting_.find(ticket);
    if (at == waiting_.end() || at->second.number != number) return;
    take(ticket)->joined(std::nullopt);
  });
  return true;
}

void Relay::end() {
  tickets_.clear();
  for (auto& [ticket, waiting] : std::exchange(waiting_, {})) waiting.joined(std::nullopt);
}

}  // namespace weft::sim
