#include "broker/run/run_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

// Where the stage's microbatches stand in the step.
void put_losses(const std::vector<double>& losses, const proto::MicrobatchShare& share, uint32_t microbatches,
                std::vector<double>& all) {
  if (losses.empty()) return;
  const size_t each = losses.size() / share.count;
  all.resize(each * microbatches);
  std::ranges::copy(losses, all.begin() + static_cast<ptrdiff_t>(each * share.first));
}

Status check_positions(const std::vector<uint64_t>& positions, const proto::MicrobatchShare& share,
                       const dag::TrainingSpec& training, uint64_t step) {
  if (positions.size() != share.count)
    return fail(ErrorCode::InvalidArgument, "it names the samples of " + std::to_string(positions.size()) +
                                                " microbatches of " + std::to_string(share.count));
  for (uint32_t m = 0; m < positions.size(); ++m) {
    const uint32_t microbatch = share.first + m;
    const uint64_t expected =
        (step - 1) * training.batch_size + uint64_t{microbatch} * training.microbatch_size;
    if (positions[m] != expected)
      return fail(ErrorCode::InvalidArgument, "microbatch " + std::to_string(microbatch) +
                                                  " began with sample " + std::to_string(positions[m]) +
                                                  " of the sequence, not with " + std::to_string(expected));
  }
  return {};
}

}  // namespace

Steps::Steps(std::shared_ptr<const PlannedRun> plan, uint64_t after_step, uint64_t recorded)
    : plan_(std::move(plan)),
      inner_(*plan_),
      granted_(after_step),
      committed_(after_step),
      recorded_(recorded),
      left_out_(inner_.replicas(), false),
      skipped_in_a_row_(inner_.replicas(), 0) {
  for (const PlannedStage& stage : plan_->stages) {
    replica_of_.push_back(inner_.replica_of(stage.assignment->seat));
    shares_.push_back(stage.assignment->exact ? microbatches_of(*stage.assignment)
                                              : proto::MicrobatchShare{0, plan_->microbatches});
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
  const proto::MicrobatchShare& share = shares_[stage];
  WEFT_TRY_STATUS(claims.check_losses(report, share.count));
  OwnStep& own = *step.own[replica_of_[stage]];
  put_losses(report.losses, share, plan_->microbatches, own.losses);
  for (size_t p = 0; p < parameters.size(); ++p) own.squares[parameters[p]] = report.squares[p];
  step.squares_in[stage] = true;
  return {};
}

// Each microbatch was made of the samples that are its turn: each sample of the endless sequence counts once.
Status Steps::check_ledger(uint32_t stage, const proto::StepReport& report, InProgress& step) const {
  const auto& positions = report.sample_positions;
  if (!positions.empty()) {
    WEFT_TRY_STATUS(
        check_positions(positions, shares_[stage], plan_->training, step.own[replica_of_[stage]]->number));
    step.positions_in[stage] = true;
  }
  if (!report.updated || step.positions_in[stage]) return {};
  for (const proto::StageProgram& program : plan_->stages[stage].assignment->programs)
    if (program.kind == proto::ProgramKind::Train && !program.data_inputs.empty())
      return fail(ErrorCode::InvalidArgument, "it does not say which samples it read");
  return {};
}

bool Steps::have_all_said(uint32_t replica, const std::vector<bool>& said) const {
  for (uint32_t s = 0; s < said.size(); ++s)
    if (replica_of_[s] == replica && !said[s]) return false;
  return true;
}

void Steps::decide(uint64_t number, uint32_t replica, InProgress& step, Heard& heard) const {
  OwnStep& own = *step.own[replica];
  double sum = 0, losses = 0;
  for (const double square : own.squares) sum += square;  // in parameter order, at this one place
  for (const double loss : own.losses) losses += loss;
  own.norm = std::sqrt(sum) / plan_->microbatches;
  const bool is_finite = std::isfinite(own.norm) && std::isfinite(losses) && !own.statistics_diverged;
  own.skip = plan_->training.is_empty(own.number) || (plan_->training.skips_diverged() && !is_finite);
  own.is_decided = true;
  if (!plan_->training.decides_together()) return;
  heard.decision = Decision{number, own.norm, own.skip};
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (replica_of_[s] == replica && !step.updated[s]) heard.tell.push_back(s);
}

Steps::InProgress& Steps::in_progress(uint64_t step) {
  InProgress& at = steps_[step];
  if (!at.updated.empty()) return at;
  at.updated.assign(stages_.size(), false);
  at.squares_in = at.positions_in = at.updated;
  for (uint32_t replica = 0; replica < inner_.replicas(); ++replica) {
    auto& own = at.own.emplace_back();
    if (const auto place = inner_.own(replica, step))
      own = OwnStep{.number = place->step,
                    .scheduled = place->scheduled,
                    .squares = std::vector<double>(plan_->parameter_count, 0.0)};
  }
  for (uint32_t replica = 0; replica < inner_.replicas(); ++replica)
    if (left_out_[replica]) leave_out(replica, at);
  return at;
}

// As if its stages had done it, and made nothing.
void Steps::leave_out(uint32_t replica, InProgress& step) const {
  step.own[replica].reset();
  for (uint32_t s = 0; s < replica_of_.size(); ++s)
    if (replica_of_[s] == replica) step.squares_in[s] = step.positions_in[s] = step.updated[s] = true;
}

void Steps::leave_out(uint32_t replica) {
  left_out_[replica] = true;
  for (auto& [number, step] : steps_) leave_out(replica, step);
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (replica_of_[s] == replica) stages_[s].step = granted_;
}

// For people.
std::string Steps::name_of(const OwnStep& own, uint32_t replica) const {
  return "step " + std::to_string(own.number) +
         (inner_.are_local() ? " of replica " + std::to_string(replica + 1) : "");
}

// The first time that a stage says what came out.
Status Steps::hear_numbers(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                           InProgress& step, Heard& heard) const {
  WEFT_TRY_STATUS(take_squares(stage, claims, report, step));
  const uint32_t replica = replica_of_[stage];
  OwnStep& own = *step.own[replica];
  // Before it is decided, and before any snapshot with this step is whole.
  if (const auto what = not_finite(report);
      what && !plan_->training.skips_diverged() && !plan_->training.is_empty(own.number)) {
    heard.divergence = Divergence{report.step, stage,
                                  plan::to_string(plan_->stages[stage].assignment->seat) + ", step " +
                                      std::to_string(own.number) + ": " + *what};
    return {};
  }
  own.statistics_diverged |= report.statistics_diverged;
  if (have_all_said(replica, step.squares_in)) decide(report.step, replica, step, heard);
  return {};
}

Status Steps::hear_first(uint32_t stage, const StageClaims& claims, const proto::StepReport& report,
                         InProgress& step, Heard& heard) const {
  if (step.own[replica_of_[stage]]) {
    WEFT_TRY_STATUS(check_ledger(stage, report, step));
    return step.squares_in[stage] ? Status{} : hear_numbers(stage, claims, report, step, heard);
  }
  if (!report.updated || report.statistics_diverged || !report.losses.empty() || !report.squares.empty() ||
      !report.sample_positions.empty())
    return fail(ErrorCode::InvalidArgument, "it has numbers of a step that its replica does not make");
  step.squares_in[stage] = true;
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
  if (const Status taken = hear_first(stage, claims, report, step, heard); !taken)
    return wrong(taken.error().message);
  if (heard.divergence || !report.updated) return heard;
  const std::optional<OwnStep>& own = step.own[replica_of_[stage]];
  // One that came back may have had the norm from the broker before it was restarted.
  if (plan_->training.decides_together() && own && !own->is_decided && !may_repeat)
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

// The mean of what the replicas say that learnt from it, or, where none did, of all that made a step.
// REQUIRES: one did.
proto::JobEvent Steps::event_of(uint64_t number, const InProgress& step, double elapsed) const {
  const dag::TrainingSpec& training = plan_->training;
  double losses = 0, norms = 0, skipped_norms = 0;
  uint32_t made = 0, skipped = 0;
  uint64_t scheduled = number;  // as the first that makes one has it
  for (const auto& own : step.own) {
    if (!own) continue;
    if (made++ == 0) scheduled = own->scheduled;
    skipped += own->skip ? 1 : 0;
    (own->skip ? skipped_norms : norms) += own->norm;
    if (!own->skip)
      losses += std::accumulate(own->losses.begin(), own->losses.end(), 0.0) / plan_->microbatches;
  }
  proto::JobEvent event;
  event.kind = proto::JobEventKind::Step;
  event.step = inner_.made(number);
  event.skipped = skipped == made;
  event.loss = event.skipped ? std::numeric_limits<double>::quiet_NaN() : losses / (made - skipped);
  event.learning_rate = dag::scheduled_learning_rate(training.schedule, training.optimizer.learning_rate,
                                                     scheduled, inner_.in_all());
  event.seconds = elapsed;
  event.samples_per_second =
      elapsed > 0 ? static_cast<double>(uint64_t{training.batch_size} * made) / elapsed : 0;
  event.gradient_norm = event.skipped ? skipped_norms / made : norms / (made - skipped);
  event.samples = event.step * training.batch_size;
  return event;
}

// What is too many in a row, if anything is. Empty steps say nothing of divergence.
std::optional<std::string> Steps::count_skips(const InProgress& step) {
  std::optional<std::string> what;
  for (uint32_t replica = 0; replica < step.own.size(); ++replica) {
    const auto& own = step.own[replica];
    if (!own || plan_->training.is_empty(own->number)) continue;
    uint64_t& in_a_row = skipped_in_a_row_[replica];
    in_a_row = own->skip ? in_a_row + 1 : 0;
    if (in_a_row == dag::kSkippedInARowMax && !what)
      what = name_of(*own, replica) + " is the " + std::to_string(in_a_row) + "th in a row that is skipped";
  }
  return what;
}

Steps::Committed Steps::commit(Instant now) {
  WEFT_CHECK(next_done().has_value());
  const uint64_t number = committed_ = steps_.begin()->first;
  const InProgress& step = steps_.begin()->second;
  if (inner_.are_local() && inner_.is_whole(number)) agreed_ = Agreed{number, now};
  const double elapsed = seconds(now - last_commit_);
  last_commit_ = now;
  // Shown to people: smoothed, because commits come in bunches.
  commit_seconds_ = commit_seconds_ == 0 ? elapsed : 0.95 * commit_seconds_ + 0.05 * elapsed;
  Committed committed;
  if (std::any_of(step.own.begin(), step.own.end(), [](const auto& own) { return own.has_value(); })) {
    committed.event = event_of(number, step, elapsed);
    if (!committed.event->skipped) last_loss_ = committed.event->loss;
    committed.is_repeat = committed.event->step <= recorded_;
    recorded_ = std::max(recorded_, committed.event->step);
  }
  if (auto what = count_skips(step))
    committed.divergence = Divergence{number, std::nullopt, std::move(*what), /*may_pass=*/false};
  steps_.erase(steps_.begin());
  granted_at_.erase(granted_at_.begin(), granted_at_.lower_bound(number));
  return committed;
}

std::vector<Steps::Decision> Steps::decisions_for(uint32_t stage) const {
  std::vector<Decision> decisions;
  if (!plan_->training.decides_together()) return decisions;
  for (const auto& [number, step] : steps_)
    if (const auto& own = step.own[replica_of_[stage]]; own && own->is_decided && !step.updated[stage])
      decisions.push_back({number, own->norm, own->skip});
  return decisions;
}

// A step after which replicas are to agree, or whose gradients they add up, each of them may lack from any
// other.
MissingReports Steps::missing_reports() const {
  if (steps_.empty() || steps_.begin()->first != committed_ + 1) return {};
  const auto& [number, step] = *steps_.begin();
  const bool together = plan_->training.decides_together();
  const bool is_open =
      std::any_of(step.own.begin(), step.own.end(), [](const auto& own) { return own && !own->is_decided; });
  if (together && is_open) {
    MissingReports missing = missing_reports_of(step.squares_in, false);
    missing.is_mutual = !plan_->exact_ranges.empty();
    return missing;
  }
  const bool is_mutual = inner_.ends_round(number) || !plan_->exact_ranges.empty();
  MissingReports missing = missing_reports_of(step.updated, together && !is_mutual);
  missing.is_mutual = is_mutual;
  return missing;
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
    for (uint32_t replica = 0; replica < step.own.size(); ++replica)
      if (step.own[replica] && step.own[replica]->is_decided && !have_all_said(replica, step.squares_in))
        return broken(std::to_string(number) + " was decided by some of its stages");
  }
  for (const proto::StageStatus& stage : stages_)
    if (stage.step < committed_ || stage.step > granted_)
      return broken("a stage has done " + std::to_string(stage.step));
  return {};
}

}  // namespace weft::broker
