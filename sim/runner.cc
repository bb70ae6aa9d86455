#include "sim/runner.h"

#include <algorithm>

#include "sim/model.h"

namespace weft::sim {

using dag::OutputRole;
using peer::Task;
using peer::TaskKind;
using proto::ProgramKind;

HashRunner::HashRunner(std::shared_ptr<const proto::AssignStage> assignment, Bug bug)
    : assignment_(std::move(assignment)) {
  std::map<dag::StateKey, uint64_t> tensors;
  const uint32_t replica = assignment_->local ? assignment_->seat.replica : 0;
  for (const auto& tensor : assignment_->tensors) tensors[tensor.key] = value_of(tensor.sha256);
  slots_ = optimizer_slots(assignment_->training.optimizer);
  std::map<std::string, size_t> weight_of;
  for (const proto::StageProgram& stage : assignment_->programs) {
    Program& program = programs_[stage.kind];
    program.stage = &stage;
    program.hashes = hashes_of(*stage.graph);
    const auto segment_of = [&](dag::ValueId value) {
      return stage.segment_of_op[stage.graph->value(value).producer.index];
    };
    for (const auto& end : stage.receives) program.receive_segment.push_back(segment_of(end.value));
    for (const auto& end : stage.sends) program.send_segment.push_back(segment_of(end.value));
    for (uint32_t i = 0; i < program.hashes->initializers().size(); ++i) {
      const std::string& name = program.hashes->initializers()[i];
      const auto [weight, fresh] = weight_of.try_emplace(name, weights_.size());
      if (fresh) weights_.push_back(find_weight(tensors, name)->second);
      program.weights.push_back(weight->second);
      if (stage.kind != ProgramKind::Train) continue;
      for (uint32_t o = 0; o < program.hashes->outputs().size(); ++o) {
        const auto& output = program.hashes->outputs()[o];
        if (output.role != OutputRole::Gradient || output.name != name) continue;
        Parameter parameter{.name = name,
                            .initializer = i,
                            .weight = weight->second,
                            .gradient = o,
                            .state = {},
                            .accumulated = 0,
                            .terms = 0};
        parameter.state.value = weights_[weight->second];
        for (size_t s = 0; s < slots_.size(); ++s)
          if (const auto slot = tensors.find({dag::StateOwner::Initializer, name, slots_[s], replica});
              slot != tensors.end())
            parameter.state.slots[s] = slot->second;
        parameters_.push_back(std::move(parameter));
      }
    }
  }
  if (assignment_->local) agreement_.emplace(assignment_, tensors, bug);
  if (assignment_->exact) sums_.emplace(assignment_);
  const std::vector<std::string> updated = updated_parameters(*assignment_);
  for (Parameter& parameter : parameters_)
    parameter.is_updated = std::find(updated.begin(), updated.end(), parameter.name) != updated.end();
}

bool HashRunner::reads(const Task& task, uint32_t receive) const {
  return programs_.at(task.key.program).receive_segment.at(receive) == task.segment;
}

uint32_t HashRunner::work(const Task& task) const {
  switch (task.kind) {
    case TaskKind::Segment:
      return 1 + programs_.at(task.key.program).hashes->ops_in(task.segment);
    default:
      return 1;
  }
}

Result<HashRunner::Output> HashRunner::run(const Task& task, const Inputs& inputs) {
  Output output;
  switch (task.kind) {
    case TaskKind::Segment:
      WEFT_TRY_STATUS(run_segment(task, inputs, output));
      break;
    case TaskKind::Squares:
    case TaskKind::Update:
      if (task.kind == TaskKind::Squares || task.with_squares)
        for (const Parameter& parameter : parameters_)
          if (parameter.is_updated) output.outcome.squares.push_back(square_of(parameter.accumulated));
      if (task.kind == TaskKind::Update) WEFT_TRY_STATUS(update(task, output));
      break;
    case TaskKind::Snapshot:
      output.snapshot = state();
      break;
    case TaskKind::Differ:
    case TaskKind::Mean:
    case TaskKind::Weigh:
    case TaskKind::Agree:
    case TaskKind::Show:
      WEFT_TRY_STATUS(run_agreement(task, inputs, output));
      break;
    case TaskKind::Reduce:
    case TaskKind::Gather:
      WEFT_TRY_STATUS(run_sums(task, inputs, output));
      break;
    case TaskKind::Pass:
    case TaskKind::Begin:
      return fail(ErrorCode::Unsupported, "nothing is served here");
  }
  return output;
}

// A replica with local steps has made fewer updates than the numbers of its steps say, and reads its schedule
// elsewhere.
uint64_t HashRunner::number_of_update(const Task& task) const {
  if (!assignment_->local) return task.key.step;
  const auto place = step_of_run(*assignment_, task.key.step);
  return number_of_local_update(task.key.step - task.skipped_steps, place ? place->scheduled : 0);
}

Status HashRunner::update(const Task& task, Output& output) {
  const uint32_t microbatches = microbatches_of(*assignment_).count;
  for (Parameter& parameter : parameters_) {
    if (parameter.terms != microbatches)
      return fail(ErrorCode::Internal,
                  "an update after " + std::to_string(parameter.terms) + " microbatches");
    parameter.terms = 0;
    if (!parameter.is_updated) continue;
    parameter.state = updated(parameter.state, static_cast<uint32_t>(slots_.size()), parameter.accumulated,
                              task.norm, number_of_update(task));
    weights_[parameter.weight] = parameter.state.value;
    if (shares_slots(*assignment_))
      sums_->send(parameter.name, task.key.step, parameter.state.value, output.agreed);
  }
  return {};
}

Status HashRunner::run_sums(const Task& task, const Inputs& inputs, Output& output) {
  if (!sums_) return fail(ErrorCode::Internal, "sums of gradients of a stage that has none");
  const bool shares = shares_slots(*assignment_);
  for (Parameter& parameter : parameters_) {
    if ((task.kind == TaskKind::Reduce) != sums_->owns(parameter.name)) continue;
    if (task.kind == TaskKind::Reduce) {
      WEFT_TRY(parameter.accumulated, sums_->add_up(parameter.name, inputs.agreed));
      if (!shares) sums_->send(parameter.name, task.key.step, parameter.accumulated, output.agreed);
      continue;
    }
    WEFT_TRY(const uint64_t taken, sums_->taken(parameter.name, inputs.agreed));
    if (shares)
      weights_[parameter.weight] = parameter.state.value = taken;
    else
      parameter.accumulated = taken;
  }
  return {};
}

Status HashRunner::run_agreement(const Task& task, const Inputs& inputs, Output& output) {
  if (!agreement_) return fail(ErrorCode::Internal, "an agreement of a stage that has none");
  if (task.kind == TaskKind::Mean) {
    WEFT_TRY(HashAgreement::Means means, agreement_->take_means(task, inputs.agreed));
    output.agreed = std::move(means.sent);
    output.outcome.refused = means.refused;
    return {};
  }
  if (task.kind == TaskKind::Weigh) {
    output.outcome.refused = agreement_->weigh(task, inputs.agreed);
    return {};
  }
  if (task.kind == TaskKind::Show) {
    WEFT_TRY(output.outcome.shown, agreement_->show(task.check));
    return {};
  }
  HashAgreement::Weights weights;
  for (const Parameter& parameter : parameters_) weights[parameter.name] = parameter.state.value;
  if (task.kind == TaskKind::Differ) {
    output.agreed = agreement_->differ(task, weights);
  } else {
    WEFT_TRY(const HashAgreement::Weights agreed, agreement_->agree(task, inputs.agreed, weights));
    for (const auto& [name, value] : agreed) weights[name] = value;
    output.outcome.owed = agreement_->owed();
  }
  for (Parameter& parameter : parameters_)
    weights_[parameter.weight] = parameter.state.value = weights.at(parameter.name);
  return {};
}

std::vector<HashRunner::Named> HashRunner::state() const {
  std::vector<Named> named;
  const auto train = programs_.find(ProgramKind::Train);
  if (train == programs_.end()) return named;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.is_updated) continue;  // its owner has it
    const auto& graph = *train->second.stage->graph;
    const dag::TensorSpec& spec = graph.spec(graph.initializers()[parameter.initializer].value);
    const auto add = [&](dag::StateSlot slot, uint64_t value) {
      named.push_back({dag::of_initializer(parameter.name, slot), spec, value});
      if (assignment_->local && !is_weight(slot)) named.back().key.replica = assignment_->seat.replica;
    };
    add(dag::StateSlot::Value, parameter.state.value);
    for (size_t s = 0; s < slots_.size(); ++s) add(slots_[s], parameter.state.slots[s]);
  }
  if (agreement_)
    for (Named& kept : agreement_->tensors()) named.push_back(std::move(kept));
  return named;
}

std::map<uint32_t, uint64_t> HashRunner::agreed() const {
  std::map<uint32_t, uint64_t> weights;
  for (const peer::AgreedWeight& weight : agreement_->weights())
    for (const Parameter& parameter : parameters_)
      if (parameter.name == weight.key.name) weights[weight.tensor->number] = parameter.state.value;
  return weights;
}

// One by one within a range, and then the ranges.
void HashRunner::add_gradient(Parameter& parameter, const peer::MicrobatchKey& key, uint64_t gradient,
                              Output& output) {
  const proto::MicrobatchShare share = microbatches_of(*assignment_);
  parameter.terms = key.microbatch == share.first ? 1 : parameter.terms + 1;
  if (sums_) return sums_->add(parameter.name, key, gradient, output.agreed);
  const uint32_t length = share.count / assignment_->training.gradient_ranges;
  parameter.range = key.microbatch % length == 0 ? gradient : mix(parameter.range, gradient);
  if (key.microbatch % length == length - 1)
    parameter.accumulated =
        key.microbatch < length ? parameter.range : mix(parameter.accumulated, parameter.range);
}

Status HashRunner::run_segment(const Task& task, const Inputs& inputs, Output& output) {
  Program& program = programs_.at(task.key.program);
  const bool begins_step = task.key.program == ProgramKind::Train && task.first_segment &&
                           task.key.microbatch == microbatches_of(*assignment_).first;
  if (begins_step && agreement_) agreement_->begin_round();
  std::vector<uint64_t>& values = program.active[task.key.microbatch];
  const HashProgram& hashes = *program.hashes;
  if (values.empty()) {
    values.assign(hashes.value_count(), 0);
    for (uint32_t i = 0; i < program.weights.size(); ++i)
      values[hashes.initializer_value(i)] = weights_[program.weights[i]];
  }
  for (const auto& [index, value] : inputs.received)
    values[program.stage->receives[index].value.index] = value;
  for (uint32_t r = 0; r < program.receive_segment.size(); ++r)
    if (program.receive_segment[r] == task.segment && values[program.stage->receives[r].value.index] == 0)
      return fail(ErrorCode::Internal, "a segment without what it receives");
  for (const dag::ValueId input : program.stage->graph->inputs()) {
    if (program.stage->segment_of_op[program.stage->graph->value(input).producer.index] != task.segment)
      continue;
    const std::string& name = program.stage->graph->value(input).name;
    if (std::find(program.stage->data_inputs.begin(), program.stage->data_inputs.end(), name) ==
        program.stage->data_inputs.end())
      continue;
    if (!inputs.sample_position) return fail(ErrorCode::Internal, "a segment without its data");
    values[input.index] =
        data_value(assignment_->training.seed, task.key.program, name, *inputs.sample_position);
  }
  hashes.run(task.segment, values);
  for (uint32_t s = 0; s < program.send_segment.size(); ++s)
    if (program.send_segment[s] == task.segment)
      output.sends.emplace_back(s, values[program.stage->sends[s].value.index]);
  for (const auto& out : hashes.outputs()) {
    if (out.segment != task.segment) continue;
    if (out.role == OutputRole::Loss) output.outcome.loss = {scalar_of(values[out.value])};
    if (out.role == OutputRole::Correct) output.outcome.correct = {scalar_of(values[out.value])};
    if (out.role == OutputRole::Counted) output.outcome.counted = {scalar_of(values[out.value])};
    if (out.role == OutputRole::Prediction && task.key.program == ProgramKind::Predict)
      output.predictions.push_back({dag::of_initializer(out.name, dag::StateSlot::None),
                                    program.stage->graph->spec(dag::ValueId{out.value}), values[out.value]});
  }
  for (Parameter& parameter : parameters_) {
    if (task.key.program != ProgramKind::Train) break;
    const auto& gradient = hashes.outputs()[parameter.gradient];
    if (gradient.segment != task.segment) continue;
    add_gradient(parameter, task.key, values[gradient.value], output);
  }
  if (task.last_segment) program.active.erase(task.key.microbatch);
  return {};
}

}  // namespace weft::sim
