#include "broker/service/gate_book.h"

#include <algorithm>

namespace weft::broker {

void GateBook::on_ready(uint32_t gate, Instant now) {
  gates_[gate] = now;
  const auto tell = [&](ToGate message) {
    outside_.send(gate, std::make_shared<const ToGate>(std::move(message)));
  };
  for (const auto& [job, feed] : feeds_) tell(feed);
  for (const proto::Secret& ticket : tickets_) tell(GrantRelay{ticket});
  for (const auto& [job, entry] : entries_) tell(entry);
  outside_.publish(peers_);
}

std::optional<Instant> GateBook::heard_until() const {
  std::optional<Instant> least;
  for (const auto& [gate, until] : gates_) least = std::min(least.value_or(until), until);
  return least;
}

void GateBook::tell(ConnectionId connection, ToGate message) {
  outside_.send(gate_of(connection), std::make_shared<const ToGate>(std::move(message)));
}

void GateBook::tell_all(ToGate message) {
  const auto shared = std::make_shared<const ToGate>(std::move(message));
  for (const auto& [gate, until] : gates_) outside_.send(gate, shared);
}

void GateBook::publish(Published value) {
  outside_.publish(std::make_shared<const Published>(std::move(value)));
}

void GateBook::set_feed(proto::JobNumber job, ToGate feed) {
  feeds_[job] = feed;
  tell_all(std::move(feed));
}

void GateBook::close_feed(proto::JobNumber job) {
  feeds_.erase(job);
  tell_all(CloseFeed{job});
}

void GateBook::grant(const proto::Secret& ticket) {
  tickets_.insert(ticket);
  tell_all(GrantRelay{ticket});
}

void GateBook::revoke(const proto::Secret& ticket) {
  tickets_.erase(ticket);
  tell_all(RevokeRelay{ticket});
}

void GateBook::set_entry(const ServedEntry& entry) {
  if (entry.entry)
    entries_[entry.job] = entry;
  else
    entries_.erase(entry.job);
  tell_all(entry);
}

void GateBook::set_peers(proto::PeerList peers) {
  peers_ = std::make_shared<const Published>(std::move(peers));
  outside_.publish(peers_);
}

}  // namespace weft::broker
