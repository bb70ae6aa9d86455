// Tensors of stages that others run, held in case one of them is lost.
#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::stand_by(const proto::StandBy& message) {
  if (stage && stage->assignment->run != message.run) return;
  if (message.tensors.empty()) {
    forget_stand_by(message.run);
    if (!stage && snapshots.run() == message.run) snapshots.forget(UINT64_MAX);
    return;
  }
  StandByList next{.step = message.step, .rate = message.rate, .blobs = shelf.list_of(message.tensors)};
  uint64_t size = 0;
  for (const WantedBlob& blob : next.blobs.blobs)
    if (next.blobs.missing.contains(blob.sha256) && !shelf.is_under_way(blob.sha256)) size += blob.size;
  const auto fits = [&] {
    const auto room = room_on_host();
    return !room || shelf.bytes() + static_cast<int64_t>(size) <= *room;
  };
  // Where the newest has no room beside the one that is complete, that one goes first.
  if (const auto at = stand_bys.find(message.run); !fits() && at != stand_bys.end() && at->second.complete) {
    shelf.name(next.blobs.blobs);  // what both have stays
    shelf.unname(at->second.complete->blobs.blobs);
    at->second.complete.reset();
    forget_unnamed();
    shelf.unname(next.blobs.blobs);
  }
  if (!fits() || (!stand_bys.contains(message.run) && stand_bys.size() >= options.bounds.stand_by_runs)) {
    say("warning stand_by_refused run=" + std::to_string(message.run) + " bytes=" + std::to_string(size));
    return;
  }
  StandByRun& run = stand_bys[message.run];
  shelf.name(next.blobs.blobs);
  if (run.loading) shelf.unname(run.loading->blobs.blobs);
  run.loading = std::move(next);
  complete_if_here(message.run);
}

void Peer::State::complete_if_here(proto::JobNumber number) {
  StandByRun& run = stand_bys.at(number);
  if (!run.loading->blobs.missing.empty()) return;
  if (run.complete) shelf.unname(run.complete->blobs.blobs);
  run.complete = std::move(run.loading);
  run.loading.reset();
  if (session.is_admitted()) tell(proto::StandingBy{number, run.complete->step});
}

void Peer::State::forget_stand_by(proto::JobNumber number) {
  const auto run = stand_bys.find(number);
  if (run == stand_bys.end()) return;
  if (run->second.complete) shelf.unname(run->second.complete->blobs.blobs);
  if (run->second.loading) shelf.unname(run->second.loading->blobs.blobs);
  stand_bys.erase(run);
}

}  // namespace weft::peer
