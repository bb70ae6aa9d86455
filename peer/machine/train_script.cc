#include "peer/machine/train_script.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "peer/machine/train_commands.h"
#include "plan/schedule.h"

namespace weft::peer {

using proto::Command;
using proto::CommandKind;
using proto::ProgramKind;

namespace {
tl::unexpected<Error> refuse_script(const std::string& what) {
  return fail(ErrorCode::InvalidArgument, what);
}

bool copies(const Command& command) {
  return command.kind == CommandKind::Checkpoint || command.kind == CommandKind::CopyState;
}
bool makes_copy(const proto::AssignStage& assign, const Command& command) {
  return copies(command) && keeps_copy(assign, command.stays, command.with_followers);
}

// The seat whose tensor was the last that the task needed; nothing where that was something else.
std::optional<plan::Seat> last_to_come(const Task& task, const StageInputs& inputs) {
  switch (task.kind) {
    case TaskKind::Segment:
      return inputs.arrivals.last_to_come(task.key, task.segment);
    case TaskKind::Mean:
    case TaskKind::Weigh:
    case TaskKind::Agree:
      return inputs.agreements.last_to_come(task.key.step, task.kind != TaskKind::Mean);
    case TaskKind::Reduce:
    case TaskKind::Gather:
      return inputs.sums.last_to_come(task.key.step, task.kind == TaskKind::Gather);
    default:
      return std::nullopt;
  }
}

Task snapshot_of(const Command& command, uint64_t skipped) {
  return {.kind = TaskKind::Snapshot,
          .key = {ProgramKind::Train, command.step, 0},
          .skipped_steps = skipped,
          .direct = command.direct};
}

Task show(const Command& command) {
  return {.kind = TaskKind::Show, .key = {ProgramKind::Agree, command.step, 0}, .check = command.check};
}

proto::MeanPiece piece_of(const proto::AssignStage& assign, const Task& task, const TaskOutcome& outcome) {
  return {.run = assign.run,
          .plan_version = assign.plan_version,
          .step = task.key.step,
          .sequence = task.sequence,
          .shown = outcome.shown.value_or(replicas::ShownPiece{})};
}
}  // namespace

TrainScript::TrainScript(std::shared_ptr<const proto::AssignStage> assignment, const StageInputs& inputs,
                         const Options& options)
    : assignment_(std::move(assignment)),
      arrivals_(inputs.arrivals),
      agreements_(inputs.agreements),
      sums_(inputs.sums),
      turns_(assignment_, inputs.agreements),
      options_(options),
      completed_(assignment_->after_step),
      granted_(completed_),
      tally_(*assignment_),
      passes_(*assignment_) {
  given_.step = completed_;
  given_.skipped = assignment_->skipped_steps;
}

// ---- commands

Status TrainScript::on_command(const Command& command) {
  if (command.sequence == 0) return refuse_script("a command without a sequence number");
  // One that is settled may never have come: others were to report of it, and a broker was restarted.
  if (command.sequence > std::max(last_sequence_, command.settled) + 1)
    return refuse_script("command " + std::to_string(command.sequence) + " after " +
                         std::to_string(last_sequence_));
  if (command.sequence <= last_sequence_) return {};
  if (commands_.size() >= kCommandsMax) return refuse_script("too many commands at once");
  WEFT_TRY_STATUS(check_command(*assignment_, command, granted_, turns_.settled()));
  if (is_of_agreement(command)) {
    WEFT_TRY_STATUS(turns_.on_command(command, completed_, given_.step));
    take_reports_of_agreement();
  }
  last_sequence_ = command.sequence;
  committed_ = std::max(committed_, command.committed);
  settled_ = std::max(settled_, command.settled);
  keep_from_ = std::max(keep_from_, command.keep_from);
  for (const Arrivals::Range& range : data_of_command(*assignment_, command, granted_))
    arrivals_.expect(range);
  if (command.kind == CommandKind::Advance) granted_ = command.step;
  if (!is_elsewhere(*assignment_, command) && !is_of_agreement(command)) commands_.push_back(command);
  return {};
}

bool TrainScript::refuse_not_finite(uint32_t replica, uint64_t steps_before) {
  const bool refused = turns_.refuse_not_finite(replica, steps_before, completed_);
  take_reports_of_agreement();
  return refused;
}

void TrainScript::take_reports_of_agreement() {
  for (proto::Message& report : turns_.take_reports()) reports_.push_back(std::move(report));
}

Status TrainScript::on_norm(const proto::GradientNorm& norm) {
  if (norm.step <= completed_) return {};
  if (norm.step > granted_ || norm.step > completed_ + Arrivals::kStepsAhead)
    return refuse_script("a gradient norm of a step that is not under way");
  if (norm.skip && !assignment_->training.skips_diverged() && !is_empty_step(*assignment_, norm.step))
    return refuse_script("a step to be skipped of a job that skips none");
  decisions_[norm.step] = {norm.norm, norm.skip};
  return {};
}

// ---- tasks

std::optional<Task> TrainScript::next_segment(ProgramKind kind, uint64_t step, uint32_t first,
                                              uint32_t count) {
  const uint32_t segments = find_program(*assignment_, kind)->segment_count;
  if (given_.microbatches.empty()) given_.microbatches.assign(segments, 0);
  const auto choice = plan::next_task(
      given_.microbatches,
      [&](uint32_t segment, uint32_t microbatch) {
        return arrivals_.are_there({kind, step, first + microbatch}, segment);
      },
      count, std::max(1u, assignment_->microbatches_in_flight));
  if (!choice) return std::nullopt;
  ++given_.microbatches[choice->segment];
  return Task{.kind = TaskKind::Segment,
              .key = {kind, step, first + choice->microbatch},
              .segment = choice->segment,
              .first_segment = choice->segment == 0,
              .last_segment = choice->segment + 1 == segments};
}

// One that is given lacks nothing to be done, for what comes before is.
bool TrainScript::has_idle_step() const {
  return completed_ < given_.step && is_idle_step(*assignment_, completed_ + 1);
}

std::optional<Task> TrainScript::next_of_step(uint64_t last) {
  while (!given_.updated && given_.step < last && is_idle_step(*assignment_, given_.step + 1))
    given_.end_step();
  if (given_.step == last) return std::nullopt;
  const uint64_t step = given_.step + 1;
  if (!given_.updated && step_of_run(*assignment_, step)) {
    const auto [first, count] = microbatches_of(*assignment_);
    if (given_.microbatches.empty() || given_.microbatches.back() < count)
      return next_segment(ProgramKind::Train, step, first, count);
    if (sums_.are_due(step, /*updated=*/false)) return sums_.next(step);
    auto task = next_update(step);
    if (!task || task->kind != TaskKind::Update) return task;
    given_.skipped += task->skip;
    given_.updated = true;
    if (!ends_round(*assignment_, step) && !sums_.end_step()) given_.end_step();
    return task;
  }
  auto task = sums_.are_due(step, given_.updated) ? sums_.next(step) : turns_.next(step, granted_);
  if (task && task->ends_round) given_.end_step();  // also of a replica that makes no step of its own
  return task;
}

// Its squares first, where all stages decide about it together.
std::optional<Task> TrainScript::next_update(uint64_t step) {
  Task update{
      .kind = TaskKind::Update, .key = {ProgramKind::Train, step, 0}, .skipped_steps = given_.skipped};
  if (!assignment_->training.decides_together()) {
    update.with_squares = true;
    update.skip = is_empty_step(*assignment_, step);
    return update;
  }
  if (!std::exchange(given_.squares, true))
    return Task{.kind = TaskKind::Squares, .key = {ProgramKind::Train, step, 0}};
  const auto decision = decisions_.find(step);
  if (decision == decisions_.end()) return std::nullopt;
  update.norm = decision->second.norm;
  update.skip = decision->second.skip;
  return update;
}

std::optional<Task> TrainScript::next_of_forward(const Command& command) {
  return next_segment(program_of(command), command.step, command.first_microbatch, command.microbatches);
}

// Pass by pass, each to its end: what gradients add up to is asked in between.
std::optional<Task> TrainScript::next_of_comparison(const Command& command) {
  const uint32_t pass = proto::kComparisonMicrobatch + given_.passes;
  if (given_.microbatches.empty() || given_.microbatches.back() == 0)
    return next_segment(ProgramKind::Train, command.step + 1, pass, 1);
  given_.microbatches.clear();
  ++given_.passes;
  return Task{.kind = TaskKind::Squares, .key = {ProgramKind::Train, command.step + 1, pass}};
}

// Nothing while its next task lacks something. `all_given`: it has no more of them.
std::optional<Task> TrainScript::next_of(const Command& command, bool& all_given) {
  std::optional<Task> task;
  switch (command.kind) {
    case CommandKind::Advance:
      task = next_of_step(command.step);
      all_given = given_.step == command.step;
      break;
    case CommandKind::Checkpoint:
    case CommandKind::CopyState:
      all_given = true;
      if (!makes_copy(*assignment_, command)) break;
      task = snapshot_of(command, given_.skipped);
      break;
    case CommandKind::Evaluate:
    case CommandKind::Predict:
      task = next_of_forward(command);
      all_given = given_.microbatches.back() == command.microbatches;
      if (all_given) given_.microbatches.clear();
      break;
    case CommandKind::Compare:
      task = next_of_comparison(command);
      all_given = given_.passes == proto::kComparisonPasses;
      if (all_given) given_.passes = 0;
      break;
    case CommandKind::CheckMean:
      all_given = true;
      task = show(command);
      break;
    case CommandKind::Finish:
    case CommandKind::LeaveOut:  // carried out when they came
    case CommandKind::Settle:
      all_given = true;
      break;
  }
  return task;
}

bool TrainScript::copies_next() const {
  return given_.command < commands_.size() && makes_copy(*assignment_, commands_[given_.command]);
}

std::optional<Task> TrainScript::next_task(Instant now, bool may_copy) {
  if (!commands_.empty() && commands_.front().kind == CommandKind::Advance && !tally_.has_begun())
    tally_.begin(now);
  const uint32_t ahead = segments_.usual > options_.tasks_ahead_up_to ? 1 : options_.tasks_ahead;
  // Others wait for it, whatever this stage waits for.
  if (auto task = tasks_.size() < ahead ? turns_.next_of_before() : std::nullopt) {
    tally_.pause_wait(now);
    if (tasks_.empty()) running_since_ = now;
    tasks_.push_back(*task);
    return task;
  }
  while (tasks_.size() < ahead && given_.command < commands_.size()) {
    const Command& command = commands_[given_.command];
    if (makes_copy(*assignment_, command) && !may_copy) return std::nullopt;
    bool all_given = false;
    auto task = next_of(command, all_given);
    if (has_idle_step()) finish_step(now, {});
    if (task) {
      task->sequence = command.sequence;
      task->durable = command.kind != CommandKind::CopyState;
      if (tasks_.empty()) running_since_ = now;
      // Compute was idle until the last input came: that is whom it waited for, however many were missing.
      tally_.end_wait(now, last_to_come(*task, {arrivals_, agreements_, sums_}));
      tasks_.push_back(*task);
    }
    if (!task && !all_given && tasks_.empty()) tally_.begin_wait(now);
    if (all_given) ++given_.command;
    drop_carried_out();
    if (task || !all_given) return task;
  }
  return std::nullopt;
}

// Commands whose tasks are all done, where no task's end says so.
void TrainScript::drop_carried_out() {
  const auto is_carried_out = [&](const Command& command) {
    return command.kind == CommandKind::Finish || (copies(command) && !makes_copy(*assignment_, command)) ||
           (command.kind == CommandKind::Advance && completed_ >= command.step);
  };
  while (given_.command > 0 && is_carried_out(commands_.front())) pop_command();
}

void TrainScript::pop_command() {
  WEFT_CHECK(given_.command > 0);
  commands_.pop_front();
  --given_.command;
}

size_t TrainScript::snapshots_ahead() const {
  return static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(),
                                           [](const Task& task) { return task.kind == TaskKind::Snapshot; }));
}

std::optional<proto::StageWork> TrainScript::work(Instant now) const {
  if (find_program(*assignment_, ProgramKind::Train) == nullptr) return std::nullopt;
  const bool trains = !tasks_.empty() && tasks_.front().kind == TaskKind::Segment &&
                      tasks_.front().key.program == ProgramKind::Train;
  const Duration busy = segments_.busy + (trains ? now - running_since_ : Duration{});
  return proto::StageWork{assignment_->run, assignment_->plan_version, segments_.done, seconds(busy)};
}

// ---- what tasks came to

void TrainScript::on_task_done(Instant now, const Task& task, const TaskOutcome& outcome) {
  WEFT_CHECK(!tasks_.empty() && tasks_.front().kind == task.kind && tasks_.front().key == task.key);
  tasks_.pop_front();
  running_since_ = now;
  tally_.add_busy(outcome.busy);
  switch (task.kind) {
    case TaskKind::Segment:
      on_segment_done(task, outcome);
      break;
    case TaskKind::Squares:
      on_squares_done(task, outcome);
      break;
    case TaskKind::Update:
      if (ends_round(*assignment_, task.key.step) || sums_.end_step())
        updated_ = outcome;
      else
        finish_step(now, outcome);
      break;
    case TaskKind::Gather:
      sums_.finish(task.key.step);
      if (task.ends_round) finish_step(now, std::exchange(updated_, {}));
      break;
    case TaskKind::Mean:
    case TaskKind::Weigh:
      turns_.on_guarded(task.key.step, outcome);
      take_reports_of_agreement();
      break;
    case TaskKind::Agree:
      agreements_.finish(task.key.step);
      if (outcome.owed) owed_.push_back(*outcome.owed);
      [[fallthrough]];
    case TaskKind::Differ:
      if (task.ends_round) finish_step(now, std::exchange(updated_, {}));
      break;
    case TaskKind::Show:
      reports_.push_back(piece_of(*assignment_, task, outcome));
      pop_command();
      break;
    case TaskKind::Snapshot:
      pop_command();  // its upload goes on beside the next steps
      break;
    case TaskKind::Reduce:  // the sums that it makes are sent
    case TaskKind::Pass:    // of a stage that serves, which has another script
    case TaskKind::Begin:
      break;
  }
  drop_carried_out();
}

// And those without a task that come next.
void TrainScript::finish_step(Instant now, TaskOutcome update) {
  do {
    reports_.push_back(tally_.finish(++completed_, std::exchange(update, {}), std::exchange(owed_, {}), now));
    decisions_.erase(completed_);
  } while (has_idle_step());
}

void TrainScript::on_segment_done(const Task& task, const TaskOutcome& outcome) {
  segments_.usual = segments_.usual == Duration{} ? outcome.busy : (7 * segments_.usual + outcome.busy) / 8;
  const bool trains = task.key.program == ProgramKind::Train;
  if (proto::is_comparison(task.key.microbatch)) {
    passes_.add_comparison(outcome);
  } else if (trains) {
    ++segments_.done;
    segments_.busy += outcome.busy;
    tally_.add_losses(outcome.loss);
  } else {
    passes_.add_forward(outcome);
  }
  if (!task.last_segment) return;
  finish_microbatch(task.key);
  if (!trains && passes_.end_microbatch() == commands_.front().microbatches) finish_forward();
}

void TrainScript::on_squares_done(const Task& task, const TaskOutcome& outcome) {
  if (!proto::is_comparison(task.key.microbatch))
    return reports_.push_back(tally_.squares_report(task.key.step, outcome));
  if (passes_.end_pass(outcome)) finish_comparison();
}

void TrainScript::finish_microbatch(const MicrobatchKey& key) {
  const auto position = arrivals_.finish(key);
  if (position && key.program == ProgramKind::Train && !proto::is_comparison(key.microbatch))
    tally_.add_sample_position(*position);
}

void TrainScript::finish_forward() {
  const Command command = commands_.front();
  pop_command();
  if (auto report = passes_.finish_forward(command)) reports_.push_back(std::move(*report));
  if (command.kind == CommandKind::Evaluate) tally_.interrupt();
}

void TrainScript::finish_comparison() {
  reports_.push_back(passes_.finish_comparison(commands_.front()));
  pop_command();
  tally_.interrupt();
}

}  // namespace weft::peer
