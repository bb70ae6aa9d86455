#include "peer/service/stage_runner.h"

#include <algorithm>

#include "base/check.h"

namespace weft::peer {

using dag::OutputRole;
using dag::Tensor;
using proto::ProgramKind;

namespace {

uint32_t segment_of(const proto::StageProgram& stage, dag::ValueId value) {
  return stage.segment_of_op[stage.graph->value(value).producer.index];
}

}  // namespace

Result<std::unique_ptr<StageRunner>> StageRunner::create(std::shared_ptr<const proto::AssignStage> assignment,
                                                         const TensorSource& tensors, Backend& backend) {
  std::map<std::pair<std::string, std::string>, Tensor> loaded;
  for (const proto::TensorReference& reference : assignment->tensors) {
    WEFT_TRY(auto tensor, tensors(reference));
    loaded[std::pair(reference.initializer, reference.slot)] = std::move(tensor);
  }
  std::unique_ptr<StageRunner> runner(new StageRunner(std::move(assignment)));
  for (const proto::StageProgram& stage : runner->assignment_->programs)
    WEFT_TRY_STATUS(runner->add_program(stage, loaded, backend));
  return runner;
}

Status StageRunner::add_program(const proto::StageProgram& stage,
                                const std::map<std::pair<std::string, std::string>, Tensor>& tensors,
                                Backend& backend) {
  const proto::TrainingSpec& training = assignment_->training;
  ExecutorOptions options;
  options.accumulates = stage.kind == ProgramKind::Train && training.batch_size > training.microbatch_size;
  for (const proto::EdgeEnd& end : stage.sends) options.kept.push_back(end.value);
  options.segment_of_op = stage.segment_of_op;
  WEFT_TRY(auto executor, Executor::create(stage.graph, backend, std::move(options)));
  for (const dag::Initializer& initializer : stage.graph->initializers()) {
    auto tensor = tensors.find({initializer.name, "value"});
    if (tensor == tensors.end()) tensor = tensors.find({initializer.name, "running_statistic"});
    if (tensor == tensors.end())
      return fail(ErrorCode::NotFound, "no tensor came for initializer '" + initializer.name + "'");
    WEFT_TRY_STATUS(executor->set_initializer(initializer.name, tensor->second));
  }
  if (stage.kind == ProgramKind::Train) {
    WEFT_TRY_STATUS(executor->prepare_optimizer(training.optimizer));
    for (size_t p = 0; p < executor->parameters().size(); ++p)
      for (const std::string_view slot : training.optimizer.slot_names()) {
        const auto tensor = tensors.find({executor->parameters()[p].name, std::string(slot)});
        if (tensor != tensors.end()) WEFT_TRY_STATUS(executor->set_slot(p, slot, tensor->second));
      }
  }
  Program& program = programs_[stage.kind];
  program.stage = &stage;
  // What is needed to begin is taken now, so that a stage that is ready has its memory.
  const uint32_t count =
      stage.kind == ProgramKind::Train ? std::max(1u, assignment_->microbatches_in_flight) : 1;
  for (uint32_t i = 0; i < count; ++i) {
    WEFT_TRY(auto microbatch, executor->make_microbatch());
    program.free.push_back(std::move(microbatch));
  }
  program.executor = std::move(executor);
  return {};
}

Bytes StageRunner::persistent_bytes() const {
  Bytes sum;
  for (const auto& [kind, program] : programs_) sum += program.executor->persistent_bytes();
  return sum;
}

Bytes StageRunner::microbatch_bytes() const {
  Bytes most;
  for (const auto& [kind, program] : programs_) most = std::max(most, program.executor->microbatch_bytes());
  return most;
}

Result<StageRunner::Output> StageRunner::run(const Task& task, const Inputs& inputs) {
  Output output;
  switch (task.kind) {
    case TaskKind::Segment:
      WEFT_TRY_STATUS(run_segment(task, inputs, output));
      break;
    case TaskKind::Squares: {
      WEFT_TRY(output.outcome.squares, programs_.at(ProgramKind::Train).executor->gradient_squares());
      break;
    }
    case TaskKind::Update:
      WEFT_TRY_STATUS(update(task, output));
      break;
    case TaskKind::Snapshot:
      WEFT_TRY_STATUS(snapshot(output));
      break;
    case TaskKind::TakeWeights:
      WEFT_TRY_STATUS(take_weights());
      break;
  }
  return output;
}

Status StageRunner::run_segment(const Task& task, const Inputs& inputs, Output& output) {
  Program& program = programs_.at(task.key.program);
  std::unique_ptr<Microbatch>& microbatch = program.active[task.key.microbatch];
  if (!microbatch) {
    if (program.free.empty()) {
      WEFT_TRY(microbatch, program.executor->make_microbatch());
    } else {
      microbatch = std::move(program.free.back());
      program.free.pop_back();
    }
    const int64_t size = assignment_->training.microbatch_size;
    microbatch->first_of_step = task.key.microbatch == 0;
    microbatch->context = {
        .seed = assignment_->training.seed,
        .step = task.key.step,
        .sample_position = task.key.program == ProgramKind::Train ? task.key.microbatch * size : 0,
        .microbatch_size = size};
  }
  for (const auto& [index, tensor] : inputs.received)
    WEFT_TRY_STATUS(program.executor->set_value(*microbatch, program.stage->receives[index].value, tensor));
  // Each input is written just before the segment in which it begins to live.
  for (const dag::ValueId input : program.stage->graph->inputs()) {
    if (segment_of(*program.stage, input) != task.segment) continue;
    const auto data = inputs.data.find(program.stage->graph->value(input).name);
    if (data != inputs.data.end())
      WEFT_TRY_STATUS(program.executor->set_value(*microbatch, input, data->second));
  }
  WEFT_TRY_STATUS(program.executor->run(*microbatch, task.segment));
  WEFT_TRY_STATUS(collect_outputs(task, program, *microbatch, output));
  if (task.last_segment) {
    program.free.push_back(std::move(microbatch));
    program.active.erase(task.key.microbatch);
  }
  return {};
}

Status StageRunner::collect_outputs(const Task& task, Program& program, Microbatch& microbatch,
                                    Output& output) {
  for (uint32_t s = 0; s < program.stage->sends.size(); ++s) {
    const dag::ValueId value = program.stage->sends[s].value;
    if (segment_of(*program.stage, value) != task.segment) continue;
    WEFT_TRY(auto tensor, program.executor->value(microbatch, value));
    output.sends.emplace_back(s, std::move(tensor));
  }
  for (const dag::GraphOutput& out : program.stage->graph->outputs()) {
    if (segment_of(*program.stage, out.value) != task.segment) continue;
    std::vector<double>* numbers = nullptr;
    if (out.role == OutputRole::Loss) numbers = &output.outcome.loss;
    if (out.role == OutputRole::Correct) numbers = &output.outcome.correct;
    if (out.role == OutputRole::Counted) numbers = &output.outcome.counted;
    const bool predicts = task.key.program == ProgramKind::Predict && out.role == OutputRole::Prediction;
    if (numbers == nullptr && !predicts) continue;
    WEFT_TRY(auto tensor, program.executor->value(microbatch, out.value));
    if (numbers != nullptr)
      *numbers = to_doubles(tensor);
    else
      output.predictions.push_back({out.name, "", std::move(tensor)});
  }
  return {};
}

Status StageRunner::update(const Task& task, Output& output) {
  Executor& executor = *programs_.at(ProgramKind::Train).executor;
  const proto::TrainingSpec& training = assignment_->training;
  if (task.with_squares) {
    WEFT_TRY(output.outcome.squares, executor.gradient_squares());
  }
  const uint32_t microbatches = training.batch_size / training.microbatch_size;
  return executor.update(
      {.step = task.key.step,
       .learning_rate = dag::scheduled_learning_rate(training.schedule, training.optimizer.learning_rate,
                                                     task.key.step, training.steps),
       .gradient_scale = dag::clip_factor(training.clip_norm, task.norm) / microbatches});
}

Status StageRunner::snapshot(Output& output) {
  Executor& executor = *programs_.at(ProgramKind::Train).executor;
  for (size_t p = 0; p < executor.parameters().size(); ++p) {
    const std::string& name = executor.parameters()[p].name;
    WEFT_TRY(auto value, executor.initializer(name));
    output.snapshot.push_back({name, "value", std::move(value)});
    for (const std::string_view slot : assignment_->training.optimizer.slot_names()) {
      WEFT_TRY(auto tensor, executor.slot(p, slot));
      output.snapshot.push_back({name, std::string(slot), std::move(tensor)});
    }
  }
  for (const dag::GraphOutput& out : executor.graph().outputs()) {
    if (out.role != OutputRole::StateUpdate) continue;
    WEFT_TRY(auto value, executor.initializer(out.name));
    output.snapshot.push_back({out.name, "running_statistic", std::move(value)});
  }
  return {};
}

Status StageRunner::take_weights() {
  Executor& trained = *programs_.at(ProgramKind::Train).executor;
  Executor& evaluation = *programs_.at(ProgramKind::Evaluate).executor;
  for (const dag::Initializer& initializer : evaluation.graph().initializers()) {
    if (!trained.graph().find_initializer(initializer.name))
      continue;  // only inference reads it: as submitted
    WEFT_TRY(const Tensor tensor, trained.initializer(initializer.name));
    WEFT_TRY_STATUS(evaluation.set_initializer(initializer.name, tensor));
  }
  return {};
}

}  // namespace weft::peer
