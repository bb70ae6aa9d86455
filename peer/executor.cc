#include "peer/executor.h"

#include <map>

#include "dag/op_table.h"

namespace weft::peer {

using dag::Layout;
using dag::OutputRole;
using dag::Tensor;
using dag::TensorSpec;
using dag::ValueId;

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const dag::Graph> graph,
                                                   std::shared_ptr<State> state, ExecutorOptions options) {
  std::unique_ptr<Executor> executor(new Executor(std::move(graph), std::move(state), std::move(options)));
  WEFT_TRY_STATUS(executor->build());
  WEFT_TRY_STATUS(executor->take_persistent_memory());
  return executor;
}

Status Executor::build() {
  std::vector<GroupSignature> groups;
  for (GroupSignature& group : group_signatures(*graph_, options_.kept)) {
    if (is_view(*graph_, group)) continue;
    auto kernel = backend_.make_kernel(*graph_, group);
    if (!kernel) {
      const dag::Op& op = graph_->op(group.ops.front());
      return fail(kernel.error().within(std::string(to_string(op.kind)) +
                                        (op.name.empty() ? "" : " '" + op.name + "'")));
    }
    kernels_.push_back(std::move(*kernel));
    groups.push_back(std::move(group));
  }
  program_ =
      plan_program(*graph_, backend_, std::move(groups), kernels_, {options_.accumulates, options_.kept});

  const size_t count = program_.groups.size();
  state_updates_.resize(count);
  gradients_of_group_.resize(count);
  copies_of_group_.resize(count);
  std::vector<uint32_t> group_of_value(graph_->values().size(), 0);
  for (uint32_t g = 0; g < count; ++g) {
    segment_of_group_.push_back(
        options_.segment_of_op.empty() ? 0 : options_.segment_of_op[program_.groups[g].ops.front().index]);
    for (const ValueId output : program_.groups[g].outputs) {
      group_of_value[output.index] = g;
      const Place& place = program_.places[output.index];
      if (place.residence == Residence::Gradient) gradients_of_group_[g].push_back(place.slot);
    }
  }
  // A view takes its operand's group, so that what hangs on a view waits for the bytes.
  for (const dag::Op& op : graph_->ops())
    if (!op.inputs.empty() && dag::is_view(*graph_, op) &&
        is_view(*graph_, {{graph_->value(op.outputs[0]).producer}, {}, {}}))
      group_of_value[op.outputs[0].index] = group_of_value[op.inputs[0].index];
  for (const auto& output : graph_->outputs()) {
    if (output.role != OutputRole::StateUpdate) continue;
    for (uint32_t i = 0; i < graph_->initializers().size(); ++i)
      if (graph_->initializers()[i].name == output.name)
        state_updates_[group_of_value[output.value.index]].push_back({output.value, i});
  }
  for (const auto& copy : program_.gradient_copies) copies_of_group_[copy.after_group].push_back(copy);
  return {};
}

Status Executor::take_persistent_memory() {
  std::vector<State::Claim> weights;
  for (const auto& initializer : graph_->initializers())
    weights.push_back({weight_key(initializer), graph_->spec(initializer.value)});
  WEFT_TRY_STATUS(state_->claim(weights));
  for (const State::Claim& weight : weights) initializers_.push_back(state_->find(weight.key)->view);

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
  persistent_bytes_ = {size};
  WEFT_TRY(persistent_, backend_.allocate(persistent_bytes_));
  for (std::vector<View>* views : {&constants_, &gradients_})
    for (View& view : *views) view.memory = persistent_.get();
  for (const dag::Op& op : graph_->ops())
    if (op.kind == dag::OpKind::Constant)
      WEFT_TRY_STATUS(backend_.upload(graph_->constant(op),
                                      constants_[program_.places[op.outputs[0].index].slot], Layout::Plain));
  for (size_t slot = 0; slot < gradients_.size(); ++slot)
    WEFT_TRY_STATUS(backend_.fill_zero(gradients_[slot], graph_->spec(program_.gradients[slot])));
  WEFT_TRY(workspace_, backend_.allocate(program_.workspace));

  std::map<std::string_view, uint32_t> slot_of;
  uint32_t slot = 0;
  for (const auto& output : graph_->outputs())
    if (output.role == OutputRole::Gradient) slot_of[output.name] = slot++;
  for (uint32_t i = 0; i < graph_->initializers().size(); ++i) {
    const auto& initializer = graph_->initializers()[i];
    const auto found = slot_of.find(initializer.name);
    if (found == slot_of.end()) continue;
    parameters_.push_back({initializer.name, graph_->spec(initializer.value)});
    gradient_slot_.push_back(found->second);
    initializer_slot_.push_back(i);
  }
  return {};
}

Result<std::unique_ptr<Microbatch>> Executor::make_microbatch() {
  auto microbatch = std::make_unique<Microbatch>();
  WEFT_TRY(microbatch->arena_, backend_.allocate(program_.arena));
  return microbatch;
}

View Executor::place_of(const Microbatch& microbatch, ValueId value) const {
  const Place& place = program_.places[value.index];
  switch (place.residence) {
    case Residence::Inside:
      break;
    case Residence::Arena:
      return {microbatch.arena_.get(), place.offset};
    case Residence::Initializer:
      return initializers_[place.slot];
    case Residence::Constant:
      return constants_[place.slot];
    case Residence::Gradient:
      if (microbatch.first_of_step) return gradients_[place.slot];
      return {microbatch.arena_.get(), place.offset};
  }
  WEFT_CHECK_MSG(false, "a value inside a group has no place");
  return {};
}

Status Executor::set_input(Microbatch& microbatch, std::string_view name, const Tensor& tensor) {
  for (const ValueId input : graph_->inputs())
    if (graph_->value(input).name == name) return set_value(microbatch, input, tensor);
  return fail(ErrorCode::NotFound, "the graph has no input '" + std::string(name) + "'");
}

Status Executor::set_value(Microbatch& microbatch, ValueId value, const Tensor& tensor) {
  if (tensor.spec() != graph_->spec(value))
    return fail(ErrorCode::InvalidArgument, "value '" + graph_->value(value).name + "' is " +
                                                to_string(graph_->spec(value)) +
                                                ", the tensor given for it " + to_string(tensor.spec()));
  if (program_.places[value.index].residence == Residence::Inside) return {};  // nobody reads it
  return backend_.upload(tensor, place_of(microbatch, value), graph_->value(value).layout);
}

Status Executor::run(Microbatch& microbatch, uint32_t segment) {
  for (uint32_t g = 0; g < program_.groups.size(); ++g) {
    if (segment_of_group_[g] != segment) continue;
    const GroupSignature& group = program_.groups[g];
    input_views_.clear();
    output_views_.clear();
    for (const ValueId input : group.inputs) input_views_.push_back(place_of(microbatch, input));
    for (const ValueId output : group.outputs) output_views_.push_back(place_of(microbatch, output));
    if (observer_) observer_(g, true);
    WEFT_TRY_STATUS(kernels_[g]->run(input_views_, output_views_, {workspace_.get(), 0}, microbatch.context));
    WEFT_TRY_STATUS(after_group(microbatch, g));
    if (observer_) observer_(g, false);
  }
  return {};
}

Status Executor::after_group(Microbatch& microbatch, uint32_t group) {
  for (const auto& [value, initializer] : state_updates_[group])
    WEFT_TRY_STATUS(
        backend_.copy(place_of(microbatch, value), initializers_[initializer], graph_->spec(value)));
  if (!microbatch.first_of_step)
    for (const uint32_t slot : gradients_of_group_[group]) {
      const ValueId value = program_.gradients[slot];
      WEFT_TRY_STATUS(
          backend_.accumulate(place_of(microbatch, value), gradients_[slot], graph_->spec(value)));
    }
  for (const auto& copy : copies_of_group_[group])
    WEFT_TRY_STATUS(add_gradient(microbatch, place_of(microbatch, copy.from), copy.slot));
  return {};
}

Status Executor::add_gradient(const Microbatch& microbatch, View from, uint32_t slot) {
  const TensorSpec& spec = graph_->spec(program_.gradients[slot]);
  const View into = gradients_[slot];
  return microbatch.first_of_step ? backend_.copy(from, into, spec) : backend_.accumulate(from, into, spec);
}

Result<Tensor> Executor::value(Microbatch& microbatch, ValueId value) {
  return backend_.download(place_of(microbatch, value), graph_->spec(value), graph_->value(value).layout);
}

Status Executor::prepare_optimizer(const dag::OptimizerSpec& optimizer) {
  optimizer_ = optimizer;
  const std::vector<dag::StateSlot> slots = optimizer_slots(optimizer);
  std::vector<State::Claim> claims;
  for (const Parameter& parameter : parameters_)
    for (const dag::StateSlot slot : slots)
      claims.push_back({dag::of_initializer(parameter.name, slot), parameter.spec});
  WEFT_TRY_STATUS(state_->claim(claims));
  slots_.assign(parameters_.size(), {});
  for (size_t i = 0; i < claims.size(); ++i)
    slots_[i / slots.size()].push_back(state_->find(claims[i].key)->view);
  return {};
}

Result<std::vector<double>> Executor::gradient_squares() {
  std::vector<double> squares;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    WEFT_TRY(const double sum, backend_.sum_of_squares(gradients_[gradient_slot_[i]], parameters_[i].spec));
    squares.push_back(sum);
  }
  return squares;
}

Result<Tensor> Executor::gradient(size_t parameter) {
  return backend_.download(gradients_[gradient_slot_[parameter]], parameters_[parameter].spec, Layout::Plain);
}

Status Executor::update(const dag::UpdateStep& step) {
  WEFT_CHECK_MSG(slots_.size() == parameters_.size(), "update() before prepare_optimizer()");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    WEFT_TRY_STATUS(backend_.update(optimizer_, step, initializers_[initializer_slot_[i]],
                                    gradients_[gradient_slot_[i]], slots_[i], parameters_[i].spec));
  }
  return {};
}

}  // namespace weft::peer
