#include "peer/machine/stand_bys.h"

#include <algorithm>

namespace weft::peer {

namespace {
// What a list takes itself, beside the tensors that it names.
size_t list_bytes(const std::map<dag::StateKey, Digest>& tensors) {
  constexpr size_t kEntry = 512;
  size_t bytes = 0;
  for (const auto& [key, sha256] : tensors) bytes += kEntry + key.name.size();
  return bytes;
}
}  // namespace

Status StandBys::begin(const proto::StandBy& message, std::optional<int64_t> room, PeerEffects& out) {
  Loading next{.list = {message.run, message.step, message.list},
               .rate = message.rate,
               .blobs = shelf_.list_of(message.tensors),
               .tensors = {}};
  for (const proto::TensorReference& tensor : message.tensors) next.tensors[tensor.key] = tensor.sha256;
  next.bytes = list_bytes(next.tensors);
  size_t lists = next.bytes;
  for (const auto& [number, copies] : runs_)
    for (const auto* list : {&copies.complete, &copies.loading})
      if (*list && !(number == message.run && list == &copies.loading)) lists += (*list)->bytes;
  if (lists > kListBytesMax) return fail(ErrorCode::ResourceExhausted, "too long lists to stand by for");
  uint64_t size = 0;
  for (const WantedBlob& blob : next.blobs.blobs)
    if (next.blobs.missing.contains(blob.sha256) && !shelf_.is_under_way(blob.sha256)) size += blob.size;
  const auto fits = [&] { return !room || shelf_.bytes() + static_cast<int64_t>(size) <= *room; };
  if (const auto at = runs_.find(message.run); !fits() && at != runs_.end() && at->second.complete) {
    shelf_.name(next.blobs.blobs);  // what both have stays
    shelf_.unname(at->second.complete->blobs.blobs);
    at->second.complete.reset();
    shelf_.forget_unnamed(out);
    shelf_.unname(next.blobs.blobs);
  }
  if (!fits() || (!runs_.contains(message.run) && runs_.size() >= runs_max_))
    return fail(ErrorCode::ResourceExhausted, "no room for " + std::to_string(size) + " bytes more");
  Copies& copies = runs_[message.run];
  next.blobs.origins = origins_of(message.tensors, message.sources);
  if (copies.complete)
    for (const proto::TensorReference& tensor : message.tensors)
      if (const auto origin = next.blobs.origins.find(tensor.sha256); origin != next.blobs.origins.end())
        if (const auto before = copies.complete->tensors.find(tensor.key);
            before != copies.complete->tensors.end())
          origin->second.base = before->second;
  shelf_.name(next.blobs.blobs);
  if (copies.loading) shelf_.unname(copies.loading->blobs.blobs);
  copies.loading = std::move(next);
  return {};
}

void StandBys::forget(proto::JobNumber number) {
  const auto copies = runs_.find(number);
  if (copies == runs_.end()) return;
  if (copies->second.complete) shelf_.unname(copies->second.complete->blobs.blobs);
  if (copies->second.loading) shelf_.unname(copies->second.loading->blobs.blobs);
  runs_.erase(copies);
}

void StandBys::forget_all() {
  while (!runs_.empty()) forget(runs_.begin()->first);
}

std::vector<StandBys::List> StandBys::on_arrived(const Digest& sha256) {
  std::vector<List> complete;
  for (auto& [number, copies] : runs_)
    if (copies.loading && copies.loading->blobs.missing.erase(sha256) != 0)
      if (const auto list = complete_if_here(number)) complete.push_back(*list);
  return complete;
}

std::optional<StandBys::List> StandBys::complete_if_here(proto::JobNumber number) {
  Copies& copies = runs_.at(number);
  if (!copies.loading->blobs.missing.empty()) return std::nullopt;
  if (copies.complete) shelf_.unname(copies.complete->blobs.blobs);
  copies.complete = std::move(copies.loading);
  copies.loading.reset();
  return copies.complete->list;
}

std::vector<StandBys::List> StandBys::on_failed(const Digest& sha256, bool again) {
  std::vector<List> given_up;
  for (auto& [number, copies] : runs_) {
    if (!copies.loading || !copies.loading->blobs.missing.contains(sha256)) continue;
    if (again) {
      shelf_.restock(copies.loading->blobs);
      continue;
    }
    given_up.push_back(copies.loading->list);
    shelf_.unname(copies.loading->blobs.blobs);
    copies.loading.reset();
  }
  return given_up;
}

void StandBys::restock() {
  for_each_loading([&](BlobList& blobs, uint64_t) { shelf_.restock(blobs); });
}

void StandBys::for_each_loading(const std::function<void(BlobList& blobs, uint64_t rate)>& visit) {
  for (auto& [number, copies] : runs_)
    if (copies.loading) visit(copies.loading->blobs, copies.loading->rate);
}

bool StandBys::anything_waits() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) {
    return entry.second.loading && !entry.second.loading->blobs.to_fetch.empty();
  });
}

}  // namespace weft::peer
