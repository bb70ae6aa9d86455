// What the lists of a stage and of stand-bys lack comes from the broker; what none of them names goes.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::forget_unnamed() {
  if (auto unnamed = shelf.take_unnamed(); !unnamed.empty()) out.push_back(ForgetBlobs{std::move(unnamed)});
}

// The stage's tensors first, then those of stand-bys.
void Peer::State::fetch() {
  if (!session.is_admitted() || now < transfers_paused_until) return;
  const auto fetch_all = [&](BlobList& list, uint64_t rate) {
    while (auto next = shelf.next_fetch(list, rate, options.fetches_at_once)) out.push_back(std::move(*next));
  };
  if (stage && !stage->failed) fetch_all(stage->tensors, 0);
  for (auto& [run, list] : stand_bys)
    if (list.loading) fetch_all(list.loading->blobs, list.loading->rate);
}

void Peer::State::on_blob(const Digest& sha256, const Status& fetched) {
  const auto asked = shelf.end_fetch(sha256);
  if (fetched) return on_arrived(sha256, asked.value_or(0));
  // What failed because the broker went was put back when it did.
  if (asked && session.is_admitted()) on_blob_failed(sha256, fetched.error());
}

void Peer::State::on_arrived(const Digest& sha256, uint64_t size) {
  shelf.arrived(sha256, size);
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
  const bool again = try_again(shelf.count_failure(sha256), error.code);
  if (!again) shelf.forget_failures(sha256);
  if (stage && !stage->failed && stage->tensors.missing.contains(sha256)) {
    if (again)
      shelf.restock(stage->tensors);
    else
      fail_stage(error.within("fetching the stage's tensors"));
  }
  for (auto& [run, list] : stand_bys) {
    if (!list.loading || !list.loading->blobs.missing.contains(sha256)) continue;
    if (again) {
      shelf.restock(list.loading->blobs);
      continue;
    }
    // The list before is still here, and the next one comes with the next round.
    say("warning stand_by_failed run=" + std::to_string(run) + " step=" + std::to_string(list.loading->step) +
        " reason=\"" + error.message + "\"");
    shelf.unname(list.loading->blobs.blobs);
    list.loading.reset();
  }
}

}  // namespace weft::peer
