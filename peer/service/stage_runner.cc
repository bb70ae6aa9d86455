#include "peer/service/stage_runner.h"

#include <algorithm>
#include <set>

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
  std::unique_ptr<StageRunner> runner(new StageRunner(std::move(assignment), backend));
  for (const proto::StageProgram& stage : runner->assignment_->programs)
    WEFT_TRY_STATUS(runner->add_program(stage));
  WEFT_TRY_STATUS(runner->load_state(tensors));
  return runner;
}

// Slots for which nothing came stay zero, as at the start of a run; every weight must come.
Status StageRunner::load_state(const TensorSource& tensors) {
  std::set<std::string_view> came;
  for (const proto::TensorReference& reference : assignment_->tensors) {
    if (state_->find(reference.key) == nullptr) continue;
    WEFT_TRY(const Tensor tensor, tensors(reference));
    WEFT_TRY_STATUS(state_->write(reference.key, tensor));
    if (is_weight(reference.key.slot)) came.insert(reference.key.name);
  }
  for (const proto::StageProgram& stage : assignment_->programs)
    for (const dag::Initializer& initializer : stage.graph->initializers())
      if (!came.contains(initializer.name))
        return fail(ErrorCode::NotFound, "no tensor came for initializer '" + initializer.name + "'");
  return {};
}

Status StageRunner::add_program(const proto::StageProgram& stage) {
  const proto::TrainingSpec& training = assignment_->training;
  ExecutorOptions options;
  options.accumulates = stage.kind == ProgramKind::Train && training.batch_size > training.microbatch_size;
  for (const proto::EdgeEnd& end : stage.sends) options.kept.push_back(end.value);
  options.segment_of_op = stage.segment_of_op;
  WEFT_TRY(auto executor, Executor::create(stage.graph, state_, std::move(options)));
  if (stage.kind == ProgramKind::Train) WEFT_TRY_STATUS(executor->prepare_optimizer(training.optimizer));
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
  Bytes sum = state_->bytes();
  for (const auto& [kind, program] : programs_) sum += program.executor->persistent_bytes();
  return sum;
}

Bytes StageRunner::microbatch_bytes() const {
  Bytes most;
  for (const auto& [kind, program] : programs_) most = std::max(most, program.executor->microbatch_bytes());
  return most;
}

Result<StageRunner::Output> StageRunner::run(const Task& task, const Inputs& inputs) {
  if (failed_) return fail(ErrorCode::Cancelled, "a task before this one failed");
  auto output = carry_out(task, inputs);
  failed_ = !output.has_value();
  return output;
}

Result<StageRunner::Output> StageRunner::carry_out(const Task& task, const Inputs& inputs) {
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
      output.predictions.push_back({dag::of_initializer(out.name, dag::StateSlot::None), std::move(tensor)});
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
  const dag::Graph& training = programs_.at(ProgramKind::Train).executor->graph();
  for (dag::StateKey& key : trained_state(training, assignment_->training.optimizer)) {
    WEFT_TRY(auto tensor, state_->read(key));
    output.snapshot.push_back({std::move(key), std::move(tensor)});
  }
  return {};
}

}  // namespace weft::peer
