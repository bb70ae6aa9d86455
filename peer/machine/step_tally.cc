#include "peer/machine/step_tally.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::peer {

namespace {
bool are_finite(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double number) { return std::isfinite(number); });
}
}  // namespace

void StepTally::begin(Instant now) {
  began_ = now;
  busy_ = {};
  waited_.clear();
}

void StepTally::begin_wait(Instant now) {
  if (!waits_since_) waits_since_ = now;
}

void StepTally::pause_wait(Instant now) {
  if (waits_since_) waiting_ += now - *waits_since_;
  waits_since_.reset();
}

void StepTally::end_wait(Instant now, const std::optional<plan::Seat>& seat) {
  pause_wait(now);
  const Duration waited = std::exchange(waiting_, {});
  if (seat && waited > Duration{}) waited_[*seat] += waited;
}

void StepTally::add_losses(const std::vector<double>& losses) {
  losses_.insert(losses_.end(), losses.begin(), losses.end());
}

proto::StepReport StepTally::squares_report(uint64_t step, const TaskOutcome& squares) {
  squares_told_ = true;
  return {.run = run_,
          .plan_version = plan_version_,
          .step = step,
          .losses = losses_,
          .squares = squares.squares,
          .sample_positions = sample_positions_,
          .statistics_diverged = !are_finite(squares.statistics)};
}

proto::StepReport StepTally::finish(uint64_t step, const TaskOutcome& update, std::vector<Digest> owed,
                                    Instant now) {
  proto::StepReport report{.run = run_, .plan_version = plan_version_, .step = step};
  report.owed = std::move(owed);
  report.updated = true;
  report.squares = update.squares;
  report.statistics_diverged = !are_finite(update.statistics);
  if (!std::exchange(squares_told_, false)) report.losses = losses_;
  report.sample_positions = std::exchange(sample_positions_, {});
  report.seconds_busy = seconds(busy_);
  report.seconds = seconds(now - began_);
  for (const auto& [seat, waited] : waited_)
    report.links.push_back({.seat = seat, .bytes_sent = 0, .seconds_waiting = seconds(waited)});
  losses_.clear();
  begin(now);
  return report;
}

}  // namespace weft::peer
