// How much of a connection is in work at once: who is read from, whose large frames may come, who waits.
#include <algorithm>

#include "broker/service/gate.h"
#include "broker/service/gate_client.h"

namespace weft::broker {

namespace {
// Of one connection: bytes of messages that the core has not taken, and of chunks and requests that the disk
// has not, before reading from it stops. One message of any size may be on its way; of a user's, who may ask
// for much in a few bytes, one at a time.
constexpr size_t kInCoreMax = 256 << 10;
constexpr size_t kInWorkMax = 16 << 20;
// Of all of them: beyond it whoever has some of it waits.
constexpr size_t kInCoreMaxOfAll = 32 << 20, kInWorkMaxOfAll = 32 << 20;
constexpr size_t kLargeFrame = 64 << 10;
// What a connection may leave unread before nothing is read from it: answers, mostly, in memory that is the
// queue's own. Of blobs and data the gate puts no more into a queue than is taken (kQueuedMax). Of all of
// them; and what each may in any case.
constexpr size_t kUnreadMax = 1 << 20, kUnreadMaxOfAll = 16 << 20, kUnreadAnyway = 16 << 10;
}  // namespace

void Gate::begin_files_work(const ClientPtr& client, size_t size) {
  client->bytes_in_work += size;
  bytes_in_work_ += size;
  pace(client);
}

Gate::ClientPtr Gate::end_files_work(const std::weak_ptr<Client>& client, size_t size) {
  bytes_in_work_ -= size;
  ClientPtr here = client.lock();
  if (here) {
    here->bytes_in_work -= size;
    pace(here);
  }
  let_arrive();
  return here;
}

// Called with the frame's first bytes; the others stay where they are until there is room.
void Gate::begin_to_arrive(const ClientPtr& client, size_t size) {
  if (size <= kLargeFrame || !clients_.contains(client->number)) return;
  arrivals_.begin(client->number, size, stages_.serves(client->connection->remote()));
  let_arrive();
  pace(client);
}

void Gate::let_arrive() {
  for (const ConnectionId connection : arrivals_.let_in(loop_.now(), bytes_in_work_ + bytes_in_core_))
    if (const auto at = clients_.find(connection); at != clients_.end()) pace(at->second);
}

void Gate::close_who_arrive_slowly() {
  for (const ConnectionId connection : arrivals_.late(ticked_at_))
    if (const auto at = clients_.find(connection); at != clients_.end())
      refuse(ClientPtr(at->second), {ErrorCode::Timeout, "what it sends comes too slowly, and others wait"});
}

void Gate::pace(const ClientPtr& client) {
  if (!clients_.contains(client->number)) return;
  const size_t unread = client->connection->stats().memory_queued;
  unread_ = unread_ - client->unread + unread;
  client->unread = unread;
  const size_t in_core_max = client->role && proto::is_user(*client->role) ? 0 : kInCoreMax;
  const auto is_unread = [&](size_t part) { return unread > kUnreadMax / part; };
  const auto is_above = [&](size_t part) {
    return client->bytes_in_core > in_core_max / part || client->bytes_in_work > kInWorkMax / part ||
           (client->bytes_in_core > 0 && bytes_in_core_ > kInCoreMaxOfAll / part) ||
           (client->bytes_in_work > 0 && bytes_in_work_ > kInWorkMaxOfAll / part) ||
           (unread > kUnreadAnyway && unread_ > kUnreadMaxOfAll / part) || arrivals_.waits(client->number);
  };
  const size_t part = client->is_paused ? 2 : 1;
  const bool has_too_much = is_above(part), pauses = has_too_much || is_unread(part);
  client->waits_for_its_reader = pauses && !has_too_much;
  if (pauses == client->is_paused) return;
  client->is_paused = pauses;
  client->connection->pause_reading(pauses);
}

}  // namespace weft::broker
