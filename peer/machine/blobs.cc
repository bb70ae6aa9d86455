// What the lists of a stage and of stand-bys lack comes from the broker; what none of them names goes.
#include "peer/machine/peer_state.h"

namespace weft::peer {

// The stages' tensors first, then those of stand-bys.
void Peer::State::fetch() {
  if (!session.is_admitted() || !pauses.is_over(now)) return;
  const auto fetch_all = [&](BlobList& list, uint64_t rate) {
    while (auto next = shelf.next_fetch(list, rate, options.fetches_at_once)) out.push_back(std::move(*next));
  };
  for (auto& [number, stage] : stages)
    if (!stage.failed) fetch_all(stage.tensors, 0);
  stand_bys.for_each_loading(fetch_all);
}

void Peer::State::on_blob(const Digest& sha256, const Status& fetched) {
  const auto asked = shelf.end_fetch(sha256);
  if (fetched) return on_arrived(sha256, asked.value_or(0));
  // What failed because the broker went was put back when it did.
  if (asked && session.is_admitted()) on_blob_failed(sha256, fetched.error());
}

void Peer::State::on_arrived(const Digest& sha256, uint64_t size) {
  shelf.arrived(sha256, size);
  for (auto& [number, stage] : stages)
    if (stage.tensors.missing.erase(sha256) != 0) make_runner_if_loaded(stage);
  for (const StandBys::List& list : stand_bys.on_arrived(sha256)) tell_standing_by(list);
}

void Peer::State::on_blob_failed(const Digest& sha256, const Error& error) {
  const bool again = pauses.try_again(now, shelf.count_failure(sha256), error.code);
  if (!again) shelf.forget_failures(sha256);
  std::optional<Digest> damaged;
  if (error.code == ErrorCode::Corrupted) damaged = sha256;
  for (auto& [number, stage] : stages) {
    if (stage.failed || !stage.tensors.missing.contains(sha256)) continue;
    if (again) {
      shelf.restock(stage.tensors);
    } else {
      // Whom the broker named has it no longer, or cannot be reached: it is as good as lost.
      Error failure = error;
      if (stage.tensors.origins.contains(sha256)) failure.code = ErrorCode::NotFound;
      fail_stage(stage, failure.within("fetching the stage's tensors"), {.damaged = damaged});
    }
  }
  for (const StandBys::List& list : stand_bys.on_failed(sha256, again)) {
    say("warning stand_by_failed run=" + std::to_string(list.run) + " step=" + std::to_string(list.step) +
        " reason=\"" + error.message + "\"");
    tell_standing_by(list, error, damaged);
  }
}

void Peer::State::stand_by(const proto::StandBy& list) {
  const bool is_of_stage = find_of_run(list.run) != nullptr;
  if (!stages.empty() && !is_of_stage) return;
  if (list.tensors.empty()) {
    stand_bys.forget(list.run);
    if (!is_of_stage) retire_snapshots(list.run);
    return;
  }
  make_room_of_retired(list);
  if (const Status begun = stand_bys.begin(list, room_on_host(), out); !begun) {
    say("warning stand_by_refused run=" + std::to_string(list.run) + " reason=\"" + begun.error().message +
        "\"");
    return tell_standing_by({list.run, list.step, list.list}, begun.error());
  }
  if (const auto complete = stand_bys.complete_if_here(list.run)) tell_standing_by(*complete);
}

// What a list wants of what a run that has ended left here stays; the rest of that goes.
void Peer::State::make_room_of_retired(const proto::StandBy& list) {
  if (!retired) return;
  const std::vector<WantedBlob> wanted = shelf.list_of(list.tensors).blobs;
  shelf.name(wanted);
  forget_retired();
  shelf.forget_unnamed(out);
  shelf.unname(wanted);
}

// A broker that knows nothing of failures would take one for the opposite.
void Peer::State::tell_standing_by(const StandBys::List& list, const std::optional<Error>& failure,
                                   const std::optional<Digest>& damaged) {
  if (!session.is_admitted()) return;
  if (failure && session.broker_minor() < proto::kProtocolMinorOfDirectCopies) return;
  tell(proto::StandingBy{list.run, list.step, failure, list.number, damaged});
}

}  // namespace weft::peer
