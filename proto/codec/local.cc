// What a stage is told of replicas: those that make local steps, and those that add each step's gradients.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "dag/fresh_statistics.h"
#include "proto/codec/field_counts.h"
#include "proto/codec/wire.h"
#include "replicas/gradient_codec.h"
#include "replicas/parts.h"

namespace weft::proto {

static_assert(has_fields<replicas::OuterSpec, 3>);
static_assert(has_fields<replicas::ReplicaTerms, 8>);
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
  if (from.terms.overlap()) to.set_settle_every(from.terms.settle_every);
  put_plain(from.terms.followers, *to.mutable_followers());
  if (from.terms.fragments > 1) to.set_fragments(from.terms.fragments);
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
  to.terms.settle_every = std::max<uint64_t>(1, from.settle_every());
  read.numbers(from.followers(), to.terms.followers, kReplicasMax, "followers");
  to.terms.fragments = std::max(1u, from.fragments());
  read.require(is_valid(to), "steps", "these rounds cannot be dealt");
  return read.status();
}

static_assert(has_fields<AgreedTensor, 6>);
void put(const AgreedTensor& from, wire::AgreedTensor& to) {
  to.set_number(from.number);
  to.set_initializer(from.name);
  to.set_owner(from.owner);
  put_plain(from.stages, *to.mutable_stages());
  to.set_elements(from.elements);
  to.set_fragment(from.fragment);
}
Status get(const wire::AgreedTensor& from, AgreedTensor& to) {
  Reader read("AgreedTensor");
  to.number = from.number();
  read.text(from.initializer(), to.name, kSymbolMax, "initializer");
  to.owner = from.owner();
  read.numbers(from.stages(), to.stages, kReplicasMax, "stages");
  read.require(to.owner < to.stages.size(), "owner", "no such replica");
  for (const uint32_t stage : to.stages) read.require(stage < kStagesMax, "stages", "not below 1024");
  to.elements = from.elements();
  to.fragment = from.fragment();
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

static_assert(has_fields<ExactTerms, 4>);
void put(const ExactTerms& from, wire::ExactTerms& to) {
  put_plain(from.ranges, *to.mutable_ranges());
  put_list(from.tensors, *to.mutable_tensors());
  if (from.codec != compress::Codec{}) to.set_codec(compress::name(from.codec));
  to.set_shared_slots(from.shared_slots);
}
Status get(const wire::ExactTerms& from, ExactTerms& to) {
  Reader read("ExactTerms");
  read.numbers(from.ranges(), to.ranges, kReplicasMax, "ranges");
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  to.shared_slots = from.shared_slots();
  read.require(to.ranges.size() >= 2, "ranges", "of one replica");
  for (const uint32_t ranges : to.ranges) read.require(ranges >= 1, "ranges", "a replica without any");
  read.codec(from.codec(), to.codec, "codec");
  if (const Status allowed = replicas::check_gradient_codec(to.codec); read.good() && !allowed)
    read.refuse(ErrorCode::OutOfRange, "codec", allowed.error().message);
  return read.status();
}

namespace {

const dag::Graph* trained_graph(const AssignStage& stage) {
  const auto train = std::find_if(stage.programs.begin(), stage.programs.end(),
                                  [](const StageProgram& one) { return one.kind == ProgramKind::Train; });
  return train == stage.programs.end() ? nullptr : train->graph.get();
}

// Each of the stage's own trained weights at most once, in their order, whole or in parts that follow each
// other, and held by a seat of every replica.
std::optional<std::string> problem_of(const std::vector<AgreedTensor>& tensors, const AssignStage& stage,
                                      const dag::Graph& graph, size_t replicas) {
  std::map<std::string_view, uint64_t> left;  // of each initializer, that is not there yet
  for (const auto& initializer : graph.initializers())
    left[initializer.name] = static_cast<uint64_t>(graph.spec(initializer.value).element_count());
  std::set<std::string_view> named;
  const AgreedTensor* before = nullptr;
  for (const AgreedTensor& tensor : tensors) {
    const bool goes_on = before != nullptr && tensor.name == before->name && before->elements > 0 &&
                         replicas::place_of(tensor.number) == replicas::place_of(before->number);
    const uint64_t first = replicas::first_of(tensor.number);
    if (before != nullptr && !replicas::is_before(before->number, tensor.number))
      return "numbers that do not ascend";
    if (before != nullptr && !goes_on && left[before->name] > 0)
      return "'" + before->name + "' is not there as a whole";
    const auto of_it = left.find(tensor.name);
    if (of_it == left.end() || (!goes_on && !named.insert(tensor.name).second))
      return "'" + tensor.name + "', which is twice there or no initializer of the stage";
    if (first != (goes_on ? replicas::first_of(before->number) + before->elements : 0) ||
        tensor.elements > of_it->second || (goes_on && tensor.elements == 0))
      return "'" + tensor.name + "' in parts that do not follow each other";
    of_it->second -= tensor.elements > 0 ? tensor.elements : of_it->second;
    before = &tensor;
    if (tensor.stages.size() != replicas || tensor.stages[stage.seat.replica] != stage.seat.stage)
      return "'" + tensor.name + "' is not held once by every replica";
  }
  if (before != nullptr && left[before->name] > 0) return "'" + before->name + "' is not there as a whole";
  return std::nullopt;
}

// Slots of a parameter that another replica's seat updates would be those of nobody.
Status check_shared_slots(const AssignStage& stage) {
  if (!stage.exact->shared_slots) return {};
  const std::vector<std::string> own = updated_parameters(stage);
  const std::set<std::string_view> updated(own.begin(), own.end());
  for (const TensorReference& tensor : stage.tensors)
    if (!is_weight(tensor.key.slot) && !updated.contains(tensor.key.name))
      return fail(ErrorCode::OutOfRange, "exact: '" + to_string(tensor.key) +
                                             "', with shared slots, and another replica updates it");
  return {};
}

}  // namespace

Status check_local(const AssignStage& stage) {
  if (!stage.local) return {};
  const auto wrong = [](const std::string& what) { return fail(ErrorCode::OutOfRange, "local: " + what); };
  const dag::Graph* graph = trained_graph(stage);
  if (graph == nullptr) return wrong("of a stage that trains nothing");
  const replicas::LocalSteps& steps = stage.local->steps;
  if (stage.seat.replica >= steps.terms.count) return wrong("the stage's replica is none of them");
  if (stage.after_step < steps.begun_after || stage.after_step > last_inner_step(steps) ||
      stage.training.steps != last_inner_step(steps))
    return wrong("steps that are not its inner steps");
  std::map<std::string_view, uint32_t> fragments;
  for (const AgreedTensor& tensor : stage.local->tensors) {
    if (fragments.try_emplace(tensor.name, tensor.fragment).first->second != tensor.fragment)
      return wrong("'" + tensor.name + "' in several fragments");
    if (tensor.fragment >= steps.terms.fragments) return wrong("a fragment that is none of them");
    if (steps.terms.follows(tensor.owner)) return wrong("a mean that a follower is to take");
    if (tensor.elements > 0 && !compress::is_by_parts(steps.terms.codec))
      return wrong("a part of a tensor, and a codec that needs the whole");
  }
  const auto problem = problem_of(stage.local->tensors, stage, *graph, steps.terms.count);
  return problem ? wrong(*problem) : Status{};
}

// And of these each that has a gradient, and each running statistic: a sum that misses one would be another
// step.
Status check_exact(const AssignStage& stage) {
  if (!stage.exact) return {};
  const auto wrong = [](const std::string& what) { return fail(ErrorCode::OutOfRange, "exact: " + what); };
  const std::vector<uint32_t>& ranges = stage.exact->ranges;
  const dag::Graph* graph = trained_graph(stage);
  if (stage.local) return wrong("beside local steps");
  if (graph == nullptr) return wrong("of a stage that trains nothing");
  if (stage.seat.replica >= ranges.size()) return wrong("the stage's replica is none of them");
  uint64_t all = 0;
  for (const uint32_t own : ranges) all += own;
  if (all != stage.training.gradient_ranges) return wrong("ranges that are not those of a step");
  if (const auto problem = problem_of(stage.exact->tensors, stage, *graph, ranges.size()))
    return wrong(*problem);
  std::set<std::string_view> summed;
  for (const AgreedTensor& tensor : stage.exact->tensors) {
    if (tensor.elements > 0) return wrong("a part of a tensor");
    summed.insert(tensor.name);
  }
  if (!dag::fresh_statistics(*graph)) return wrong("running statistics that cannot be told from the rest");
  for (const dag::GraphOutput& output : graph->outputs()) {
    const bool changes =
        output.role == dag::OutputRole::Gradient || output.role == dag::OutputRole::StateUpdate;
    if (changes && summed.erase(output.name) == 0)
      return wrong("'" + output.name + "' is trained and not added up");
  }
  if (!summed.empty()) return wrong("'" + std::string(*summed.begin()) + "' is not trained");
  return check_shared_slots(stage);
}

}  // namespace weft::proto
