// From an assignment to a stage that is ready, and how it ends.
#include <set>
#include <string_view>
#include <utility>

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
        bytes += program.graph->spec(program.graph->find_initializer(key.name)->value).bytes().value;
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

void Peer::State::assign(const proto::AssignStage& assign) {
  drop_stage();
  if (session.state() == Session::State::Left) return;
  say("info stage_assigned run=" + std::to_string(assign.run) +
      " plan=" + std::to_string(assign.plan_version) + " stage=" + std::to_string(assign.seat.stage + 1) +
      "/" + std::to_string(assign.stage_count) + " after_step=" + std::to_string(assign.after_step));
  stage.emplace(std::make_shared<const proto::AssignStage>(assign), ++generation, options.stage);
  stage->tensors = shelf.list_of(assign.tensors);
  stage->tensors.origins = origins_of(assign.tensors, assign.sources);
  stage->state_bytes = state_bytes_of(assign);
  begin_lending(assign.lends);
  // What is held for this run may be what the stage needs; it gets its names before others lose theirs.
  stage->until_loaded = stage->tensors.blobs;
  shelf.name(stage->until_loaded);
  snapshots.begin(assign.run, assign.after_step);
  // Where memory is short an earlier one is what loading has no room for; the broker has it.
  if (offered()) snapshots.forget(assign.after_step);
  snapshots.keep(assign.after_step, state_blobs_of(assign, stage->tensors), copies_max());
  stand_bys.forget_all();
  pauses.end(now);
  // Those under way at a stand-by's pace are needed now.
  for (const WantedBlob& blob : stage->tensors.blobs)
    if (auto fetch = shelf.hurry(blob, stage->tensors.origins)) out.push_back(std::move(*fetch));
  // Before a byte of it is fetched.
  if (const auto error = tensors_exceed_offer()) return fail_stage(*error);
  out.push_back(OpenLinks{generation, stage->assignment});
  make_runner_if_loaded();
}

void Peer::State::make_runner_if_loaded() {
  if (!stage || stage->failed || stage->runner_asked || !stage->tensors.missing.empty()) return;
  if (stage->lends_until) return;
  stage->runner_asked = true;
  watch.begin(std::nullopt);
  out.push_back(MakeRunner{stage->generation, stage->assignment});
  end_loading();  // whoever makes the runner holds each as long as it is needed
}

void Peer::State::end_loading() { shelf.unname(std::exchange(stage->until_loaded, {})); }

void Peer::State::report_ready() {
  if (!stage->links_up || !stage->runner || stage->ready) return;
  stage->ready = true;
  tell(proto::StageReady{stage->assignment->run, stage->assignment->plan_version, stage->runner->persistent,
                         stage->runner->microbatch});
}

void Peer::State::release(const proto::ReleaseStage& release) {
  if (!stage || stage->assignment->run != release.run ||
      stage->assignment->plan_version > release.plan_version)
    return;
  say("info stage_released run=" + std::to_string(release.run) + " reason=\"" + release.reason + "\"");
  drop_stage();
  settle_drain();
}

// Its snapshots stay: it, or another stage of its run, may be loaded from them.
void Peer::State::drop_stage() {
  if (!stage) return;
  let_device_finish();
  uploads.clear();
  end_lending();
  end_loading();
  stage.reset();
  if (session.is_admitted()) orphan_at.reset();
  out.push_back(DropRunner{});
  out.push_back(CloseLinks{});
}

// Where programs and blobs share an offer, there is room for a stage and the state that it begins with and
// not for another's beside them: that is fetched first. No link is slower by that, and a stage that begins a
// little later than it could waits for the one that fetches.
void Peer::State::begin_lending(const std::vector<Digest>& lends) {
  for (const Digest& sha256 : lends) {
    if (!shelf.holds(sha256)) continue;
    stage->lent.push_back({sha256, 0});
    stage->to_lend.insert(sha256);
  }
  if (stage->lent.empty()) return;
  shelf.name(stage->lent);
  if (shares_offer()) stage->lends_until = now + kLendPatience;
  say("info stage_lends run=" + std::to_string(stage->assignment->run) +
      " tensors=" + std::to_string(stage->lent.size()));
}

// One that was given may be asked for again, if the connection broke behind it: they are kept until the last
// has been given.
void Peer::State::on_giving(const Digest& sha256, bool whole) {
  if (!stage || !stage->lends_until) return;
  const auto at = stage->to_lend.find(sha256);
  if (at == stage->to_lend.end()) return;
  stage->lends_until = now + kLendPatience;
  if (!whole) return;
  stage->to_lend.erase(at);
  if (stage->to_lend.empty()) load_after_lending();
}

void Peer::State::load_after_lending() {
  end_lending();
  shelf.forget_unnamed(out);  // room first
  make_runner_if_loaded();
}

void Peer::State::end_lending() {
  stage->lends_until.reset();
  shelf.unname(std::exchange(stage->lent, {}));
}

void Peer::State::give_up() {
  orphan_at.reset();
  if (stage)
    say("warning stage_given_up run=" + std::to_string(stage->assignment->run) +
        " reason=\"the broker has not come back for it\"");
  drop_stage();
  snapshots.forget(UINT64_MAX);
  stand_bys.forget_all();
  settle_drain();
}

}  // namespace weft::peer
