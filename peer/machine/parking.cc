// Runners of served models that are kept when their stage ends: where the ring has lost another peer the same
// stage is assigned again at once, and its weights and caches are worth more than the memory they take.
#include <algorithm>
#include <utility>

#include "dag/text.h"
#include "peer/machine/peer_state.h"

namespace weft::peer {

namespace {

bool is_equal(const std::shared_ptr<const dag::Graph>& a, const std::shared_ptr<const dag::Graph>& b) {
  return a == b || (a && b && dag::to_text(*a) == dag::to_text(*b));
}

bool is_equal(const std::optional<proto::ServeDraft>& a, const std::optional<proto::ServeDraft>& b) {
  if (!a || !b) return !a && !b;
  return a->kind == b->kind && a->right == b->right && a->tokens == b->tokens && a->logits == b->logits &&
         a->passes_shared == b->passes_shared && is_equal(a->graph, b->graph);
}

bool is_equal(const proto::ServeProgram& a, const proto::ServeProgram& b) {
  return a.tokens == b.tokens && a.logits == b.logits && a.ranges == b.ranges && a.rows_max == b.rows_max &&
         a.passes_max == b.passes_max && a.sequences_max == b.sequences_max &&
         a.positions_max == b.positions_max && a.kept_positions_max == b.kept_positions_max &&
         is_equal(a.draft, b.draft) && is_equal(a.graph, b.graph);
}

bool is_equal(const proto::TensorReference& a, const proto::TensorReference& b) {
  return a.key == b.key && a.spec == b.spec && a.sha256 == b.sha256;
}

// Whether whoever computed for the one can compute for the other.
bool is_same_stage(const proto::AssignStage& a, const proto::AssignStage& b) {
  return a.run == b.run && a.seat == b.seat && a.stage_count == b.stage_count && a.serve && b.serve &&
         is_equal(*a.serve, *b.serve) &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& one, const auto& other) { return is_equal(one, other); });
}

}  // namespace

// One that failed because a neighbour did is as good as any.
void Peer::State::park_or_drop(HeldStage& stage) {
  ServeScript* serve = stage.machine.serve();
  if (serve == nullptr || !stage.runner || stage.is_spoilt) return drop_stage(stage);
  drop_parked();
  parked = Parked{.assignment = stage.assignment,
                  .generation = stage.generation,
                  .size = *stage.runner,
                  .requests = serve->take_requests(),
                  .until = now + options.park_for};
  drop_stage(stage);
}

void Peer::State::drop_parked() {
  if (const auto gone = std::exchange(parked, std::nullopt)) out.push_back(DropRunner{gone->generation});
}

std::optional<uint64_t> Peer::State::take_parked(HeldStage& stage) {
  const bool has_place = stage.machine.serve() != nullptr;
  if (parked && has_place && is_same_stage(*parked->assignment, *stage.assignment)) {
    Parked from = *std::exchange(parked, std::nullopt);
    stage.machine.serve()->take_over(std::move(from.requests));
    stage.taken_from = from.generation;
    say("info stage_taken_over run=" + std::to_string(stage.run()) +
        " plan=" + std::to_string(from.assignment->plan_version));
  }
  drop_parked();
  return stage.taken_from;
}

// The one that was under way when the runner was parked.
void Peer::State::on_earlier_task(uint64_t of_generation, const Result<TaskOutcome>& outcome) {
  if (parked && parked->generation == of_generation) {
    if (!outcome) return drop_parked();
    for (const proto::ServeProgress& progress : outcome->served)
      if (parked->requests) parked->requests->on_progress(now, progress);
  }
  for (auto& [number, stage] : stages) {
    if (stage.taken_from != of_generation || stage.failed) continue;
    if (!outcome) return fail_stage(stage, outcome.error());
    stage.machine.serve()->on_earlier_task(now, *outcome);
    return tell_served(stage);
  }
}

void Peer::State::cancel_unwanted(HeldStage& stage) {
  for (const uint64_t request : stage.machine.serve()->take_unwanted(now))
    out.push_back(PassRequest{stage.generation,
                              proto::CancelRequest{stage.run(), stage.assignment->plan_version, request}});
  work(stage);
}

}  // namespace weft::peer
