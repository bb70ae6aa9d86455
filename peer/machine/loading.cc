// From an assignment to a stage that is ready, and how it ends.
#include <set>
#include <string_view>
#include <utility>

#include "dag/slots.h"
#include "peer/machine/peer_state.h"

namespace weft::peer {

namespace {
// Nobody asks for what is lent: whoever was to fetch it has it already, or will not come.
constexpr Duration kLendPatience = std::chrono::seconds(20);

int64_t state_bytes_of(const proto::AssignStage& assign) {
  int64_t bytes = 0;
  for (const proto::StageProgram& program : assign.programs)
    if (program.kind == proto::ProgramKind::Train)
      for (const dag::StateKey& key : dag::trained_state(*program.graph, assign.training.optimizer))
        bytes +=
            spec_of_state(key.slot, program.graph->spec(program.graph->find_initializer(key.name)->value),
                          assign.training.optimizer.slots)
                .bytes()
                .value;
  return bytes;
}
// Those that a copy of the stage's state is made of: not what never changes, which lies with the broker.
std::vector<WantedBlob> state_blobs_of(const proto::AssignStage& assign, const BlobList& tensors) {
  const std::set<std::string_view> fixed = proto::fixed_initializers(assign);
  std::set<Digest> of_state;
  for (const proto::TensorReference& tensor : assign.tensors)
    if (!fixed.contains(tensor.key.name)) of_state.insert(tensor.sha256);
  std::vector<WantedBlob> blobs;
  for (const WantedBlob& blob : tensors.blobs)
    if (of_state.contains(blob.sha256)) blobs.push_back(blob);
  return blobs;
}
}  // namespace

// ---- which stages are held

HeldStage* Peer::State::find(uint64_t of_generation) {
  const auto at = stages.find(of_generation);
  return at == stages.end() ? nullptr : &at->second;
}

HeldStage* Peer::State::find_at_work(uint64_t of_generation) {
  HeldStage* stage = find(of_generation);
  return stage != nullptr && !stage->failed ? stage : nullptr;
}

HeldStage* Peer::State::find_of_run(proto::JobNumber run) {
  for (auto& [number, stage] : stages)
    if (stage.run() == run) return &stage;
  return nullptr;
}

// A run's stage takes the place of the one before it. Beyond Bounds::stages the oldest goes: the broker
// assigns no more than it was told, and has given that one up.
void Peer::State::make_room_for_stage(proto::JobNumber run) {
  if (HeldStage* before = find_of_run(run)) park_or_drop(*before);
  if (parked && parked->assignment->run != run) drop_parked();
  while (stages.size() >= options.bounds.stages) drop_stage(stages.begin()->second);
}

Snapshots& Peer::State::snapshots_of(proto::JobNumber run) {
  return snapshots.try_emplace(run, shelf).first->second;
}

void Peer::State::forget_snapshots(proto::JobNumber run) {
  const auto at = snapshots.find(run);
  if (at == snapshots.end()) return;
  at->second.forget(UINT64_MAX);
  snapshots.erase(at);
}

// Of a run that has ended. What its stage learnt last is kept for a while: who serves it next is given it by
// nobody. One run's at a time.
void Peer::State::retire_snapshots(proto::JobNumber run) {
  const auto at = snapshots.find(run);
  if (at == snapshots.end()) return;
  if (retired && retired->run != run) forget_retired();
  at->second.trim(1);
  retired = Retired{run, now + options.retired_deadline};
}

void Peer::State::forget_retired() {
  if (const auto gone = std::exchange(retired, std::nullopt); gone && find_of_run(gone->run) == nullptr)
    forget_snapshots(gone->run);
}

// ---- from the assignment to work

void Peer::State::assign(const proto::AssignStage& assign) {
  make_room_for_stage(assign.run);
  if (session.state() == Session::State::Left) return;
  say("info stage_assigned run=" + std::to_string(assign.run) +
      " plan=" + std::to_string(assign.plan_version) + " stage=" + std::to_string(assign.seat.stage + 1) +
      "/" + std::to_string(assign.stage_count) + " after_step=" + std::to_string(assign.after_step));
  const uint64_t number = ++generation;
  HeldStage& stage = stages
                         .try_emplace(number, std::make_shared<const proto::AssignStage>(assign), number,
                                      options.stage, Uploads(shelf, pauses, number, uploads_numbered))
                         .first->second;
  if (!take_parked(stage)) {
    stage.tensors = shelf.list_of(assign.tensors);
    stage.tensors.origins = origins_of(assign.tensors, assign.sources);
    say("info stage_tensors run=" + std::to_string(assign.run) +
        " all=" + std::to_string(stage.tensors.blobs.size()) +
        " to_fetch=" + std::to_string(stage.tensors.missing.size()));
  }
  stage.state_bytes = state_bytes_of(assign);
  begin_lending(stage);
  // What is held for this run may be what the stage needs; it gets its names before others lose theirs.
  stage.until_loaded = stage.tensors.blobs;
  shelf.name(stage.until_loaded);
  retired.reset();
  for (auto at = snapshots.begin(); at != snapshots.end();) {
    const proto::JobNumber run = (at++)->first;
    if (find_of_run(run) == nullptr) forget_snapshots(run);
  }
  Snapshots& copies = snapshots_of(assign.run);
  copies.begin(assign.after_step);
  // Where memory is short an earlier one is what loading has no room for; the broker has it.
  if (offered()) copies.forget(assign.after_step);
  copies.keep(assign.after_step, state_blobs_of(assign, stage.tensors), copies_max(stage));
  stand_bys.forget_all();
  pauses.end(now);
  // Those under way at a stand-by's pace are needed now.
  for (const WantedBlob& blob : stage.tensors.blobs)
    if (auto fetch = shelf.hurry(blob, stage.tensors.origins)) out.push_back(std::move(*fetch));
  // Before a byte of it is fetched.
  if (const auto error = tensors_exceed_offer(stage)) return fail_stage(stage, *error);
  if (assign.serve)
    if (const Status ring = ServeScript::check(assign); !ring)
      return fail_stage(stage, ring.error().within("the broker breaks the protocol"), {.permanent = true});
  out.push_back(OpenLinks{stage.generation, stage.assignment});
  make_runner_if_loaded(stage);
}

void Peer::State::make_runner_if_loaded(HeldStage& stage) {
  if (is_follower(*stage.assignment)) return load_follower(stage);
  if (stage.failed || stage.runner_asked || !stage.tensors.missing.empty()) return;
  if (stage.lends_until) return;
  stage.runner_asked = true;
  watch.begin(stage.generation, std::nullopt);
  if (stage.taken_from)
    out.push_back(TakeRunner{stage.generation, *stage.taken_from, stage.assignment});
  else
    out.push_back(MakeRunner{stage.generation, stage.assignment});
  end_loading(stage);  // whoever makes the runner holds each as long as it is needed
}

// The others do not wait for it.
void Peer::State::load_follower(HeldStage& stage) {
  if (stage.failed) return;
  if (!std::exchange(stage.runner_asked, true)) {
    watch.begin(stage.generation, std::nullopt);
    out.push_back(MakeRunner{stage.generation, stage.assignment});
  }
  if (stage.load_asked || !stage.tensors.missing.empty()) return;
  stage.load_asked = true;
  watch.begin(stage.generation, std::nullopt);
  out.push_back(LoadRunner{stage.generation, stage.assignment});
  end_loading(stage);
}

void Peer::State::on_runner_made(uint64_t of_generation, const Result<RunnerSize>& made) {
  if (find(of_generation) != nullptr) watch.end(of_generation);
  HeldStage* stage = find_at_work(of_generation);
  if (stage == nullptr) return;
  if (!made) return fail_stage(*stage, made.error());
  const bool is_first = !stage->runner;
  stage->is_loaded = !is_first;
  stage->runner = *made;
  if (const auto error = exceeds_offer(*stage)) return fail_stage(*stage, *error);
  // The copies of all make room.
  for (auto& [number, each] : stages)
    if (!each.failed) snapshots_of(each.run()).trim(copies_max(each));
  if (ServeScript* serve = stage->machine.serve()) serve->on_runner_made(made->edges);
  if (stage->ready) {
    say("info stage_caught_up run=" + std::to_string(stage->run()));
    return tell_ready(*stage);
  }
  report_ready(*stage);
}

void Peer::State::end_loading(HeldStage& stage) { shelf.unname(std::exchange(stage.until_loaded, {})); }

void Peer::State::report_ready(HeldStage& stage) {
  if (!stage.links_up || !stage.runner || stage.ready) return;
  stage.ready = true;
  tell_ready(stage);
}

void Peer::State::tell_ready(const HeldStage& stage) {
  if (!stage.is_heard) return;
  tell(proto::StageReady{stage.run(),
                         stage.assignment->plan_version,
                         {persistent_bytes_of(*stage.runner)},
                         stage.runner->microbatch,
                         stage.follows()});
}

// ---- how it ends

void Peer::State::release(const proto::ReleaseStage& release) {
  HeldStage* stage = find_of_run(release.run);
  if (stage == nullptr || stage->assignment->plan_version > release.plan_version) return;
  given_meanwhile.clear();
  say("info stage_released run=" + std::to_string(release.run) + " reason=\"" + release.reason + "\"");
  park_or_drop(*stage);
  settle_drain();
}

// Its snapshots stay: it, or another stage of its run, may be loaded from them.
void Peer::State::drop_stage(HeldStage& stage) {
  let_device_finish(stage);
  stage.uploads.clear();
  end_lending(stage);
  end_loading(stage);
  const uint64_t gone = stage.generation;
  stages.erase(gone);
  if (session.is_admitted() && all_heard()) orphan_at.reset();
  if (parked && parked->generation == gone)
    out.push_back(ParkRunner{gone});
  else
    out.push_back(DropRunner{gone});
  out.push_back(CloseLinks{gone});
}

void Peer::State::drop_stages() {
  drop_parked();
  while (!stages.empty()) drop_stage(stages.begin()->second);
}

// Where programs and blobs share an offer, there is room for a stage and the state that it begins with and
// not for another's beside them: that is fetched first. No link is slower by that, and a stage that begins a
// little later than it could waits for the one that fetches. What the stage begins with itself stays anyway.
void Peer::State::begin_lending(HeldStage& stage) {
  std::set<Digest> own;
  for (const WantedBlob& blob : stage.tensors.blobs) own.insert(blob.sha256);
  for (const Digest& sha256 : stage.assignment->lends) {
    if (!shelf.holds(sha256)) continue;
    stage.lent.push_back({sha256, 0});
    if (own.contains(sha256)) continue;
    // Who was assigned its stage a moment earlier may have come for it already.
    if (const auto given = given_meanwhile.find(sha256); given != given_meanwhile.end())
      given_meanwhile.erase(given);
    else
      stage.to_lend.insert(sha256);
  }
  given_meanwhile.clear();
  if (stage.lent.empty()) return;
  shelf.name(stage.lent);
  if (shares_offer() && !stage.to_lend.empty() && !is_followed(*stage.assignment))
    stage.lends_until = now + kLendPatience;
  say("info stage_lends run=" + std::to_string(stage.run()) +
      " tensors=" + std::to_string(stage.lent.size()));
}

// One that was given may be asked for again, if the connection broke behind it: they are kept until the last
// has been given.
void Peer::State::on_giving(const Digest& sha256, bool whole) {
  constexpr size_t kGivenMax = 100'000;
  bool was_lent = false;
  for (auto& [number, stage] : stages) {
    if (!stage.lends_until) continue;
    const auto at = stage.to_lend.find(sha256);
    if (at == stage.to_lend.end()) continue;
    was_lent = true;
    stage.lends_until = now + kLendPatience;
    if (!whole) continue;
    stage.to_lend.erase(at);
    if (stage.to_lend.empty()) load_after_lending(stage);
  }
  if (whole && !was_lent && given_meanwhile.size() < kGivenMax) given_meanwhile.insert(sha256);
}

void Peer::State::load_after_lending(HeldStage& stage) {
  end_lending(stage);
  shelf.forget_unnamed(out);  // room first
  make_runner_if_loaded(stage);
}

void Peer::State::end_lending(HeldStage& stage) {
  stage.lends_until.reset();
  shelf.unname(std::exchange(stage.lent, {}));
}

void Peer::State::give_up() {
  orphan_at.reset();
  for (auto at = stages.begin(); at != stages.end();) {
    HeldStage& stage = (at++)->second;
    if (stage.is_heard) continue;
    say("warning stage_given_up run=" + std::to_string(stage.run()) +
        " reason=\"the broker has not come back for it\"");
    drop_stage(stage);
  }
  if (!stages.empty()) return;  // it has for these
  retired.reset();
  while (!snapshots.empty()) forget_snapshots(snapshots.begin()->first);
  stand_bys.forget_all();
  settle_drain();
}

}  // namespace weft::peer
