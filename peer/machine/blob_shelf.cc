#include "peer/machine/blob_shelf.h"

#include <utility>

namespace weft::peer {

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
  while (!list.to_fetch.empty()) {
    const WantedBlob blob = list.to_fetch.front();
    if (!list.missing.contains(blob.sha256) || fetching_.contains(blob.sha256)) {
      list.to_fetch.pop_front();
      continue;
    }
    uint64_t count = 0, size = blob.size;
    for (const auto& [sha256, other] : fetching_) {
      if (rate == 0 && other.rate != 0) continue;
      ++count;
      size += other.size;
    }
    if (count >= at_once || (rate != 0 && count != 0 && size > rate / 2)) return std::nullopt;
    list.to_fetch.pop_front();
    fetching_[blob.sha256] = {rate, blob.size};
    return FetchBlob{blob.sha256, rate, blob.size};
  }
  return std::nullopt;
}

std::optional<FetchBlob> BlobShelf::hurry(const WantedBlob& blob) {
  const auto at = fetching_.find(blob.sha256);
  if (at == fetching_.end() || at->second.rate == 0) return std::nullopt;
  at->second.rate = 0;
  return FetchBlob{blob.sha256, 0, blob.size};
}

std::optional<uint64_t> BlobShelf::end_fetch(const Digest& sha256) {
  const auto at = fetching_.find(sha256);
  if (at == fetching_.end()) return std::nullopt;
  const uint64_t size = at->second.size;
  fetching_.erase(at);
  return size;
}

// ---- snapshots
// -------------------------------------------------------------------------------------------------------

void Snapshots::begin(proto::JobNumber run, uint64_t after_step) {
  if (run_ != run) forget(UINT64_MAX);
  run_ = run;
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

void Snapshots::forget(uint64_t before) {
  while (!copies_.empty() && copies_.begin()->first < before) erase(copies_.begin());
}

void Snapshots::erase(Copies::iterator copy) {
  shelf_.unname(copy->second);
  copies_.erase(copy);
}

}  // namespace weft::peer
