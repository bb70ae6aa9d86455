#include "broker/service/blob_leases.h"

#include <algorithm>
#include <string>

namespace weft::broker {

void BlobLeases::connect(const PeerId& key) {
  const MutexLock lock(mutex_);
  ++keys_[key].connections;
}

void BlobLeases::disconnect(const PeerId& key, Instant now) {
  const MutexLock lock(mutex_);
  const auto at = keys_.find(key);
  if (at == keys_.end() || at->second.connections == 0) return;
  --at->second.connections;
  at->second.left_at = now;
  if (at->second.connections == 0 && at->second.leases.empty()) keys_.erase(at);
}

Status BlobLeases::put(const PeerId& key, const Digest& blob, uint64_t size, Instant now,
                       const std::function<bool(const Digest&)>& is_there) {
  const MutexLock lock(mutex_);
  const auto at = keys_.try_emplace(key).first;
  Key& holder = at->second;
  const auto fits = [&] {
    const auto before = holder.leases.find(blob);
    const uint64_t counted = before == holder.leases.end() ? 0 : before->second.size;
    return size <= quota_.bytes && holder.bytes - counted <= quota_.bytes - size &&
           (before != holder.leases.end() || holder.leases.size() < quota_.blobs);
  };
  if (!fits() && (!holder.looked_at || now - *holder.looked_at >= kLookAgain)) {
    holder.looked_at = now;
    std::vector<Digest> gone;
    for (const auto& [digest, lease] : holder.leases)
      if (!is_there(digest)) gone.push_back(digest);
    for (const Digest& digest : gone) end(at, digest);
  }
  if (!fits())
    return fail(
        ErrorCode::ResourceExhausted,
        "this key's quota of blobs that no job uses is full: " + std::to_string(holder.leases.size()) +
            " blobs of " + std::to_string(holder.bytes) + " bytes are there, " +
            std::to_string(quota_.blobs) + " and " + std::to_string(quota_.bytes) +
            " are allowed; those that no job names go an hour after you have left");
  add(at, blob, size, now);
  return {};
}

void BlobLeases::drop(const PeerId& key, const Digest& blob) {
  const MutexLock lock(mutex_);
  const auto at = keys_.find(key);
  if (at != keys_.end()) end(at, blob);
}

void BlobLeases::ask(const PeerId& key, const Digest& blob, Instant now) {
  const MutexLock lock(mutex_);
  const auto at = keys_.try_emplace(key).first;
  const auto lease = at->second.leases.find(blob);
  if (lease != at->second.leases.end()) {
    lease->second.since = now;
  } else if (at->second.leases.size() < quota_.blobs) {
    add(at, blob, 0, now);
  }
}

void BlobLeases::refer(std::span<const Digest> blobs) {
  const MutexLock lock(mutex_);
  for (const Digest& blob : blobs) end_for_all(blob);
}

void BlobLeases::refer(const std::set<Digest>& blobs) {
  const MutexLock lock(mutex_);
  for (const Digest& blob : blobs) end_for_all(blob);
}

std::set<Digest> BlobLeases::held(Instant now) {
  const MutexLock lock(mutex_);
  std::set<Digest> held;
  for (auto at = keys_.begin(); at != keys_.end();) {
    const auto key = at++;
    const bool has_left = key->second.connections == 0 && now - key->second.left_at > kAfterLeaving;
    std::vector<Digest> over;
    for (const auto& [blob, lease] : key->second.leases) {
      if (has_left || now - lease.since > kLongest)
        over.push_back(blob);
      else
        held.insert(blob);
    }
    for (const Digest& blob : over) end(key, blob);
    if (has_left) keys_.erase(key);
  }
  return held;
}

BlobLeases::Use BlobLeases::use_of(const PeerId& key) const {
  const MutexLock lock(mutex_);
  const auto at = keys_.find(key);
  if (at == keys_.end()) return {};
  return {at->second.bytes, at->second.leases.size()};
}

void BlobLeases::add(Keys::iterator key, const Digest& blob, uint64_t size, Instant now) {
  Lease& lease = key->second.leases[blob];
  if (lease.since == Instant{}) holders_[blob].push_back(key->first);
  key->second.bytes += size - lease.size;
  lease = {size, std::max(now, Instant{Duration{1}})};
}

void BlobLeases::end(Keys::iterator key, const Digest& blob) {
  const auto lease = key->second.leases.find(blob);
  if (lease == key->second.leases.end()) return;
  key->second.bytes -= lease->second.size;
  const auto holders = holders_.find(blob);
  std::erase(holders->second, key->first);
  if (holders->second.empty()) holders_.erase(holders);
  key->second.leases.erase(lease);
}

void BlobLeases::end_for_all(const Digest& blob) {
  const auto holders = holders_.find(blob);
  if (holders == holders_.end()) return;
  for (const PeerId& id : std::vector<PeerId>(holders->second)) end(keys_.find(id), blob);
}

}  // namespace weft::broker
