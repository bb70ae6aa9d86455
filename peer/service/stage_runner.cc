#include "peer/service/stage_runner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "dag/gradient_order.h"
#include "peer/backend/host/host_memory.h"
#include "peer/machine/train_commands.h"
#include "peer/service/updated_weights.h"

namespace weft::peer {

using dag::OutputRole;
using dag::Tensor;
using proto::ProgramKind;

namespace {

// Of a training program's microbatch.
dag::GradientTurn turn_of(const proto::AssignStage& assign, const MicrobatchKey& key) {
  if (proto::is_comparison(key.microbatch))
    return {.begins_range = proto::comparison_pass(key.microbatch) != proto::ComparisonPass::Added};
  const uint32_t all = assign.training.microbatches(), ranges = assign.training.gradient_ranges;
  if (!assign.exact) return dag::gradient_turn(key.microbatch, all, ranges);
  return dag::gradient_turn(key.microbatch, all, ranges,
                            dag::share_of(assign.exact->ranges, assign.seat.replica));
}

// What does not begin with the first range is sent range by range, and added up elsewhere.
bool sums_ranges(const proto::AssignStage& assign, ProgramKind kind) {
  if (kind != ProgramKind::Train) return false;
  if (!assign.exact) return assign.training.gradient_ranges > 1;
  return assign.seat.replica == 0 && assign.exact->ranges.front() > 1;
}

// What each replica has for itself lies in its state as if there were one: here the slots of its optimizer.
dag::StateKey key_here(const proto::AssignStage& assign, const dag::StateKey& key) {
  dag::StateKey here = key;
  if (assign.local && key.replica == assign.seat.replica) here.replica = 0;
  return here;
}

// Of a step that it makes.
proto::StepOfRun place_of(const proto::AssignStage& assign, const Task& task) {
  return step_of_run(assign, task.key.step).value();
}

dag::UpdateStep update_of(const proto::AssignStage& assign, const Task& task) {
  const dag::TrainingSpec& training = assign.training;
  const proto::StepOfRun place = place_of(assign, task);
  return {.step = task.key.step - task.skipped_steps,
          .learning_rate = dag::scheduled_learning_rate(training.schedule, training.optimizer.learning_rate,
                                                        place.scheduled, place.steps),
          .gradient_scale = dag::clip_factor(training.clip_norm, task.norm) / training.microbatches()};
}

bool is_of_agreement(dag::StateSlot slot) {
  return slot == dag::StateSlot::OuterMomentum || slot == dag::StateSlot::Residue ||
         slot == dag::StateSlot::ReturnResidue;
}

Status take_named(std::vector<StageRunner::Submitted::Named>& from,
                  std::vector<StageRunner::Output::Named>& to) {
  for (StageRunner::Submitted::Named& named : from) {
    WEFT_TRY(auto tensor, named.tensor->take());
    to.push_back({std::move(named.key), std::move(tensor)});
  }
  return {};
}

// Where the numbers go that an output of a segment is; nullptr: nowhere.
std::vector<double> TaskOutcome::*numbers_of(OutputRole role) {
  if (role == OutputRole::Loss) return &TaskOutcome::loss;
  if (role == OutputRole::Correct) return &TaskOutcome::correct;
  return role == OutputRole::Counted ? &TaskOutcome::counted : nullptr;
}

}  // namespace

Result<std::unique_ptr<StageRunner>> StageRunner::create(std::shared_ptr<const proto::AssignStage> assignment,
                                                         const TensorSource& tensors, Backend& backend) {
  std::unique_ptr<StageRunner> runner(new StageRunner(std::move(assignment), backend));
  for (const proto::StageProgram& stage : runner->assignment_->programs)
    WEFT_TRY_STATUS(runner->add_program(stage));
  if (is_follower(*runner->assignment_)) {
    runner->followed_ = std::make_unique<FollowedMeans>(runner->state_->bytes());
    return runner;
  }
  WEFT_TRY_STATUS(runner->load_state(tensors));
  return runner;
}

Status StageRunner::load(const TensorSource& tensors) {
  if (!followed_) return fail(ErrorCode::Internal, "a stage that has its tensors is given others");
  WEFT_TRY_STATUS(load_state(tensors));
  return std::exchange(followed_, nullptr)->take_all(*agreement_);
}

// Slots for which nothing came stay zero, as at the start of a run; every weight must come.
Status StageRunner::load_state(const TensorSource& tensors) {
  const std::set<std::string_view> fixed = proto::fixed_initializers(*assignment_);
  std::set<std::string_view> came;
  SeatAgreement::Kept kept;
  for (const proto::TensorReference& reference : assignment_->tensors) {
    const dag::StateKey key = key_here(*assignment_, reference.key);
    if (assignment_->local && is_of_agreement(key.slot)) {
      WEFT_TRY(kept[reference.key], tensors(reference));
      continue;
    }
    if (state_->find(key) == nullptr) continue;
    WEFT_TRY(const Tensor tensor, tensors(reference));
    // What never changes is in no copy of the state, which others may come for while it is written.
    const bool is_ours = fixed.contains(reference.key.name) && !tensor.is_shared();
    WEFT_TRY_STATUS(state_->write(key, tensor, [&](std::span<const std::byte> bytes) {
      if (is_ours && !tensor.is_shared()) give_up_contents(bytes);
    }));
    if (is_weight(reference.key.slot)) came.insert(reference.key.name);
  }
  for (const proto::StageProgram& stage : assignment_->programs)
    for (const dag::Initializer& initializer : stage.graph->initializers())
      if (!came.contains(initializer.name))
        return fail(ErrorCode::NotFound, "no tensor came for initializer '" + initializer.name + "'");
  if (assignment_->local) {
    WEFT_TRY(agreement_, SeatAgreement::create(assignment_, *state_, kept));
  }
  if (assignment_->exact) {
    WEFT_TRY(sums_,
             GradientExchange::create(assignment_, *programs_.at(ProgramKind::Train).executor, state_));
  }
  return {};
}

Status StageRunner::add_program(const proto::StageProgram& stage) {
  const dag::TrainingSpec& training = assignment_->training;
  ExecutorOptions options;
  options.accumulates = stage.kind == ProgramKind::Train && training.batch_size > training.microbatch_size;
  options.sums_ranges = sums_ranges(*assignment_, stage.kind);
  for (const proto::EdgeEnd& end : stage.sends) options.kept.push_back(end.value);
  options.segment_of_op = stage.segment_of_op;
  options.scratch = scratch_;
  options.precision.compute = assignment_->arithmetic;
  options.rows_alone = stage.kind != ProgramKind::Train;
  if (stage.kind == ProgramKind::Train) {
    const std::vector<dag::ValueId> fresh = fresh_values(*assignment_, *stage.graph);
    options.kept.insert(options.kept.end(), fresh.begin(), fresh.end());
    options.optimizer = training.optimizer;
    options.updated = updated_here(*assignment_);
    options.undoes_statistics = training.may_skip();
  }
  WEFT_TRY(auto executor, Executor::create(stage.graph, state_, std::move(options)));
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
  Bytes sum = state_->bytes() + scratch_->bytes();
  if (agreement_) sum += agreement_->bytes();
  for (const auto& [kind, program] : programs_) {
    sum += program.executor->persistent_bytes();
    if (&program != &programs_.begin()->second) sum += program.executor->microbatch_bytes();
  }
  return sum;
}

Bytes StageRunner::microbatch_bytes() const {
  return programs_.empty() ? Bytes{} : programs_.begin()->second.executor->microbatch_bytes();
}

Result<StageRunner::Submitted> StageRunner::submit(const Task& task, const Inputs& inputs) {
  if (failed_) return fail(ErrorCode::Cancelled, "a task before this one failed");
  Submitted submitted;
  const Status status = submit_to_device(task, inputs, submitted);
  failed_ = !status.has_value();
  if (failed_) return fail(status.error());
  return submitted;
}

Result<StageRunner::Output> StageRunner::run(const Task& task, const Inputs& inputs) {
  WEFT_TRY(Submitted submitted, submit(task, inputs));
  auto output = take(std::move(submitted));
  failed_ = !output.has_value();
  return output;
}

Status StageRunner::submit_to_device(const Task& task, const Inputs& inputs, Submitted& submitted) {
  WEFT_TRY(submitted.busy, state_->backend().start_timer());
  switch (task.kind) {
    case TaskKind::Segment:
      WEFT_TRY_STATUS(run_segment(task, inputs, submitted));
      break;
    case TaskKind::Squares:
      WEFT_TRY_STATUS(begin_squares(submitted));
      break;
    case TaskKind::Update:
      WEFT_TRY_STATUS(update(task, submitted));
      break;
    case TaskKind::Differ:
    case TaskKind::Mean:
    case TaskKind::Weigh:
    case TaskKind::Agree:
    case TaskKind::Show:
      WEFT_TRY_STATUS(run_agreement(task, inputs, submitted));
      break;
    case TaskKind::Reduce:
    case TaskKind::Gather:
      WEFT_TRY_STATUS(run_sums(task, inputs, submitted));
      break;
    case TaskKind::Snapshot:
      WEFT_TRY_STATUS(snapshot(submitted));
      break;
    case TaskKind::Pass:
    case TaskKind::Begin:
      return fail(ErrorCode::Internal, "a pass of a stage that does not serve");
  }
  return submitted.busy->stop();
}

Result<TaskOutcome> StageRunner::take_outcome(Submitted& submitted) {
  TaskOutcome outcome;
  for (Submitted::Numbers& numbers : submitted.numbers) {
    WEFT_TRY(const Tensor tensor, numbers.values->take());
    outcome.*numbers.into = to_doubles(tensor);
  }
  outcome.refused = submitted.refused;
  outcome.owed = submitted.owed;
  outcome.shown = std::move(submitted.shown);
  WEFT_TRY(outcome.busy, submitted.busy->elapsed());
  return outcome;
}

Result<StageRunner::Output> StageRunner::take(Submitted submitted) {
  Output output;
  WEFT_TRY(output.outcome, take_outcome(submitted));
  for (const auto& [index, download] : submitted.sends) {
    WEFT_TRY(auto tensor, download->take());
    output.sends.emplace_back(index, std::move(tensor));
  }
  WEFT_TRY_STATUS(take_named(submitted.snapshot, output.snapshot));
  WEFT_TRY_STATUS(take_named(submitted.predictions, output.predictions));
  output.agreed = std::move(submitted.agreed);
  WEFT_TRY_STATUS(take_encoded(submitted.sums, output.agreed));
  return output;
}

Status StageRunner::run_segment(const Task& task, const Inputs& inputs, Submitted& submitted) {
  Program& program = programs_.at(task.key.program);
  const bool begins_step = task.key.program == ProgramKind::Train && task.first_segment &&
                           task.key.microbatch == microbatches_of(*assignment_).first;
  const dag::TrainingSpec& terms = assignment_->training;
  if (begins_step && (terms.skips_diverged() || terms.is_empty(place_of(*assignment_, task).step)))
    WEFT_TRY_STATUS(program.executor->keep_statistics());
  if (begins_step && agreement_) agreement_->begin_round();
  WEFT_TRY(MicrobatchMemory * microbatch, microbatch_of(task, program));
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
  WEFT_TRY_STATUS(begin_outputs(task, program, *microbatch, submitted));
  if (sums_ && task.key.program == ProgramKind::Train)
    WEFT_TRY_STATUS(sums_->after_segment(task, *microbatch, submitted.sums));
  if (task.last_segment) {
    program.free.push_back(std::move(program.active.at(task.key.microbatch)));
    program.active.erase(task.key.microbatch);
  }
  return {};
}

Result<MicrobatchMemory*> StageRunner::microbatch_of(const Task& task, Program& program) {
  std::unique_ptr<MicrobatchMemory>& microbatch = program.active[task.key.microbatch];
  if (microbatch) return microbatch.get();
  if (program.free.empty()) {
    WEFT_TRY(microbatch, program.executor->make_microbatch());
  } else {
    microbatch = std::move(program.free.back());
    program.free.pop_back();
  }
  const dag::TrainingSpec& training = assignment_->training;
  const int64_t size = training.microbatch_size;
  const bool compares = proto::is_comparison(task.key.microbatch);
  if (task.key.program == ProgramKind::Train) microbatch->turn = turn_of(*assignment_, task.key);
  // Replicas that add each step's gradients blend statistics in when they have come from all of them.
  microbatch->keeps_statistics = !compares && !assignment_->exact;
  microbatch->context = {
      .seed = training.seed,
      .step = task.key.program == ProgramKind::Train ? place_of(*assignment_, task).step : task.key.step,
      .sample_position = task.key.program == ProgramKind::Train && !compares ? task.key.microbatch * size : 0,
      .microbatch_size = size};
  return microbatch.get();
}

Status StageRunner::begin_outputs(const Task& task, Program& program, MicrobatchMemory& microbatch,
                                  Submitted& submitted) {
  for (uint32_t s = 0; s < program.stage->sends.size(); ++s) {
    const dag::ValueId value = program.stage->sends[s].value;
    if (segment_of(*program.stage, value) != task.segment) continue;
    WEFT_TRY(auto download, program.executor->begin_value(microbatch, value));
    submitted.sends.emplace_back(s, std::move(download));
  }
  for (const dag::GraphOutput& out : program.stage->graph->outputs()) {
    if (segment_of(*program.stage, out.value) != task.segment) continue;
    std::vector<double> TaskOutcome::*const numbers = numbers_of(out.role);
    const bool predicts = task.key.program == ProgramKind::Predict && out.role == OutputRole::Prediction;
    if (numbers == nullptr && !predicts) continue;
    WEFT_TRY(auto download, program.executor->begin_value(microbatch, out.value));
    if (numbers != nullptr)
      submitted.numbers.push_back({numbers, std::move(download)});
    else
      submitted.predictions.push_back(
          {dag::of_initializer(out.name, dag::StateSlot::None), std::move(download)});
  }
  return {};
}

Status StageRunner::begin_squares(Submitted& submitted) {
  Executor& executor = *programs_.at(ProgramKind::Train).executor;
  WEFT_TRY(auto squares, executor.begin_gradient_squares());
  submitted.numbers.push_back({&TaskOutcome::squares, std::move(squares)});
  WEFT_TRY(auto statistics, executor.begin_statistic_squares());
  if (statistics) submitted.numbers.push_back({&TaskOutcome::statistics, std::move(statistics)});
  return {};
}

Status StageRunner::update(const Task& task, Submitted& submitted) {
  if (task.with_squares) WEFT_TRY_STATUS(begin_squares(submitted));
  Executor& executor = *programs_.at(ProgramKind::Train).executor;
  WEFT_TRY_STATUS(task.skip ? executor.undo_statistics() : executor.update(update_of(*assignment_, task)));
  return shares_slots(*assignment_) ? sums_->send_updated(task.key.step, submitted.sums) : Status();
}

Status StageRunner::snapshot(Submitted& submitted) {
  if (followed_) return fail(ErrorCode::Internal, "a snapshot of a follower that has nothing yet");
  for (dag::StateKey& key : copied_state(*assignment_)) {
    WEFT_TRY(auto download, state_->begin_read(key));
    if (assignment_->local && !is_weight(key.slot)) key.replica = assignment_->seat.replica;
    submitted.snapshot.push_back({std::move(key), std::move(download)});
  }
  if (!agreement_) return {};
  for (auto& [key, tensor] : agreement_->tensors())
    submitted.snapshot.push_back({key, std::make_unique<FinishedDownload>(std::move(tensor))});
  return {};
}

Status StageRunner::run_agreement(const Task& task, const Inputs& inputs, Submitted& submitted) {
  if (followed_) return followed_->add(task, inputs.agreed);
  if (!agreement_) return fail(ErrorCode::Internal, "an agreement of a stage that has none");
  if (task.kind == TaskKind::Agree) {
    WEFT_TRY_STATUS(agreement_->agree(task, inputs.agreed));
    submitted.owed = agreement_->owed();
  } else if (task.kind == TaskKind::Show) {
    WEFT_TRY(submitted.shown, agreement_->show(task.check));
  } else if (task.kind == TaskKind::Differ) {
    WEFT_TRY(submitted.agreed, agreement_->differ(task));
  } else if (task.kind == TaskKind::Weigh) {
    submitted.refused = agreement_->weigh(task, inputs.agreed);
  } else {
    WEFT_TRY(SeatAgreement::Means means, agreement_->take_means(task, inputs.agreed));
    submitted.agreed = std::move(means.sent);
    submitted.refused = means.refused;
  }
  return {};
}

Status StageRunner::run_sums(const Task& task, const Inputs& inputs, Submitted& submitted) {
  if (!sums_) return fail(ErrorCode::Internal, "sums of gradients of a stage that has none");
  if (task.kind == TaskKind::Gather) return sums_->gather(inputs.agreed);
  WEFT_TRY(submitted.agreed, sums_->reduce(task.key.step, inputs.agreed));
  return {};
}

std::optional<dag::StateKey> StageRunner::not_finite() const {
  return agreement_ ? agreement_->not_finite() : std::nullopt;
}

}  // namespace weft::peer
