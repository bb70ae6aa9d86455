// Which blobs the shell holds, which have to come, and which may go.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

BlobList Peer::State::list_of(const std::vector<proto::TensorReference>& tensors) const {
  BlobList list;
  std::set<Digest> seen;
  for (const proto::TensorReference& tensor : tensors) {
    if (!seen.insert(tensor.sha256).second) continue;
    list.blobs.push_back({tensor.sha256, static_cast<uint64_t>(tensor.spec.bytes().value)});
    if (!held.contains(tensor.sha256)) list.missing.insert(tensor.sha256);
  }
  restock(list);
  return list;
}

void Peer::State::restock(BlobList& list) const {
  list.to_fetch.clear();
  for (const WantedBlob& blob : list.blobs)
    if (list.missing.contains(blob.sha256) && !fetching.contains(blob.sha256)) list.to_fetch.push_back(blob);
}

void Peer::State::name(const std::vector<WantedBlob>& blobs) {
  for (const WantedBlob& blob : blobs) ++named[blob.sha256];
}

void Peer::State::unname(const std::vector<WantedBlob>& blobs) {
  for (const WantedBlob& blob : blobs) {
    const auto at = named.find(blob.sha256);
    if (--at->second != 0) continue;
    named.erase(at);
    perhaps_unnamed.insert(blob.sha256);
  }
}

// At the end of each event: what loses one name may get another within it.
void Peer::State::forget_unnamed() {
  ForgetBlobs forget;
  for (const Digest& sha256 : std::exchange(perhaps_unnamed, {})) {
    if (named.contains(sha256)) continue;
    fetch_attempts.erase(sha256);
    if (held.erase(sha256) != 0) forget.blobs.push_back(sha256);
  }
  if (!forget.blobs.empty()) out.push_back(std::move(forget));
}

void Peer::State::keep_snapshot(uint64_t step, std::vector<WantedBlob> blobs) {
  name(blobs);
  std::vector<WantedBlob>& kept = snapshots[step];
  unname(kept);
  kept = std::move(blobs);
  trim_snapshots(copies_max());
}

// The first is what the run would go back to; between that and the newest any is as good as another. Where
// there is room for one alone that is the newest: the broker has the first too.
void Peer::State::trim_snapshots(size_t most) {
  while (snapshots.size() > most) {
    const auto goes = most < 2 ? snapshots.begin() : std::next(snapshots.begin());
    unname(goes->second);
    snapshots.erase(goes);
  }
}

void Peer::State::forget_snapshots(uint64_t before) {
  while (!snapshots.empty() && snapshots.begin()->first < before) {
    unname(snapshots.begin()->second);
    snapshots.erase(snapshots.begin());
  }
}

// The stage's tensors first, then those of stand-bys: as many of these at once as half a second carries.
void Peer::State::fetch() {
  if (!session.is_admitted() || now < transfers_paused_until) return;
  if (stage && !stage->failed)
    while (fetch_next(stage->tensors, 0)) continue;
  for (auto& [run, list] : stand_bys)
    if (list.loading)
      while (fetch_next(list.loading->blobs, list.loading->rate)) continue;
}

bool Peer::State::fetch_next(BlobList& list, uint64_t rate) {
  while (!list.to_fetch.empty()) {
    const WantedBlob blob = list.to_fetch.front();
    if (!list.missing.contains(blob.sha256) || fetching.contains(blob.sha256)) {
      list.to_fetch.pop_front();
      continue;
    }
    uint64_t count = 0, size = blob.size;
    for (const auto& [sha256, other] : fetching) {
      if (rate == 0 && other.rate != 0) continue;
      ++count;
      size += other.size;
    }
    if (count >= options.fetches_at_once || (rate != 0 && count != 0 && size > rate / 2)) return false;
    list.to_fetch.pop_front();
    fetching[blob.sha256] = {rate, blob.size};
    out.push_back(FetchBlob{blob.sha256, rate, blob.size});
    return true;
  }
  return false;
}

void Peer::State::on_blob(const Digest& sha256, const Status& fetched) {
  const auto asked = fetching.find(sha256);
  const bool was_asked = asked != fetching.end();
  const uint64_t size = was_asked ? asked->second.size : 0;
  if (was_asked) fetching.erase(asked);
  if (!fetched) {
    // What failed because the broker went was put back when it did.
    if (was_asked && session.is_admitted()) on_blob_failed(sha256, fetched.error());
    return;
  }
  on_arrived(sha256, size);
}

void Peer::State::on_arrived(const Digest& sha256, uint64_t size) {
  held.emplace(sha256, size);
  fetch_attempts.erase(sha256);
  perhaps_unnamed.insert(sha256);  // perhaps nobody wants it any more
  if (stage && stage->tensors.missing.erase(sha256) != 0) make_runner_if_loaded();
  std::vector<proto::JobNumber> touched;
  for (auto& [run, list] : stand_bys)
    if (list.loading && list.loading->blobs.missing.erase(sha256) != 0) touched.push_back(run);
  for (const proto::JobNumber run : touched) complete_if_here(run);
}

bool Peer::State::try_again(uint32_t attempts, ErrorCode code) {
  const bool may_pass = code == ErrorCode::Unavailable || code == ErrorCode::Timeout ||
                        code == ErrorCode::Cancelled || code == ErrorCode::Internal ||
                        code == ErrorCode::PermissionDenied;  // until a feed is open again
  if (!may_pass || attempts >= options.transfer_attempts_max) return false;
  const Instant then = now + options.transfer_pause * (1 << std::min(attempts - 1, 10u));
  transfers_paused_until = std::max(transfers_paused_until, then);
  return true;
}

void Peer::State::on_blob_failed(const Digest& sha256, const Error& error) {
  const bool again = try_again(++fetch_attempts[sha256], error.code);
  if (!again) fetch_attempts.erase(sha256);
  if (stage && !stage->failed && stage->tensors.missing.contains(sha256)) {
    if (again)
      restock(stage->tensors);
    else
      fail_stage(error.within("fetching the stage's tensors"));
  }
  for (auto& [run, list] : stand_bys) {
    if (!list.loading || !list.loading->blobs.missing.contains(sha256)) continue;
    if (again) {
      restock(list.loading->blobs);
      continue;
    }
    // The list before is still here, and the next one comes with the next round.
    say("warning stand_by_failed run=" + std::to_string(run) + " step=" + std::to_string(list.loading->step) +
        " reason=\"" + error.message + "\"");
    unname(list.loading->blobs.blobs);
    list.loading.reset();
  }
}

}  // namespace weft::peer
