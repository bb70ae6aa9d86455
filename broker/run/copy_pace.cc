#include "broker/run/copy_pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::broker {

namespace {
constexpr double kTryEagerAgain = 100;  // uploads later
Duration uploads(double count, double each) {
  return Duration(static_cast<Duration::rep>(1e9 * count * each));
}
}  // namespace

CopyPace::CopyPace(const PlannedRun& plan, const RunOptions& options)
    : inner_(plan),
      have_the_same_(plan.exact_ranges.size() > 1 && !plan.shares_slots()),
      options_(options),
      checkpoint_(plan.borders.checkpoint),
      largest_bytes_(largest_copied_bytes(plan)),
      copy_seconds_(slowest_copy_seconds(plan, options.copy_rate)),
      predicted_step_(seconds(plan.predicted_step)) {}

double CopyPace::step_seconds() const {
  return std::max(step_seconds_ > 0 ? step_seconds_ : predicted_step_, 1e-9);
}

void CopyPace::on_step(double took) {
  if (took > 0) step_seconds_ = step_seconds_ == 0 ? took : 0.9 * step_seconds_ + 0.1 * took;
}

// Links may carry less than they are allowed to. A copy that waited for the one before shows what an upload
// takes; one alone shows that and the way there and back, which several at once hide: so it is tried now and
// then whether eager commits hold the run up still. A checkpoint takes longer than a copy: it can only show
// that one takes less.
void CopyPace::on_upload(const Upload& upload, Instant now) {
  constexpr double kWeight = 0.2, kMostAtOnce = 4;  // one that was held up does not count for many
  const Instant before = std::exchange(last_upload_, now);
  if (upload.failed || upload.ready_at == Instant{}) return;
  const double took = seconds(now - std::max(upload.ready_at, before));
  if (upload.gates && before <= upload.ready_at) return;
  if (upload.is_durable && took > upload_seconds_) return;
  const bool was_eager = is_eager();
  const double known = upload_seconds_ > 0 ? upload_seconds_ : step_seconds();
  upload_seconds_ = (1 - kWeight) * known + kWeight * std::min(took, kMostAtOnce * known);
  if (was_eager && !is_eager()) {
    eager_again_at_ = now + uploads(kTryEagerAgain, upload_seconds_);
  } else if (eager_again_at_ && now >= *eager_again_at_) {
    eager_again_at_.reset();
    is_held_up_ = false;
    upload_seconds_ = 0;
  }
}

// Copies that wait in line at a peer hold its steps up (it keeps few of them), and then a step takes as long
// as its copy, so that neither looks too long beside the other. Where copies do wait, it is tried what steps
// take when commits do not wait for them.
void CopyPace::on_step_copied(Instant now, size_t copies_waiting) {
  constexpr uint64_t kWindow = 16, kMost = 12;  // steps
  constexpr size_t kInLine = 3;                 // the way there and back alone makes some wait
  constexpr double kWorthIt = 0.8;
  watched_.waited += copies_waiting >= kInLine;
  if (++watched_.steps < kWindow) return;
  const bool waited = watched_.waited >= kMost;
  const double took = seconds(now - std::exchange(watched_, {.since = now}).since);
  if (is_held_up_) {
    if (!eager_seconds_ || std::exchange(is_settling_, false)) return;
    is_held_up_ = took < kWorthIt * *std::exchange(eager_seconds_, std::nullopt);
    if (is_held_up_)
      eager_again_at_ = now + uploads(kTryEagerAgain, std::max(upload_seconds_, step_seconds()));
    else
      compare_again_at_ = now + uploads(kTryEagerAgain, took);
  } else if (waited && is_eager() && now >= compare_again_at_) {
    is_held_up_ = is_settling_ = true;  // commits of the first window still wait
    eager_seconds_ = took;
  }
}

// As measured, where half a step is noise, and at the rate, until it is known how small copies are packed.
double CopyPace::interval() const {
  constexpr double kPackedLeast = 0.5;  // of their bytes
  const double at_rate = (upload_seconds_ > 0 ? kPackedLeast : 1) * copy_seconds_;
  return std::clamp(
      std::max(std::ceil(at_rate / step_seconds()), std::round(upload_seconds_ / step_seconds())), 1.0, 1e15);
}

bool CopyPace::is_eager() const {
  return !inner_.are_local() && interval() == 1 && !is_held_up_ && largest_bytes_ <= options_.eager_bytes_max;
}

uint64_t CopyPace::steps_between() const {
  if (!options_.copies_state) return 0;
  const double steps = interval();
  if (checkpoint_.steps)
    return steps * inner_.replicas() >= static_cast<double>(*checkpoint_.steps)
               ? 0
               : static_cast<uint64_t>(steps);
  // Where steps are long, checkpoints come as often as steps are granted, which is ahead by the window.
  const double checkpoints =
      std::max(seconds(checkpoint_.every.value_or(options_.checkpoint_every_default)) / step_seconds(),
               static_cast<double>(options_.window_steps));
  return steps > checkpoints ? 0 : static_cast<uint64_t>(steps);
}

// The script runs ahead of the work: a copy that is written only when the one before is whole is made that
// many steps later than it could be. So the next one is written while one is under way, where those steps are
// many of an interval; where they are few, a peer is spared the third copy of a large state.
std::optional<size_t> CopyPace::under_way_max() const {
  if (is_eager()) return std::nullopt;
  return steps_between() <= uint64_t{4} * options_.window_steps ? 2 : 1;
}

bool CopyPace::stays_with_replicas() const {
  constexpr double kRounds = 2, kSecondsLost = 60;
  if (have_the_same_) return !is_eager();
  if (!inner_.are_local() || inner_.replicas() < 2) return false;
  const double rounds = kRounds * static_cast<double>(inner_.steps_between_agreements()) * step_seconds();
  return std::max(copy_seconds_, upload_seconds_) > std::max(rounds, kSecondsLost);
}

void CopyPace::on_kept(Duration took) {
  kept_seconds_ = kept_seconds_ == 0 ? seconds(took) : 0.8 * kept_seconds_ + 0.2 * seconds(took);
}

// A peer reads and hashes all of its state for one: a tenth of its time at most.
uint64_t CopyPace::steps_between_kept() const {
  constexpr double kTimes = 10;
  return static_cast<uint64_t>(std::clamp(std::ceil(kTimes * kept_seconds_ / step_seconds()), 1.0, 1e15));
}

Duration CopyPace::fetch_max() const {
  constexpr double kTimes = 10;
  return std::max(options_.direct_deadline, uploads(kTimes, std::max(upload_seconds_, copy_seconds_)));
}

Status CopyPace::check() const {
  const bool are_times = step_seconds_ >= 0 && std::isfinite(step_seconds_) && upload_seconds_ >= 0 &&
                         std::isfinite(upload_seconds_);
  if (!are_times) return fail(ErrorCode::Internal, "pace: a step or an upload takes no time that is one");
  if (is_settling_ && !is_held_up_)
    return fail(ErrorCode::Internal, "pace: it is tried without waiting, and commits wait");
  return {};
}

}  // namespace weft::broker
