#include "peer/machine/stage.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "plan/schedule.h"

namespace weft::peer {

using proto::Command;
using proto::CommandKind;
using proto::ProgramKind;

namespace {
tl::unexpected<Error> refuse(const std::string& what) { return fail(ErrorCode::InvalidArgument, what); }

void append(const std::vector<double>& from, std::vector<double>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

bool are_finite(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double number) { return std::isfinite(number); });
}

}  // namespace

StageMachine::StageMachine(std::shared_ptr<const proto::AssignStage> assignment, Options options)
    : assignment_(std::move(assignment)),
      options_(options),
      completed_(assignment_->after_step),
      granted_(completed_),
      at_step_(completed_),
      skipped_given_(assignment_->skipped_steps) {
  uint64_t largest = 0;
  for (const proto::StageProgram& stage : assignment_->programs) {
    Program& program = programs_[stage.kind];
    program.stage = &stage;
    program.edges_of_segment.resize(stage.segment_count);
    const auto segment_of = [&](dag::ValueId value) {
      return stage.segment_of_op[stage.graph->value(value).producer.index];
    };
    for (uint32_t r = 0; r < stage.receives.size(); ++r) {
      program.edges_of_segment[segment_of(stage.receives[r].value)].push_back(r);
      program.receive_of_edge[stage.receives[r].edge] = r;
    }
    for (const dag::ValueId input : stage.graph->inputs()) {
      const std::string& name = stage.graph->value(input).name;
      if (std::find(stage.data_inputs.begin(), stage.data_inputs.end(), name) == stage.data_inputs.end())
        continue;
      const uint32_t segment = segment_of(input);
      program.data_segment = std::min(program.data_segment.value_or(segment), segment);
      program.data_bytes += static_cast<uint64_t>(stage.graph->spec(input).bytes().value);
    }
    largest = std::max(largest, program.data_bytes);
  }
  const auto many = static_cast<uint32_t>(std::min<uint64_t>(
      options.prefetch_bytes / std::max<uint64_t>(largest, 1), options.prefetch_microbatches_max));
  prefetch_ = std::max(options.prefetch_microbatches, many);
}

const StageMachine::Program* StageMachine::program(ProgramKind kind) const {
  const auto at = programs_.find(kind);
  return at == programs_.end() ? nullptr : &at->second;
}

uint32_t StageMachine::microbatches() const {
  return assignment_->training.batch_size / assignment_->training.microbatch_size;
}

Status StageMachine::check(const Command& command) const {
  const auto needs = [&](ProgramKind kind) -> Status {
    if (program(kind) == nullptr) return refuse("a command for a program that was not assigned");
    return {};
  };
  switch (command.kind) {
    case CommandKind::Advance:
      WEFT_TRY_STATUS(needs(ProgramKind::Train));
      if (command.step <= granted_ || command.step > assignment_->training.steps)
        return refuse("a grant up to step " + std::to_string(command.step) + " after " +
                      std::to_string(granted_));
      break;
    case CommandKind::Checkpoint:
    case CommandKind::Replicate:
      WEFT_TRY_STATUS(needs(ProgramKind::Train));
      if (command.step != granted_) return refuse("a snapshot of a step that is not the last one granted");
      break;
    case CommandKind::Evaluate:
    case CommandKind::Predict:
      if (command.microbatches == 0 || command.microbatches > 4096 ||
          command.first_microbatch > UINT32_MAX - command.microbatches)
        return refuse("a forward pass over no or too many microbatches");
      if (command.kind == CommandKind::Evaluate && command.step != granted_)
        return refuse("an evaluation after a step that is not the last one granted");
      break;
    case CommandKind::Compare:
      WEFT_TRY_STATUS(needs(ProgramKind::Train));
      if (command.step != granted_ || command.step >= assignment_->training.steps)
        return refuse("a comparison on a step that does not follow the last one granted");
      if (microbatches() < 2) return refuse("a comparison where a step has one microbatch");
      break;
    case CommandKind::Finish:
      break;
  }
  return {};
}

Status StageMachine::on_command(const Command& command) {
  if (command.sequence == 0) return refuse("a command without a sequence number");
  if (command.sequence > last_sequence_ + 1)
    return refuse("command " + std::to_string(command.sequence) + " after " + std::to_string(last_sequence_));
  if (command.sequence <= last_sequence_) return {};
  if (commands_.size() >= kCommandsMax) return refuse("too many commands at once");
  WEFT_TRY_STATUS(check(command));
  last_sequence_ = command.sequence;
  committed_ = std::max(committed_, command.committed);
  settled_ = std::max(settled_, command.settled);
  keep_from_ = std::max(keep_from_, command.keep_from);
  if (command.kind == CommandKind::Advance) {
    if (program(ProgramKind::Train)->data_segment)
      data_ranges_.push_back({.next = {ProgramKind::Train, granted_ + 1, 0},
                              .last_step = command.step,
                              .first_microbatch = 0,
                              .end_microbatch = microbatches()});
    granted_ = command.step;
  } else if (command.kind == CommandKind::Compare) {
    if (program(ProgramKind::Train)->data_segment)
      data_ranges_.push_back({.next = {ProgramKind::Train, command.step + 1, proto::kComparisonMicrobatch},
                              .last_step = command.step + 1,
                              .first_microbatch = proto::kComparisonMicrobatch,
                              .end_microbatch = proto::kComparisonMicrobatch + proto::kComparisonPasses});
  } else if (command.kind == CommandKind::Evaluate || command.kind == CommandKind::Predict) {
    const ProgramKind kind =
        command.kind == CommandKind::Evaluate ? ProgramKind::Evaluate : ProgramKind::Predict;
    const Program* forward = program(kind);
    if (forward == nullptr) return {};  // none of its ops are here
    if (forward->data_segment)
      data_ranges_.push_back({.next = {kind, command.step, command.first_microbatch},
                              .last_step = command.step,
                              .first_microbatch = command.first_microbatch,
                              .end_microbatch = command.first_microbatch + command.microbatches});
  }
  commands_.push_back(command);
  return {};
}

Status StageMachine::on_norm(const proto::GradientNorm& norm) {
  if (norm.step <= completed_) return {};
  if (norm.step > granted_ || norm.step > completed_ + kStepsAhead)
    return refuse("a gradient norm of a step that is not under way");
  if (norm.skip && !assignment_->training.skips_diverged() && !assignment_->training.is_empty(norm.step))
    return refuse("a step to be skipped of a job that skips none");
  decisions_[norm.step] = {norm.norm, norm.skip};
  return {};
}

Status StageMachine::on_tensor(const plan::Seat& from, const proto::TensorHeader& header) {
  const auto wrong = [&](const std::string& what) {
    return refuse("edge " + std::to_string(header.edge) + ", step " + std::to_string(header.step) +
                  ", microbatch " + std::to_string(header.microbatch) + ": " + what);
  };
  const Program* in = program(header.program);
  if (in == nullptr) return wrong("its program was not assigned");
  const auto edge = in->receive_of_edge.find(header.edge);
  if (edge == in->receive_of_edge.end()) return wrong("no such edge comes here");
  const proto::EdgeEnd& end = in->stage->receives[edge->second];
  if (other_end(end, header.microbatch) != from) return wrong("it belongs to another stage");
  if (!(in->stage->graph->spec(end.value) == header.spec))
    return wrong("it is " + dag::to_string(header.spec) + ", expected " +
                 dag::to_string(in->stage->graph->spec(end.value)));
  if (!proto::may_come_as(header.codec, end.codec))
    return wrong("it comes as " + compress::name(header.codec) + ", expected " + compress::name(end.codec));
  if (header.program == ProgramKind::Train) {
    if (header.step <= completed_ || header.step > completed_ + kStepsAhead)
      return wrong("it is not its time");
    if (header.microbatch >= microbatches() && !proto::is_comparison(header.microbatch))
      return wrong("there is no such microbatch");
  }
  if (arrived_.size() > kStepsAhead * microbatches() + 4096) return wrong("too many tensors wait here");
  if (!arrived_[{header.program, header.step, header.microbatch}]
           .try_emplace(edge->second, arrivals_ + 1)
           .second)
    return wrong("it came twice");
  ++arrivals_;
  return {};
}

Status StageMachine::on_data(const MicrobatchKey& key, uint64_t sample_position) {
  data_[key] = {sample_position, ++arrivals_};
  return {};
}

bool StageMachine::inputs_are_there(const Program& in, const MicrobatchKey& key, uint32_t segment) const {
  if (in.data_segment && segment >= *in.data_segment && !data_.contains(key)) return false;
  const std::vector<uint32_t>& needed = in.edges_of_segment[segment];
  if (needed.empty()) return true;
  const auto there = arrived_.find(key);
  return there != arrived_.end() &&
         std::all_of(needed.begin(), needed.end(), [&](uint32_t r) { return there->second.contains(r); });
}

// The seat whose tensor was the last of the task's inputs; nothing when that was data, or there are none.
std::optional<plan::Seat> StageMachine::last_to_come(const Task& task) const {
  if (task.kind != TaskKind::Segment) return std::nullopt;
  const Program& in = *program(task.key.program);
  uint64_t last = 0;
  if (const auto data = data_.find(task.key); data != data_.end() && in.data_segment == task.segment)
    last = data->second.arrival;
  std::optional<plan::Seat> seat;
  for (const uint32_t r : in.edges_of_segment[task.segment]) {
    const uint64_t arrival = arrived_.at(task.key).at(r);
    if (arrival > last) last = arrival, seat = other_end(in.stage->receives[r], task.key.microbatch);
  }
  return seat;
}

// Compute was idle until the last input came: that is whom it waited for, however many were missing.
void StageMachine::end_wait(Instant now, const Task& task) {
  if (!waits_since_) return;
  if (const auto seat = last_to_come(task)) waited_[*seat] += now - *waits_since_;
  waits_since_.reset();
}

std::optional<Task> StageMachine::next_segment(ProgramKind kind, uint64_t step, uint32_t first,
                                               uint32_t count) {
  const Program& in = *program(kind);
  if (microbatches_given_.empty()) microbatches_given_.assign(in.stage->segment_count, 0);
  const auto choice = plan::next_task(
      microbatches_given_,
      [&](uint32_t segment, uint32_t microbatch) {
        return inputs_are_there(in, {kind, step, first + microbatch}, segment);
      },
      count, std::max(1u, assignment_->microbatches_in_flight));
  if (!choice) return std::nullopt;
  ++microbatches_given_[choice->segment];
  return Task{.kind = TaskKind::Segment,
              .key = {kind, step, first + choice->microbatch},
              .segment = choice->segment,
              .first_segment = choice->segment == 0,
              .last_segment = choice->segment + 1 == in.stage->segment_count};
}

std::optional<Task> StageMachine::next_of_step() {
  const uint64_t step = at_step_ + 1;
  if (microbatches_given_.empty() || microbatches_given_.back() < microbatches())
    return next_segment(ProgramKind::Train, step, 0, microbatches());
  Task update{
      .kind = TaskKind::Update, .key = {ProgramKind::Train, step, 0}, .skipped_steps = skipped_given_};
  if (!assignment_->training.decides_together()) {
    update.with_squares = true;
    update.skip = assignment_->training.is_empty(step);
    skipped_given_ += update.skip;
  } else {
    if (!std::exchange(squares_given_, true))
      return Task{.kind = TaskKind::Squares, .key = {ProgramKind::Train, step, 0}};
    const auto decision = decisions_.find(step);
    if (decision == decisions_.end()) return std::nullopt;
    update.norm = decision->second.norm;
    update.skip = decision->second.skip;
    skipped_given_ += update.skip;
  }
  ++at_step_;
  microbatches_given_.clear();
  squares_given_ = false;
  return update;
}

std::optional<Task> StageMachine::next_of_forward(const Command& command) {
  const ProgramKind kind =
      command.kind == CommandKind::Evaluate ? ProgramKind::Evaluate : ProgramKind::Predict;
  return next_segment(kind, command.step, command.first_microbatch, command.microbatches);
}

// Pass by pass, each to its end: what gradients add up to is asked in between.
std::optional<Task> StageMachine::next_of_comparison(const Command& command) {
  const uint32_t pass = proto::kComparisonMicrobatch + passes_given_;
  if (microbatches_given_.empty() || microbatches_given_.back() == 0)
    return next_segment(ProgramKind::Train, command.step + 1, pass, 1);
  microbatches_given_.clear();
  ++passes_given_;
  return Task{.kind = TaskKind::Squares, .key = {ProgramKind::Train, command.step + 1, pass}};
}

// Nothing while its next task lacks something. `all_given`: it has no more of them.
std::optional<Task> StageMachine::next_of(const Command& command, bool& all_given) {
  switch (command.kind) {
    case CommandKind::Advance: {
      const auto task = next_of_step();
      all_given = at_step_ == command.step;
      return task;
    }
    case CommandKind::Checkpoint:
    case CommandKind::Replicate:
      all_given = true;
      return Task{.kind = TaskKind::Snapshot,
                  .key = {ProgramKind::Train, command.step, 0},
                  .skipped_steps = skipped_given_,
                  .direct = command.direct};
    case CommandKind::Evaluate:
    case CommandKind::Predict: {
      const auto task = next_of_forward(command);
      all_given = microbatches_given_.back() == command.microbatches;
      if (all_given) microbatches_given_.clear();
      return task;
    }
    case CommandKind::Compare: {
      const auto task = next_of_comparison(command);
      all_given = passes_given_ == proto::kComparisonPasses;
      if (all_given) passes_given_ = 0;
      return task;
    }
    case CommandKind::Finish:
      break;
  }
  all_given = true;
  return std::nullopt;
}

static bool copies(const Command& command) {
  return command.kind == CommandKind::Checkpoint || command.kind == CommandKind::Replicate;
}

bool StageMachine::copies_next() const {
  return at_command_ < commands_.size() && copies(commands_[at_command_]);
}

std::optional<Task> StageMachine::next_task(Instant now, bool may_copy) {
  if (!commands_.empty() && commands_.front().kind == CommandKind::Advance && step_began_ == Instant{})
    begin_step(now);
  const uint32_t ahead = segment_usual_ > options_.tasks_ahead_up_to ? 1 : options_.tasks_ahead;
  while (tasks_.size() < ahead && at_command_ < commands_.size()) {
    const Command& command = commands_[at_command_];
    if (copies(command) && !may_copy) return std::nullopt;
    bool all_given = false;
    auto task = next_of(command, all_given);
    if (task) {
      task->sequence = command.sequence;
      task->durable = command.kind != CommandKind::Replicate;
      if (tasks_.empty()) running_since_ = now;
      end_wait(now, *task);
      tasks_.push_back(*task);
    }
    if (!task && !all_given && tasks_.empty() && !waits_since_) waits_since_ = now;
    if (all_given) ++at_command_;
    drop_carried_out();
    if (task || !all_given) return task;
  }
  return std::nullopt;
}

// Commands whose tasks are all done, where no task's end says so.
void StageMachine::drop_carried_out() {
  const auto is_carried_out = [&](const Command& command) {
    return command.kind == CommandKind::Finish ||
           (command.kind == CommandKind::Advance && completed_ >= command.step);
  };
  while (at_command_ > 0 && is_carried_out(commands_.front())) pop_command();
}

void StageMachine::pop_command() {
  WEFT_CHECK(at_command_ > 0);
  commands_.pop_front();
  --at_command_;
}

size_t StageMachine::snapshots_ahead() const {
  return static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(),
                                           [](const Task& task) { return task.kind == TaskKind::Snapshot; }));
}

std::optional<proto::StageWork> StageMachine::work(Instant now) const {
  if (program(ProgramKind::Train) == nullptr) return std::nullopt;
  proto::StageWork work{.run = assignment_->run,
                        .plan_version = assignment_->plan_version,
                        .segments_done = segments_done_,
                        .seconds_busy = seconds(segments_busy_)};
  if (!tasks_.empty() && tasks_.front().kind == TaskKind::Segment &&
      tasks_.front().key.program == ProgramKind::Train)
    work.seconds_busy += seconds(now - running_since_);
  return work;
}

void StageMachine::finish_microbatch(const MicrobatchKey& key) {
  arrived_.erase(key);
  if (const auto data = data_.find(key); data != data_.end()) {
    if (key.program == ProgramKind::Train && !proto::is_comparison(key.microbatch))
      sample_positions_.push_back(data->second.sample_position);
    data_.erase(data);
    --data_outstanding_;
  }
  finished_.push_back(key);
}

void StageMachine::on_task_done(Instant now, const Task& task, const TaskOutcome& outcome) {
  WEFT_CHECK(!tasks_.empty() && tasks_.front().kind == task.kind && tasks_.front().key == task.key);
  tasks_.pop_front();
  running_since_ = now;
  busy_ += outcome.busy;
  switch (task.kind) {
    case TaskKind::Segment: {
      segment_usual_ = segment_usual_ == Duration{} ? outcome.busy : (7 * segment_usual_ + outcome.busy) / 8;
      if (proto::is_comparison(task.key.microbatch)) {
        append(outcome.loss, comparison_.losses);
      } else if (task.key.program == ProgramKind::Train) {
        ++segments_done_;
        segments_busy_ += outcome.busy;
        append(outcome.loss, losses_);
      } else {
        append(outcome.loss, evaluation_.loss);
        append(outcome.correct, evaluation_.correct);
        append(outcome.counted, evaluation_.counted);
      }
      if (task.last_segment) finish_microbatch(task.key);
      if (task.key.program != ProgramKind::Train && task.last_segment &&
          ++forward_done_ == commands_.front().microbatches)
        finish_forward();
      break;
    }
    case TaskKind::Squares:
      if (proto::is_comparison(task.key.microbatch)) {
        double sum = 0;
        for (const double square : outcome.squares) sum += square;
        comparison_.squares.push_back(sum);
        if (comparison_.squares.size() == proto::kComparisonPasses) finish_comparison();
        break;
      }
      squares_done_ = true;
      reports_.push_back(proto::StepReport{.run = assignment_->run,
                                           .plan_version = assignment_->plan_version,
                                           .step = task.key.step,
                                           .losses = losses_,
                                           .squares = outcome.squares,
                                           .sample_positions = sample_positions_,
                                           .statistics_diverged = !are_finite(outcome.statistics)});
      break;
    case TaskKind::Update:
      squares_ = outcome.squares;
      statistics_diverged_ = !are_finite(outcome.statistics);
      finish_step(now);
      break;
    case TaskKind::Snapshot:
      pop_command();  // its upload goes on beside the next steps
      break;
  }
  drop_carried_out();
}

// What was computed and waited for before, in a snapshot or an evaluation, is no part of it.
void StageMachine::begin_step(Instant now) {
  step_began_ = now;
  busy_ = {};
  waited_.clear();
}

void StageMachine::finish_step(Instant now) {
  ++completed_;
  proto::StepReport report{
      .run = assignment_->run, .plan_version = assignment_->plan_version, .step = completed_};
  report.updated = true;
  report.squares = std::move(squares_);
  report.statistics_diverged = statistics_diverged_;
  if (!squares_done_) report.losses = losses_;
  report.sample_positions = std::exchange(sample_positions_, {});
  report.seconds_busy = seconds(busy_);
  report.seconds = seconds(now - step_began_);
  for (const auto& [seat, waited] : waited_)
    report.links.push_back({.seat = seat, .bytes_sent = 0, .seconds_waiting = seconds(waited)});
  reports_.push_back(std::move(report));
  begin_step(now);
  losses_.clear();
  squares_.clear();
  squares_done_ = false;
  decisions_.erase(completed_);
}

void StageMachine::finish_forward() {
  const Command command = commands_.front();
  pop_command();
  forward_done_ = 0;
  if (command.kind != CommandKind::Evaluate) return;
  evaluation_.run = assignment_->run;
  evaluation_.plan_version = assignment_->plan_version;
  evaluation_.step = command.step;
  evaluation_.first_microbatch = command.first_microbatch;
  if (!evaluation_.loss.empty() || !evaluation_.correct.empty() || !evaluation_.counted.empty())
    reports_.push_back(std::move(evaluation_));
  evaluation_ = {};
  step_began_ = Instant{};
}

void StageMachine::finish_comparison() {
  comparison_.run = assignment_->run;
  comparison_.plan_version = assignment_->plan_version;
  comparison_.step = commands_.front().step;
  pop_command();
  reports_.push_back(std::exchange(comparison_, {}));
  step_began_ = Instant{};
}

std::vector<MicrobatchKey> StageMachine::fetches() {
  std::vector<MicrobatchKey> wanted;
  const uint32_t limit = assignment_->microbatches_in_flight + prefetch_;
  while (!data_ranges_.empty() && data_outstanding_ < limit) {
    DataRange& range = data_ranges_.front();
    wanted.push_back(range.next);
    ++data_outstanding_;
    if (++range.next.microbatch < range.end_microbatch) continue;
    range.next.microbatch = range.first_microbatch;
    if (++range.next.step > range.last_step) data_ranges_.pop_front();
  }
  return wanted;
}

std::vector<proto::Message> StageMachine::take_reports() { return std::exchange(reports_, {}); }
std::vector<MicrobatchKey> StageMachine::take_finished() { return std::exchange(finished_, {}); }

}  // namespace weft::peer
