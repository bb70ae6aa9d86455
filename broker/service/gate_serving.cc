// Requests for served models, to their stages, and tokens, from there. Neither waits for the core or its
// store: a broker that was restarted asks for tokens again.
#include "broker/service/gate.h"
#include "broker/service/gate_client.h"

namespace weft::broker {

namespace {
// Of requests that a peer has not taken: those that come beyond it are dropped, and sent again by who asked
// them.
constexpr size_t kRequestsQueuedMax = 16 << 20;
}  // namespace

void Gate::on_entry(const ServedEntry& entry) {
  if (entry.entry)
    entries_[entry.job] = entry;
  else
    entries_.erase(entry.job);
}

bool Gate::is_entry(const PeerId& peer, const proto::ServeProgress& progress) const {
  const auto at = entries_.find(progress.run);
  return at != entries_.end() && at->second.entry == peer && at->second.plan_version == progress.plan_version;
}

void Gate::on_progress(const ClientPtr& client, const proto::ServeProgress& progress) {
  const PeerId& peer = client->connection->remote();
  if (!is_entry(peer, progress)) drain_bus();  // what the core said of it may be on its way
  if (options_.served == nullptr || !is_entry(peer, progress)) {
    ++stale_dropped_;
    return;
  }
  options_.served->on_progress(peer, progress);
}

void Gate::tell_peer(const PeerId& to, proto::Message message) {
  loop_.post([this, to, message = std::move(message)] { send_to_stage(to, message); });
}

// Only to a stage of the plan that the message is for: another one would take it for somebody else's.
void Gate::send_to_stage(const PeerId& to, const proto::Message& message) {
  const auto holder = serving_.find(to);
  const auto at = holder == serving_.end() ? clients_.end() : clients_.find(holder->second);
  if (at == clients_.end()) return;
  const ClientPtr client = at->second;
  proto::ReportHead head;
  if (const auto* request = std::get_if<proto::ServeRequest>(&message))
    head = {request->run, request->plan_version};
  else if (const auto* cancel = std::get_if<proto::CancelRequest>(&message))
    head = {cancel->run, cancel->plan_version};
  if (client->serves != head || client->bytes_queued() > kRequestsQueuedMax) return;
  send(client, message);
  pace(client);
}

}  // namespace weft::broker
