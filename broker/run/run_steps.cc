#include "broker/run/run_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace weft::broker {

namespace {

// What cannot be learnt from; an infinite loss alone says that its gradient is none.
std::optional<std::string> not_finite(const proto::StepReport& report) {
  const auto is_not = [](double value) { return !std::isfinite(value); };
  if (const auto at = std::find_if(report.losses.begin(), report.losses.end(), is_not);
      at != report.losses.end())
    return "the loss of microbatch " + std::to_string(at - report.losses.begin()) + " is " +
           (std::isnan(*at) ? "nan" : std::to_string(*at));
  if (std::any_of(report.squares.begin(), report.squares.end(), is_not)) return "a gradient is not";
  if (report.statistics_diverged) return "a running statistic is not";
  return std::nullopt;
}

}  // namespace

Steps::Steps(std::shared_ptr<const PlannedRun> plan, uint64_t after_step, uint64_t recorded)
    : plan_(std::move(plan)), granted_(after_step), committed_(after_step), recorded_(recorded) {
  for (const PlannedStage& stage : plan_->stages) {
    proto::StageStatus& status = stages_.emplace_back();
    status.seat = stage.assignment->seat;
    status.peer = stage.peer;
    status.step = after_step;
  }
}

void Steps::resume(uint64_t granted, uint64_t committed) {
  granted_ = std::max(granted_, granted);
  committed_ = std::max(committed_, committed);
  for (proto::StageStatus& stage : stages_) stage.step = committed_;
}

void Steps::grant(Instant now, uint64_t step) {
  granted_ = step;
  granted_at_[step] = now;
}

// ---- what stages say

Status Steps::take_squares(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                           InProgress& step) const {
  const std::vector<uint32_t>& parameters = plan_->stages[stage].parameters;
  if (report.squares.size() != parameters.size())
    return fail(ErrorCode::InvalidArgument, "it has " + std::to_string(report.squares.size()) +
                                                " squares for " + std::to_string(parameters.size()) +
                                                " parameters");
  WEFT_TRY_STATUS(claims.check_losses(report, plan_->microbatches));
  if (!report.losses.empty()) step.losses = report.losses;
  for (size_t p = 0; p < parameters.size(); ++p) step.squares[parameters[p]] = report.squares[p];
  step.squares_in[stage] = true;
  return {};
}

// Each microbatch was made of the samples that are its turn: each sample of the endless sequence counts once.
Status Steps::check_ledger(uint32_t stage, const proto::StepReport& report, InProgress& step) const {
  const auto& positions = report.sample_positions;
  if (!positions.empty()) {
    if (positions.size() != plan_->microbatches)
      return fail(ErrorCode::InvalidArgument, "it names the samples of " + std::to_string(positions.size()) +
                                                  " microbatches of " + std::to_string(plan_->microbatches));
    const dag::TrainingSpec& training = plan_->training;
    for (uint32_t m = 0; m < positions.size(); ++m) {
      const uint64_t expected =
          (report.step - 1) * training.batch_size + uint64_t{m} * training.microbatch_size;
      if (positions[m] != expected)
        return fail(ErrorCode::InvalidArgument, "microbatch " + std::to_string(m) + " began with sample " +
                                                    std::to_string(positions[m]) +
                                                    " of the sequence, not with " + std::to_string(expected));
    }
    step.positions_in[stage] = true;
  }
  if (!report.updated || step.positions_in[stage]) return {};
  for (const proto::StageProgram& program : plan_->stages[stage].assignment->programs)
    if (program.kind == proto::ProgramKind::Train && !program.data_inputs.empty())
      return fail(ErrorCode::InvalidArgument, "it does not say which samples it read");
  return {};
}

void Steps::decide(uint64_t number, InProgress& step, Heard& heard) const {
  double sum = 0, losses = 0;
  for (const double square : step.squares) sum += square;  // in parameter order, at this one place
  for (const double loss : step.losses) losses += loss;
  step.norm = std::sqrt(sum) / plan_->microbatches;
  const bool is_finite = std::isfinite(step.norm) && std::isfinite(losses) && !step.statistics_diverged;
  step.skip = plan_->training.is_empty(number) || (plan_->training.skips_diverged() && !is_finite);
  step.is_decided = true;
  if (!plan_->training.decides_together()) return;
  heard.decision = Decision{number, step.norm, step.skip};
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (!step.updated[s]) heard.tell.push_back(s);
}

Steps::InProgress& Steps::in_progress(uint64_t step) {
  InProgress& at = steps_[step];
  if (at.updated.empty()) {
    at.updated.assign(stages_.size(), false);
    at.squares_in = at.positions_in = at.updated;
    at.squares.assign(plan_->parameter_count, 0.0);
  }
  return at;
}

// The first time that a stage says what came out.
Status Steps::hear_numbers(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                           InProgress& step, Heard& heard) const {
  WEFT_TRY_STATUS(take_squares(stage, claims, report, step));
  // Before it is decided, and before any snapshot with this step is whole.
  if (const auto what = not_finite(report);
      what && !plan_->training.skips_diverged() && !plan_->training.is_empty(report.step)) {
    heard.divergence = Divergence{report.step, stage,
                                  plan::to_string(plan_->stages[stage].assignment->seat) + ", step " +
                                      std::to_string(report.step) + ": " + *what};
    return {};
  }
  step.statistics_diverged |= report.statistics_diverged;
  if (all_said(step.squares_in)) decide(report.step, step, heard);
  return {};
}

Result<Steps::Heard> Steps::on_report(Instant now, uint32_t stage, const StageClaims& claims,
                                      const proto::StepReport& report, bool may_repeat) {
  proto::StageStatus& status = stages_[stage];
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "report of step " + std::to_string(report.step) + ": " + what);
  };
  Heard heard;
  if (report.step <= status.step) {
    heard.is_repeat = true;
    if (may_repeat) return heard;
    return wrong("it came before");
  }
  if (report.step != status.step + 1 || report.step > granted_) return wrong("it is not the step's turn");
  InProgress& step = in_progress(report.step);
  if (const Status ledger = check_ledger(stage, report, step); !ledger) return wrong(ledger.error().message);
  if (!step.squares_in[stage])
    if (const Status taken = hear_numbers(stage, claims, report, step, heard); !taken)
      return wrong(taken.error().message);
  if (heard.divergence || !report.updated) return heard;
  // One that came back may have had the norm from the broker before it was restarted.
  if (plan_->training.decides_together() && !step.is_decided && !may_repeat)
    return wrong("it updated before the norm was known");
  step.updated[stage] = heard.is_updated = true;
  status.step = report.step;
  status.busy = report.seconds > 0 ? std::min(1.0, report.seconds_busy / report.seconds) : 0;
  status.links = report.links;
  heard.is_whole = all_said(step.updated);
  if (heard.is_whole) heard.seconds = seconds_of(report.step, now);
  return heard;
}

// From when it could begin, so that waiting for grants does not count: a run that waits for its snapshots
// must see that they are too many.
double Steps::seconds_of(uint64_t number, Instant now) {
  const auto granted = granted_at_.lower_bound(number);
  const double took =
      granted == granted_at_.end() ? 0 : seconds(now - std::max(granted->second, last_updated_));
  last_updated_ = now;
  return std::max(took, 0.0);
}

// ---- commits

std::optional<uint64_t> Steps::next_done() const {
  if (steps_.empty()) return std::nullopt;
  const auto& [number, step] = *steps_.begin();
  return number == committed_ + 1 && all_said(step.updated) ? std::optional(number) : std::nullopt;
}

proto::JobEvent Steps::event_of(uint64_t number, const InProgress& step, double loss, double elapsed) const {
  const dag::TrainingSpec& training = plan_->training;
  proto::JobEvent event;
  event.kind = proto::JobEventKind::Step;
  event.step = number;
  event.loss = loss;
  event.learning_rate = dag::scheduled_learning_rate(training.schedule, training.optimizer.learning_rate,
                                                     number, training.steps);
  event.seconds = elapsed;
  event.samples_per_second = elapsed > 0 ? training.batch_size / elapsed : 0;
  event.gradient_norm = step.norm;
  event.samples = number * training.batch_size;
  event.skipped = step.skip;
  return event;
}

Steps::Committed Steps::commit(Instant now) {
  WEFT_CHECK(next_done().has_value());
  const uint64_t number = committed_ = steps_.begin()->first;
  const InProgress& step = steps_.begin()->second;
  double loss = 0;
  for (const double value : step.losses) loss += value;
  loss = step.skip ? std::numeric_limits<double>::quiet_NaN() : loss / plan_->microbatches;
  if (!step.skip) last_loss_ = loss;
  const bool is_empty = plan_->training.is_empty(number);  // which says nothing of divergence
  if (!is_empty) skipped_in_a_row_ = step.skip ? skipped_in_a_row_ + 1 : 0;
  const double elapsed = seconds(now - last_commit_);
  last_commit_ = now;
  // Shown to people: smoothed, because commits come in bunches.
  commit_seconds_ = commit_seconds_ == 0 ? elapsed : 0.95 * commit_seconds_ + 0.05 * elapsed;
  Committed committed{.event = event_of(number, step, loss, elapsed), .is_repeat = number <= recorded_};
  recorded_ = std::max(recorded_, number);
  steps_.erase(steps_.begin());
  granted_at_.erase(granted_at_.begin(), granted_at_.lower_bound(number));
  if (skipped_in_a_row_ == dag::kSkippedInARowMax && !is_empty)
    committed.divergence = Divergence{number, std::nullopt,
                                      "step " + std::to_string(number) + " is the " +
                                          std::to_string(skipped_in_a_row_) + "th in a row that is skipped",
                                      /*may_pass=*/false};
  return committed;
}

std::vector<Steps::Decision> Steps::decisions_for(uint32_t stage) const {
  std::vector<Decision> decisions;
  if (!plan_->training.decides_together()) return decisions;
  for (const auto& [number, step] : steps_)
    if (step.is_decided && !step.updated[stage]) decisions.push_back({number, step.norm, step.skip});
  return decisions;
}

MissingReports Steps::missing_reports() const {
  if (steps_.empty() || steps_.begin()->first != committed_ + 1) return {};
  const InProgress& step = steps_.begin()->second;
  const bool together = plan_->training.decides_together();
  return together && !step.is_decided ? missing_reports_of(step.squares_in, false)
                                      : missing_reports_of(step.updated, together);
}

Status Steps::check() const {
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Internal, "steps: " + what); };
  if (committed_ > granted_) return broken("one was committed that was not granted");
  if (plan_->training.steps != 0 && granted_ > plan_->training.steps) return broken("too many are granted");
  for (const auto& [number, step] : steps_) {
    if (number <= committed_ || number > granted_)
      return broken(std::to_string(number) + " is in progress; " + std::to_string(committed_) +
                    " are committed, " + std::to_string(granted_) + " granted");
    for (uint32_t s = 0; s < stages_.size(); ++s)
      if (step.updated[s] != (stages_[s].step >= number))
        return broken("of stage " + std::to_string(s + 1) + " it is not clear whether it has done " +
                      std::to_string(number));
    if (step.is_decided && !all_said(step.squares_in))
      return broken(std::to_string(number) + " was decided by some of its stages");
  }
  for (const proto::StageStatus& stage : stages_)
    if (stage.step < committed_ || stage.step > granted_)
      return broken("a stage has done " + std::to_string(stage.step));
  return {};
}

}  // namespace weft::broker
