#include "peer/executor.h"

#include <map>

#include "dag/slots.h"

namespace weft::peer {

using dag::Layout;
using dag::OutputRole;
using dag::Tensor;
using dag::TensorSpec;
using dag::ValueId;

namespace {
std::vector<TensorView> gradients_of(const std::vector<ParameterUpdate>& updates) {
  std::vector<TensorView> gradients;
  gradients.reserve(updates.size());
  for (const ParameterUpdate& update : updates) gradients.push_back({update.gradient, update.spec});
  return gradients;
}
}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const dag::Graph> graph,
                                                   std::shared_ptr<State> state, ExecutorOptions options) {
  std::unique_ptr<Executor> executor(new Executor(std::move(graph), std::move(state), std::move(options)));
  WEFT_TRY_STATUS(executor->build());
  return executor;
}

Status Executor::build() {
  WEFT_TRY_STATUS(backend_.check(options_.precision));
  std::vector<GroupSignature> groups;
  WEFT_TRY_STATUS(make_kernels(groups));
  program_ = plan_program(*graph_, backend_, std::move(groups), kernels_,
                          {options_.accumulates, options_.kept, options_.bound, options_.segment_of_op});
  work_ = work_of_groups(*graph_, program_, options_.segment_of_op);
  WEFT_TRY_STATUS(claim_state());
  WEFT_TRY_STATUS(take_persistent_memory());
  list_parameters();
  recordings_ = backend_.make_recordings();
  return {};
}

Status Executor::make_kernels(std::vector<GroupSignature>& groups) {
  for (GroupSignature& group : group_signatures(*graph_, options_.kept)) {
    if (is_view(*graph_, group)) continue;
    group.precision = options_.precision;
    group.rows_alone = options_.rows_alone;
    auto kernel = backend_.make_kernel(*graph_, group);
    if (!kernel) {
      const dag::Op& op = graph_->op(group.ops.front());
      return fail(kernel.error().within(std::string(to_string(op.kind)) +
                                        (op.name.empty() ? "" : " '" + op.name + "'")));
    }
    kernels_.push_back(std::move(*kernel));
    groups.push_back(std::move(group));
  }
  return backend_.prepare();
}

// Weights and optimizer slots in one claim: one block where nothing is there yet.
Status Executor::claim_state() {
  std::vector<State::Claim> claims;
  for (const auto& initializer : graph_->initializers())
    claims.push_back({weight_key(initializer), graph_->spec(initializer.value)});
  if (options_.optimizer)
    for (const auto& initializer : graph_->initializers())
      if (options_.updates(initializer.name) &&
          graph_->find_output(OutputRole::Gradient, initializer.name) != nullptr)
        for (const dag::StateSlot slot : optimizer_slots(*options_.optimizer))
          claims.push_back({dag::of_initializer(initializer.name, slot),
                            spec_of_state(slot, graph_->spec(initializer.value), options_.optimizer->slots)});
  WEFT_TRY_STATUS(state_->claim(claims));
  for (const auto& initializer : graph_->initializers())
    initializers_.push_back(state_->find(weight_key(initializer))->view);
  return {};
}

Status Executor::take_persistent_memory() {
  int64_t size = 0;
  const auto take = [&](const TensorSpec& spec) {
    const int64_t offset = size;
    size += align_up(backend_.storage_bytes(spec, Layout::Plain).value, backend_.alignment());
    return View{nullptr, offset};
  };
  constants_.resize(graph_->constant_count());
  for (const dag::Op& op : graph_->ops())
    if (op.kind == dag::OpKind::Constant)
      constants_[program_.places[op.outputs[0].index].slot] = take(graph_->constant(op).spec());
  for (const ValueId value : program_.gradients) gradients_.push_back(take(graph_->spec(value)));
  if (options_.sums_ranges)
    for (const ValueId value : program_.gradients) range_sums_.push_back(take(graph_->spec(value)));
  std::vector<TensorView> statistics = this->statistics();
  std::vector<View> kept_statistics;
  if (options_.undoes_statistics)
    for (const TensorView& statistic : statistics) kept_statistics.push_back(take(statistic.spec));
  step_offset_ = size;
  persistent_bytes_ = Bytes{size} + program_.step;
  WEFT_TRY(persistent_, backend_.allocate(persistent_bytes_));
  if (!options_.scratch) options_.scratch = std::make_shared<Scratch>(backend_);
  WEFT_TRY_STATUS(options_.scratch->reserve(scratch_bytes()));
  for (std::vector<View>* views : {&constants_, &gradients_, &range_sums_, &kept_statistics})
    for (View& view : *views) view.memory = persistent_.get();
  statistics_ = RunningStatistics(std::move(statistics), std::move(kept_statistics));
  for (const dag::Op& op : graph_->ops())
    if (op.kind == dag::OpKind::Constant)
      WEFT_TRY_STATUS(backend_.upload(graph_->constant(op),
                                      constants_[program_.places[op.outputs[0].index].slot], Layout::Plain));
  for (size_t slot = 0; slot < gradients_.size(); ++slot)
    WEFT_TRY_STATUS(backend_.fill_zero(gradients_[slot], graph_->spec(program_.gradients[slot])));
  return {};
}

void Executor::list_parameters() {
  const std::vector<uint32_t> segment_of_slot = segments_of_gradients(work_, program_);
  std::map<std::string_view, uint32_t> slot_of;
  uint32_t slot = 0;
  for (const auto& output : graph_->outputs())
    if (output.role == OutputRole::Gradient) slot_of[output.name] = slot++;
  for (uint32_t i = 0; i < graph_->initializers().size(); ++i) {
    const auto& initializer = graph_->initializers()[i];
    const auto found = slot_of.find(initializer.name);
    if (found == slot_of.end()) continue;
    const TensorSpec& spec = graph_->spec(initializer.value);
    const View gradient = gradients_[found->second];
    parameters_.push_back({initializer.name, spec});
    parameter_gradients_.push_back({gradient, spec});
    gradient_segments_.push_back(segment_of_slot[found->second]);
    if (!options_.optimizer || !options_.updates(initializer.name)) continue;
    updates_.push_back(
        {spec, initializers_[i], gradient, {}, dag::group_of(*options_.optimizer, initializer.name)});
    for (const dag::StateSlot of_rule : optimizer_slots(*options_.optimizer))
      updates_.back().slots.push_back(state_->find(dag::of_initializer(initializer.name, of_rule))->view);
  }
}

std::vector<TensorView> Executor::statistics() const {
  std::vector<TensorView> statistics;
  for (uint32_t i = 0; i < graph_->initializers().size(); ++i) {
    const auto& initializer = graph_->initializers()[i];
    if (graph_->find_output(OutputRole::StateUpdate, initializer.name) != nullptr)
      statistics.push_back({initializers_[i], graph_->spec(initializer.value)});
  }
  return statistics;
}

Result<std::unique_ptr<MicrobatchMemory>> Executor::make_microbatch() {
  auto microbatch = std::make_unique<MicrobatchMemory>();
  WEFT_TRY(microbatch->arena_, backend_.allocate(program_.arena));
  microbatch->number_ = microbatches_made_++;
  microbatch->bound_.resize(options_.bound.size());
  return microbatch;
}

View Executor::place_of(const MicrobatchMemory& microbatch, ValueId value) const {
  const Place& place = program_.places[value.index];
  switch (place.residence) {
    case Residence::Inside:
      break;
    case Residence::Arena:
      return {microbatch.arena_.get(), place.offset};
    case Residence::Scratch:
      return options_.scratch->at(place.offset);
    case Residence::Initializer:
      return initializers_[place.slot];
    case Residence::Constant:
      return constants_[place.slot];
    case Residence::Step:
      return {persistent_.get(), step_offset_ + place.offset};
    case Residence::Bound:
      return microbatch.bound_[place.slot];
    case Residence::Gradient:
      if (microbatch.turn.begins_range) return sum_of(microbatch.turn, place.slot);
      if (!options_.segment_of_op.empty()) return options_.scratch->at(place.offset);
      return {microbatch.arena_.get(), place.offset};
  }
  WEFT_CHECK_MSG(false, "a value inside a group has no place");
  return {};
}

Status Executor::set_input(MicrobatchMemory& microbatch, std::string_view name, const Tensor& tensor) {
  for (const ValueId input : graph_->inputs())
    if (graph_->value(input).name == name) return set_value(microbatch, input, tensor);
  return fail(ErrorCode::NotFound, "the graph has no input '" + std::string(name) + "'");
}

Status Executor::set_value(MicrobatchMemory& microbatch, ValueId value, const Tensor& tensor) {
  if (tensor.spec() != graph_->spec(value))
    return fail(ErrorCode::InvalidArgument, "value '" + graph_->value(value).name + "' is " +
                                                to_string(graph_->spec(value)) +
                                                ", the tensor given for it " + to_string(tensor.spec()));
  if (program_.places[value.index].residence == Residence::Inside) return {};  // nobody reads it
  return backend_.upload(tensor, place_of(microbatch, value), graph_->value(value).layout);
}

void Executor::bind(MicrobatchMemory& microbatch, ValueId value, View view) const {
  const auto at = std::find(options_.bound.begin(), options_.bound.end(), value);
  WEFT_CHECK_MSG(at != options_.bound.end(), "a value that is not bound is given a place");
  microbatch.bound_[static_cast<size_t>(at - options_.bound.begin())] = view;
}

// Of outputs that show what lies elsewhere.
Status Executor::copy_bound_outputs(const MicrobatchMemory& microbatch) {
  for (size_t slot = 0; slot < options_.bound.size(); ++slot) {
    const ValueId value = options_.bound[slot];
    if (graph_->producer(value).kind == dag::OpKind::Input) continue;
    const View from = place_of(microbatch, value), to = microbatch.bound_[slot];
    if (from.memory == to.memory && from.offset == to.offset) continue;
    WEFT_TRY_STATUS(backend_.copy(from, to, graph_->spec(value)));
  }
  return {};
}

Status Executor::copy_value(MicrobatchMemory& microbatch, ValueId input, const Executor& from,
                            const MicrobatchMemory& source, ValueId value) {
  WEFT_CHECK_MSG(&backend_ == &from.backend_, "values are copied within one backend");
  const dag::Value &here = graph_->value(input), &there = from.graph_->value(value);
  if (here.spec != there.spec || here.layout != Layout::Plain || there.layout != Layout::Plain)
    return fail(ErrorCode::InvalidArgument, "value '" + here.name + "' is " + to_string(here.spec) +
                                                ", the value to copy is " + to_string(there.spec) +
                                                "; both must lie plain");
  if (program_.places[input.index].residence == Residence::Inside) return {};  // nobody reads it
  return backend_.copy(from.place_of(source, value), place_of(microbatch, input), here.spec);
}

Status Executor::run(MicrobatchMemory& microbatch, uint32_t segment) {
  if (program_.step.value > 0 && step_of_ != state_->version()) {
    WEFT_TRY_STATUS(run_segment(microbatch, kOnceAStep));
    step_of_ = state_->version();
  }
  return run_segment(microbatch, segment);
}

Status Executor::run_segment(MicrobatchMemory& microbatch, uint32_t segment) {
  const ReplayKey key{.program = observer_ || !options_.bound.empty() ? nullptr : recordings_.get(),
                      .segment = segment,
                      .microbatch = segment == kOnceAStep ? 0 : microbatch.number_,
                      .turn = segment == kOnceAStep ? dag::GradientTurn{} : microbatch.turn,
                      .keeps_statistics = segment == kOnceAStep || microbatch.keeps_statistics};
  return backend_.submit(key, microbatch.context, [&](const StepContext& context) {
    return run_groups(microbatch, segment, context);
  });
}

Status Executor::run_groups(MicrobatchMemory& microbatch, uint32_t segment, const StepContext& context) {
  for (uint32_t g = 0; g < program_.groups.size(); ++g) {
    if (work_[g].segment != segment) continue;
    const GroupSignature& group = program_.groups[g];
    input_views_.clear();
    output_views_.clear();
    for (const ValueId input : group.inputs) input_views_.push_back(place_of(microbatch, input));
    for (const ValueId output : group.outputs) output_views_.push_back(place_of(microbatch, output));
    if (observer_) observer_(g, true);
    WEFT_TRY_STATUS(kernels_[g]->run(input_views_, output_views_, workspace(), context));
    WEFT_TRY_STATUS(after_group(microbatch, g));
    if (observer_) observer_(g, false);
  }
  return segment == kOnceAStep ? Status() : copy_bound_outputs(microbatch);
}

Status Executor::after_group(MicrobatchMemory& microbatch, uint32_t group) {
  for (const auto& [value, initializer] : work_[group].state_updates)
    if (microbatch.keeps_statistics)
      WEFT_TRY_STATUS(
          backend_.copy(place_of(microbatch, value), initializers_[initializer], graph_->spec(value)));
  const dag::GradientTurn& turn = microbatch.turn;
  for (const uint32_t slot : work_[group].gradients) {
    const ValueId value = program_.gradients[slot];
    if (!turn.begins_range)
      WEFT_TRY_STATUS(
          backend_.accumulate(place_of(microbatch, value), sum_of(turn, slot), graph_->spec(value)));
    WEFT_TRY_STATUS(end_range(turn, slot));
  }
  for (const auto& [from, slot, after] : work_[group].copies) {
    const View sum = sum_of(turn, slot), gradient = place_of(microbatch, from);
    const TensorSpec& spec = graph_->spec(program_.gradients[slot]);
    WEFT_TRY_STATUS(turn.begins_range ? backend_.copy(gradient, sum, spec)
                                      : backend_.accumulate(gradient, sum, spec));
    WEFT_TRY_STATUS(end_range(turn, slot));
  }
  return {};
}

// Where the gradients of a microbatch's range are added up: the first range's sum becomes the step's.
View Executor::sum_of(const dag::GradientTurn& turn, uint32_t slot) const {
  WEFT_CHECK_MSG(turn.first_range || options_.sums_ranges, "an executor of one range runs a second one");
  return turn.first_range ? gradients_[slot] : range_sums_[slot];
}

Status Executor::end_range(const dag::GradientTurn& turn, uint32_t slot) {
  if (!turn.joins_first) return {};
  return backend_.accumulate(range_sums_[slot], gradients_[slot], graph_->spec(program_.gradients[slot]));
}

Result<std::unique_ptr<Download>> Executor::begin_value(const MicrobatchMemory& microbatch, ValueId value,
                                                        const Encoding& encoding) {
  return backend_.begin_download(place_of(microbatch, value), graph_->spec(value),
                                 graph_->value(value).layout, encoding);
}

Result<Tensor> Executor::value(const MicrobatchMemory& microbatch, ValueId value) {
  WEFT_TRY(const auto download, begin_value(microbatch, value));
  return download->take();
}

Result<std::unique_ptr<Download>> Executor::begin_gradient_squares() {
  return backend_.begin_sums_of_squares(options_.updated ? gradients_of(updates_) : parameter_gradients_);
}

Result<std::vector<double>> Executor::gradient_squares() {
  return backend_.sums_of_squares(options_.updated ? gradients_of(updates_) : parameter_gradients_);
}

Result<Tensor> Executor::gradient(size_t parameter) {
  return backend_.download(parameter_gradients_[parameter].view, parameters_[parameter].spec, Layout::Plain);
}

Status Executor::update(const dag::UpdateStep& step) {
  WEFT_CHECK_MSG(options_.optimizer.has_value(), "update() of an executor without an optimizer");
  state_->note_change();
  return backend_.update(*options_.optimizer, step, updates_);
}

Status Executor::keep_statistics() {
  WEFT_CHECK_MSG(options_.undoes_statistics, "an executor that undoes nothing keeps nothing for that");
  return statistics_.keep(backend_);
}

Status Executor::undo_statistics() {
  WEFT_CHECK_MSG(options_.undoes_statistics, "an executor that undoes nothing keeps nothing for that");
  return statistics_.undo(backend_);
}

Result<std::unique_ptr<Download>> Executor::begin_statistic_squares() {
  return statistics_.begin_squares(backend_);
}

}  // namespace weft::peer
