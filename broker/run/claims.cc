#include "broker/run/claims.h"

#include <algorithm>
#include <cmath>

#include "broker/run/planned_run.h"
#include "dag/slots.h"
#include "dag/state.h"

namespace weft::broker {

namespace {

tl::unexpected<Error> wrong(const std::string& what) { return fail(ErrorCode::InvalidArgument, what); }

bool is_count(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

template <typename Key>
Status StageClaims::Tensors<Key>::check(const std::vector<proto::TensorReference>& tensors,
                                        const auto& key_of, const auto& name_of) const {
  if (tensors.size() != list.size())
    return wrong(std::to_string(tensors.size()) + " tensors where the stage has " +
                 std::to_string(list.size()));
  std::vector<bool> seen(list.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const proto::TensorReference& tensor = tensors[i];
    size_t at = i;
    if (list[i].first != key_of(tensor)) {
      const auto known = place.find(key_of(tensor));
      if (known == place.end()) return wrong("a tensor that is none of the stage's, " + name_of(tensor));
      at = known->second;
    }
    if (list[at].second != tensor.spec)
      return wrong(name_of(tensor) + " as " + to_string(tensor.spec) + ", not " + to_string(list[at].second));
    if (seen[at]) return wrong(name_of(tensor) + " twice");
    seen[at] = true;
  }
  return {};
}

StageClaims::StageClaims(const proto::AssignStage& assignment)
    : skips_steps_(assignment.training.may_skip()) {
  if (assignment.local)
    local_ = Local{InnerSteps(assignment.local->steps), assignment.seat.replica, assignment.after_step,
                   assignment.skipped_steps};
  const uint32_t replica = local_ ? assignment.seat.replica : 0;
  for (const proto::StageProgram& program : assignment.programs) {
    const dag::Graph& graph = *program.graph;
    Numbers numbers;
    for (const dag::GraphOutput& output : graph.outputs()) {
      const auto count = static_cast<size_t>(graph.spec(output.value).element_count());
      if (output.role == dag::OutputRole::Loss) numbers.loss += count;
      if (output.role == dag::OutputRole::Correct) numbers.correct += count;
      if (output.role == dag::OutputRole::Counted) numbers.counted += count;
      if (program.kind == proto::ProgramKind::Predict && output.role == dag::OutputRole::Prediction)
        predictions_.add(output.name, graph.spec(output.value));
    }
    if (program.kind == proto::ProgramKind::Evaluate) evaluation_ = numbers;
    if (program.kind != proto::ProgramKind::Train) continue;
    training_ = numbers;
    std::map<std::string_view, dag::ValueId> values;
    for (const dag::Initializer& initializer : graph.initializers())
      values.emplace(initializer.name, initializer.value);
    for (dag::StateKey key : copied_state(assignment)) {
      if (!is_weight(key.slot)) key.replica = replica;
      if (const auto at = values.find(key.name); at != values.end())
        state_.add(key, spec_of_state(key.slot, graph.spec(at->second), assignment.training.optimizer.slots));
    }
    for (KeptTensor& kept : kept_between_agreements(assignment, graph))
      state_.add(std::move(kept.key), std::move(kept.spec));
  }
}

// A replica that has no step to make in an inner one has made no update in it either.
Status StageClaims::check_skipped(const proto::CheckpointReport& report) const {
  uint64_t least = 0, steps = report.step;
  if (local_) {
    const auto idle = [&](uint64_t step) { return local_->inner.idle(local_->replica, step); };
    const uint64_t made_none = idle(report.step) - std::min(idle(local_->after_step), idle(report.step));
    least = local_->skipped_steps + made_none;
    steps = report.step - std::min(report.step, local_->after_step + made_none);
  }
  if (report.skipped_steps < least || report.skipped_steps - least > (skips_steps_ ? steps : 0))
    return wrong(std::to_string(report.skipped_steps) + " skipped steps, which cannot be");
  return {};
}

Status StageClaims::check(const proto::CheckpointReport& report) const {
  if (report.failure) return {};
  if (report.local) return wrong("what brokers alone say of a checkpoint");
  WEFT_TRY_STATUS(check_skipped(report));
  return state_.check(
      report.tensors, [](const proto::TensorReference& tensor) -> const dag::StateKey& { return tensor.key; },
      [](const proto::TensorReference& tensor) { return to_string(tensor.key); });
}

Status StageClaims::check_losses(const proto::StepReport& report, uint32_t microbatches) const {
  const size_t expected = training_.loss * microbatches;
  if (report.losses.size() != expected)
    return wrong(std::to_string(report.losses.size()) + " losses where the stage has " +
                 std::to_string(expected));
  for (const double square : report.squares)
    if (square < 0) return wrong("a sum of squares below zero");
  return {};
}

Status StageClaims::check(const proto::EvaluationReport& report) const {
  size_t microbatches = 0;
  const struct {
    const std::vector<double>& numbers;
    size_t each;
    const char* name;
  } kinds[] = {{report.loss, evaluation_.loss, "losses"},
               {report.correct, evaluation_.correct, "counts of hits"},
               {report.counted, evaluation_.counted, "counts of labels"}};
  for (const auto& kind : kinds) {
    if (kind.each == 0 && kind.numbers.empty()) continue;
    if (kind.each == 0 || kind.numbers.empty() || kind.numbers.size() % kind.each != 0)
      return wrong(std::to_string(kind.numbers.size()) + " " + kind.name + " where the stage has " +
                   std::to_string(kind.each) + " a microbatch");
    const size_t count = kind.numbers.size() / kind.each;
    if (microbatches != 0 && count != microbatches) return wrong("numbers of microbatches that differ");
    microbatches = count;
  }
  if (!std::ranges::all_of(report.correct, is_count) || !std::ranges::all_of(report.counted, is_count))
    return wrong("a count that is none");
  return {};
}

Status StageClaims::check(const proto::ComparisonReport& report) const {
  const size_t expected = training_.loss * proto::kComparisonPasses;
  if (report.losses.size() != expected)
    return wrong(std::to_string(report.losses.size()) + " losses where the stage has " +
                 std::to_string(expected));
  if (std::ranges::any_of(report.squares, [](double square) { return square < 0; }))
    return wrong("a sum of squares below zero");
  return {};
}

Status StageClaims::check(const proto::PredictionReport& report) const {
  // One that says nothing would count as one of those that a microbatch waits for.
  if (predictions_.list.empty()) return wrong("predictions from a stage that has none");
  return predictions_.check(
      report.outputs,
      [](const proto::TensorReference& tensor) -> const std::string& { return tensor.key.name; },
      [](const proto::TensorReference& tensor) { return tensor.key.name; });
}

}  // namespace weft::broker
