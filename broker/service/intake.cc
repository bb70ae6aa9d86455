#include "broker/service/intake.h"

#include <algorithm>

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

const Intake::Share* Intake::find(ConnectionId connection) const {
  const auto at = shares_.find(connection);
  return at == shares_.end() ? nullptr : &at->second;
}

void Intake::begin(ConnectionId connection) { shares_[connection] = {}; }

void Intake::is_of_user(ConnectionId connection) {
  if (const auto at = shares_.find(connection); at != shares_.end()) at->second.is_user = true;
}

void Intake::end(ConnectionId connection) {
  const auto share = shares_.extract(connection);
  if (!share) return;
  in_core_ -= share.mapped().in_core;
  unread_ -= share.mapped().unread;
  arrivals_.end(connection);
}

void Intake::give_to_core(ConnectionId connection, size_t size) {
  const auto at = shares_.find(connection);
  if (at == shares_.end()) return;
  at->second.in_core += size;
  in_core_ += size;
}

void Intake::taken(ConnectionId connection, uint64_t size) {
  const auto at = shares_.find(connection);
  if (at == shares_.end()) return;
  size = std::min<uint64_t>(size, at->second.in_core);
  at->second.in_core -= size;
  in_core_ -= size;
}

bool Intake::is_with_core(ConnectionId connection) const {
  const Share* share = find(connection);
  return share != nullptr && share->in_core > 0;
}

void Intake::begin_work(ConnectionId connection, size_t size) {
  in_work_ += size;
  if (const auto at = shares_.find(connection); at != shares_.end()) at->second.in_work += size;
}

void Intake::end_work(ConnectionId connection, size_t size) {
  in_work_ -= size;
  if (const auto at = shares_.find(connection); at != shares_.end()) at->second.in_work -= size;
}

bool Intake::begin_frame(ConnectionId connection, size_t size, bool is_urgent) {
  if (size <= kLargeFrame || !shares_.contains(connection)) return false;
  arrivals_.begin(connection, size, is_urgent);
  return true;
}

bool Intake::end_frame(ConnectionId connection) { return arrivals_.end(connection); }

std::vector<ConnectionId> Intake::let_in(Instant now) { return arrivals_.let_in(now, in_work_ + in_core_); }

bool Intake::is_above(ConnectionId connection, const Share& share, size_t part) const {
  const size_t in_core_max = share.is_user ? 0 : kInCoreMax;
  return share.in_core > in_core_max / part || share.in_work > kInWorkMax / part ||
         (share.in_core > 0 && in_core_ > kInCoreMaxOfAll / part) ||
         (share.in_work > 0 && in_work_ > kInWorkMaxOfAll / part) ||
         (share.unread > kUnreadAnyway && unread_ > kUnreadMaxOfAll / part) || arrivals_.waits(connection);
}

std::optional<bool> Intake::pace(ConnectionId connection, size_t unread) {
  const auto at = shares_.find(connection);
  if (at == shares_.end()) return std::nullopt;
  Share& share = at->second;
  unread_ = unread_ - share.unread + unread;
  share.unread = unread;
  // Who is paused goes on below half of what it may have.
  const size_t part = share.is_paused ? 2 : 1;
  const bool has_too_much = is_above(connection, share, part);
  const bool pauses = has_too_much || unread > kUnreadMax / part;
  share.waits_for_its_reader = pauses && !has_too_much;
  if (pauses == share.is_paused) return std::nullopt;
  share.is_paused = pauses;
  return pauses;
}

std::vector<ConnectionId> Intake::paused() const {
  std::vector<ConnectionId> paused;
  for (const auto& [connection, share] : shares_)
    if (share.is_paused) paused.push_back(connection);
  return paused;
}

bool Intake::is_held_up(ConnectionId connection) const {
  const Share* share = find(connection);
  return share != nullptr && share->is_paused && !share->waits_for_its_reader;
}

}  // namespace weft::broker
