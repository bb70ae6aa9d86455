#include "peer/machine/blob_shelf.h"

#include <algorithm>
#include <utility>

namespace weft::peer {

BlobOrigins origins_of(const std::vector<proto::TensorReference>& tensors,
                       const std::vector<proto::BlobSource>& sources) {
  BlobOrigins origins;
  for (const proto::BlobSource& source : sources) {
    const auto shared = std::make_shared<const proto::BlobSource>(source);
    for (const uint32_t tensor : source.tensors) origins[tensors[tensor].sha256].source = shared;
  }
  return origins;
}

BlobList BlobShelf::list_of(const std::vector<proto::TensorReference>& tensors) const {
  BlobList list;
  std::set<Digest> seen;
  for (const proto::TensorReference& tensor : tensors) {
    if (!seen.insert(tensor.sha256).second) continue;
    list.blobs.push_back({tensor.sha256, static_cast<uint64_t>(tensor.spec.bytes().value)});
    if (!held_.contains(tensor.sha256)) list.missing.insert(tensor.sha256);
  }
  restock(list);
  return list;
}

void BlobShelf::restock(BlobList& list) const {
  list.to_fetch.clear();
  for (const WantedBlob& blob : list.blobs)
    if (list.missing.contains(blob.sha256) && !fetching_.contains(blob.sha256)) list.to_fetch.push_back(blob);
}

void BlobShelf::name(const std::vector<WantedBlob>& blobs) {
  for (const WantedBlob& blob : blobs) ++named_[blob.sha256];
}

void BlobShelf::unname(const std::vector<WantedBlob>& blobs) {
  for (const WantedBlob& blob : blobs) {
    const auto at = named_.find(blob.sha256);
    if (--at->second != 0) continue;
    named_.erase(at);
    perhaps_unnamed_.insert(blob.sha256);
  }
}

void BlobShelf::forget_unnamed(PeerEffects& out) {
  std::vector<Digest> unnamed;
  for (const Digest& sha256 : std::exchange(perhaps_unnamed_, {})) {
    if (named_.contains(sha256)) continue;
    failures_.erase(sha256);
    if (held_.erase(sha256) != 0) unnamed.push_back(sha256);
  }
  if (!unnamed.empty()) out.push_back(ForgetBlobs{std::move(unnamed)});
}

void BlobShelf::arrived(const Digest& sha256, uint64_t size) {
  held_.emplace(sha256, size);
  failures_.erase(sha256);
  perhaps_unnamed_.insert(sha256);  // perhaps nobody wants it any more
}

std::set<Digest> BlobShelf::held() const {
  std::set<Digest> digests;
  for (const auto& [sha256, size] : held_) digests.insert(sha256);
  return digests;
}

int64_t BlobShelf::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [sha256, size] : held_) bytes += size;
  for (const auto& [sha256, under_way] : fetching_) bytes += under_way.size;
  return static_cast<int64_t>(bytes);
}

std::optional<FetchBlob> BlobShelf::next_fetch(BlobList& list, uint64_t rate, uint32_t at_once) {
  std::set<PeerId> full;  // who is asked for as much as may be
  for (auto at = list.to_fetch.begin(); at != list.to_fetch.end();) {
    if (!list.missing.contains(at->sha256) || fetching_.contains(at->sha256)) {
      at = list.to_fetch.erase(at);
      continue;
    }
    FetchBlob fetch = fetch_of(*at, rate, list.origins);
    const PeerId from = fetch.source ? fetch.source->peer : PeerId{};
    if (!full.contains(from) && has_room(from, fetch, at_once)) {
      fetching_[at->sha256] = {rate, at->size, from};
      list.to_fetch.erase(at);
      return fetch;
    }
    if (list.origins.empty()) break;
    full.insert(from);
    ++at;
  }
  return std::nullopt;
}

bool BlobShelf::has_room(const PeerId& from, const FetchBlob& fetch, uint32_t at_once) const {
  uint64_t count = 0, size = fetch.size;
  for (const auto& [sha256, other] : fetching_) {
    if (other.from != from || (fetch.rate == 0 && other.rate != 0)) continue;
    ++count;
    size += other.size;
  }
  return count < at_once && (fetch.rate == 0 || count == 0 || size <= fetch.rate / 2);
}

FetchBlob BlobShelf::fetch_of(const WantedBlob& blob, uint64_t rate, const BlobOrigins& origins) const {
  FetchBlob fetch{.sha256 = blob.sha256, .rate = rate, .size = blob.size};
  const auto origin = origins.find(blob.sha256);
  if (origin == origins.end()) return fetch;
  fetch.source = origin->second.source;
  if (origin->second.base && holds(*origin->second.base)) fetch.base = origin->second.base;
  return fetch;
}

std::optional<FetchBlob> BlobShelf::hurry(const WantedBlob& blob, const BlobOrigins& origins) {
  const auto at = fetching_.find(blob.sha256);
  if (at == fetching_.end() || at->second.rate == 0) return std::nullopt;
  FetchBlob fetch = fetch_of(blob, 0, origins);
  at->second.rate = 0;
  at->second.from = fetch.source ? fetch.source->peer : PeerId{};
  return fetch;
}

std::optional<uint64_t> BlobShelf::end_fetch(const Digest& sha256) {
  const auto at = fetching_.find(sha256);
  if (at == fetching_.end()) return std::nullopt;
  const uint64_t size = at->second.size;
  fetching_.erase(at);
  return size;
}

// ---- snapshots

void Snapshots::begin(uint64_t after_step) {
  while (!copies_.empty() && copies_.rbegin()->first > after_step) erase(std::prev(copies_.end()));
}

void Snapshots::keep(uint64_t step, std::vector<WantedBlob> blobs, size_t most) {
  shelf_.name(blobs);
  std::vector<WantedBlob>& kept = copies_[step];
  shelf_.unname(kept);
  kept = std::move(blobs);
  trim(most);
}

void Snapshots::trim(size_t most) {
  while (copies_.size() > most) erase(most < 2 ? copies_.begin() : std::next(copies_.begin()));
}

bool Snapshots::let_go(const std::set<uint64_t>& kept_elsewhere) {
  std::optional<Copies::iterator> least;
  for (auto copy = copies_.begin(); copy != copies_.end(); ++copy) {
    if (kept_elsewhere.contains(copy->first)) continue;
    least = copy;
    if (copy != copies_.begin()) break;
  }
  if (least) erase(*least);
  return least.has_value();
}

size_t Snapshots::count_beside(const std::set<uint64_t>& steps) const {
  return static_cast<size_t>(std::count_if(copies_.begin(), copies_.end(),
                                           [&](const auto& copy) { return !steps.contains(copy.first); }));
}

void Snapshots::forget(uint64_t before) {
  while (!copies_.empty() && copies_.begin()->first < before) erase(copies_.begin());
}

void Snapshots::erase(Copies::iterator copy) {
  shelf_.unname(copy->second);
  copies_.erase(copy);
}

}  // namespace weft::peer
