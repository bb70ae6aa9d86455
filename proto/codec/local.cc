// What a stage is told of replicas that make local steps.
#include <algorithm>
#include <set>

#include "proto/codec/field_counts.h"
#include "proto/codec/wire.h"

namespace weft::proto {

static_assert(has_fields<replicas::OuterSpec, 3>);
static_assert(has_fields<replicas::ReplicaTerms, 5>);
static_assert(has_fields<replicas::Inherited, 4>);
void put(const replicas::Inherited& from, wire::Inherited& to) {
  put_plain(from.sets, *to.mutable_sets());
  put_plain(from.debtless, *to.mutable_debtless());
  to.set_returns_are_lost(from.returns_are_lost);
  put_plain(from.left_out, *to.mutable_left_out());
}
Status get(const wire::Inherited& from, replicas::Inherited& to) {
  Reader read("Inherited");
  read.numbers(from.sets(), to.sets, kReplicasMax, "sets");
  read.numbers(from.debtless(), to.debtless, kReplicasMax, "debtless");
  to.returns_are_lost = from.returns_are_lost();
  read.numbers(from.left_out(), to.left_out, kReplicasMax, "left_out");
  read.require(is_valid(to), "sets", "of replicas that are not there");
  return read.status();
}

static_assert(has_fields<replicas::StepRange, 2>);
void put(const replicas::StepRange& from, wire::StepRange& to) {
  to.set_first(from.first);
  to.set_count(from.count);
}
Status get(const wire::StepRange& from, replicas::StepRange& to) {
  Reader read("StepRange");
  constexpr uint64_t kMax = uint64_t{1} << 48;
  to = {from.first(), from.count()};
  read.require(to.first >= 1 && to.first <= kMax && to.count >= 1 && to.count <= kMax, "first",
               "no steps of a run");
  return read.status();
}

static_assert(has_fields<replicas::LocalSteps, 4>);
void put(const replicas::LocalSteps& from, wire::LocalSteps& to) {
  to.set_replicas(from.terms.count);
  to.set_every(from.terms.every);
  put_plain(from.terms.shares, *to.mutable_shares());
  if (from.terms.codec != compress::Codec{}) to.set_codec(compress::name(from.terms.codec));
  to.set_outer(put_enum<wire::OuterType>(from.terms.outer.type));
  to.set_outer_learning_rate(from.terms.outer.learning_rate);
  to.set_outer_momentum(from.terms.outer.momentum);
  to.set_steps(from.steps);
  to.set_begun_after(from.begun_after);
  put_list(from.given_again, *to.mutable_given_again());
}
Status get(const wire::LocalSteps& from, replicas::LocalSteps& to) {
  Reader read("LocalSteps");
  to.terms.count = from.replicas();
  to.terms.every = from.every();
  read.numbers(from.shares(), to.terms.shares, kReplicasMax, "shares");
  read.codec(from.codec(), to.terms.codec, "codec");
  read.enumerator(from.outer(), to.terms.outer.type, replicas::OuterType::Nesterov, "outer");
  read.finite(from.outer_learning_rate(), to.terms.outer.learning_rate, "outer_learning_rate");
  read.finite(from.outer_momentum(), to.terms.outer.momentum, "outer_momentum");
  to.steps = from.steps();
  to.begun_after = from.begun_after();
  read.list(from.given_again(), to.given_again, replicas::kStepRangesMax, "given_again");
  read.require(is_valid(to), "steps", "these rounds cannot be dealt");
  return read.status();
}

static_assert(has_fields<AgreedTensor, 4>);
void put(const AgreedTensor& from, wire::AgreedTensor& to) {
  to.set_number(from.number);
  to.set_initializer(from.name);
  to.set_owner(from.owner);
  put_plain(from.stages, *to.mutable_stages());
}
Status get(const wire::AgreedTensor& from, AgreedTensor& to) {
  Reader read("AgreedTensor");
  to.number = from.number();
  read.text(from.initializer(), to.name, kSymbolMax, "initializer");
  to.owner = from.owner();
  read.numbers(from.stages(), to.stages, kReplicasMax, "stages");
  read.require(to.owner < to.stages.size(), "owner", "no such replica");
  for (const uint32_t stage : to.stages) read.require(stage < kStagesMax, "stages", "not below 1024");
  return read.status();
}

static_assert(has_fields<LocalTerms, 3>);
void put(const LocalTerms& from, wire::LocalTerms& to) {
  put(from.steps, *to.mutable_steps());
  put_list(from.tensors, *to.mutable_tensors());
  to.set_norm_bound(from.norm_bound);
}
Status get(const wire::LocalTerms& from, LocalTerms& to) {
  Reader read("LocalTerms");
  read.part(from.steps(), to.steps, "steps");
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  read.finite(from.norm_bound(), to.norm_bound, "norm_bound");
  read.require(to.norm_bound >= 0, "norm_bound", "negative");
  return read.status();
}

// Each of the stage's own trained weights at most once, by number, and held by a seat of every replica.
Status check_local(const AssignStage& stage) {
  if (!stage.local) return {};
  const auto wrong = [](const std::string& what) { return fail(ErrorCode::OutOfRange, "local: " + what); };
  const auto train = std::find_if(stage.programs.begin(), stage.programs.end(),
                                  [](const StageProgram& one) { return one.kind == ProgramKind::Train; });
  if (train == stage.programs.end()) return wrong("of a stage that trains nothing");
  const replicas::LocalSteps& steps = stage.local->steps;
  if (stage.seat.replica >= steps.terms.count) return wrong("the stage's replica is none of them");
  if (stage.after_step < steps.begun_after || stage.after_step > last_inner_step(steps) ||
      stage.training.steps != last_inner_step(steps))
    return wrong("steps that are not its inner steps");
  std::set<std::string_view> held, named;
  for (const auto& initializer : train->graph->initializers()) held.insert(initializer.name);
  const AgreedTensor* before = nullptr;
  for (const AgreedTensor& tensor : stage.local->tensors) {
    if (before != nullptr && tensor.number <= before->number) return wrong("numbers that do not ascend");
    before = &tensor;
    if (!held.contains(tensor.name) || !named.insert(tensor.name).second)
      return wrong("'" + tensor.name + "', which is twice there or no initializer of the stage");
    if (tensor.stages.size() != steps.terms.count || tensor.stages[stage.seat.replica] != stage.seat.stage)
      return wrong("'" + tensor.name + "' is not held once by every replica");
  }
  return {};
}

}  // namespace weft::proto
