// Snapshots of a run: when they are written into the script, and what they are good for once they are whole.
#include <algorithm>
#include <cmath>
#include <utility>

#include "broker/run.h"

namespace weft::broker {

using proto::CommandKind;
using proto::JobEventKind;

namespace {
constexpr double kTryEagerAgain = 100;  // uploads later
Duration uploads(double count, double each) {
  return Duration(static_cast<Duration::rep>(1e9 * count * each));
}
}  // namespace

int64_t state_bytes(const PlannedRun& plan, uint32_t stage) {
  const proto::AssignStage& assignment = *plan.stages[stage].assignment;
  const dag::Graph* graph = nullptr;
  for (const proto::StageProgram& program : assignment.programs)
    if (program.kind == proto::ProgramKind::Train) graph = program.graph.get();
  const auto slots = static_cast<int64_t>(optimizer_slots(plan.training.optimizer).size());
  int64_t bytes = 0;
  for (const auto& tensor : assignment.tensors) {
    if (!is_weight(tensor.key.slot)) continue;
    const bool trained =
        graph == nullptr || graph->find_output(dag::OutputRole::Gradient, tensor.key.name) != nullptr;
    bytes += tensor.spec.bytes().value * (trained ? 1 + slots : 1);
  }
  return bytes;
}

int64_t largest_state_bytes(const PlannedRun& plan) {
  int64_t largest = 0;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) largest = std::max(largest, state_bytes(plan, s));
  return largest;
}

double slowest_copy_seconds(const PlannedRun& plan, uint64_t usual_rate) {
  double slowest = 0;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    const uint64_t own = plan.stages[s].assignment->replication_rate, rate = own > 0 ? own : usual_rate;
    if (rate > 0)
      slowest = std::max(slowest, static_cast<double>(state_bytes(plan, s)) / static_cast<double>(rate));
  }
  return slowest;
}

bool Run::Round::is_whole() const {
  return is_made() && std::all_of(in.begin(), in.end(), [](bool part) { return part; });
}

bool Run::Round::is_made() const {
  return std::all_of(made.begin(), made.end(), [](bool part) { return part; });
}

double Run::step_time() const {
  return std::max(step_seconds_ > 0 ? step_seconds_ : seconds(plan_->predicted_step), 1e-9);
}

// Links may carry less than they are allowed to. A round that waited for the one before shows what an upload
// takes; one alone shows that and the way there and back, which several at once hide: so it is tried now and
// then whether eager commits hold the run up still. A checkpoint takes longer than a round: it can only show
// that one takes less.
void Run::measure_round(const Round& round, Instant now) {
  constexpr double kWeight = 0.2, kMostAtOnce = 4;  // one that was held up does not count for many
  const Instant before = std::exchange(last_round_whole_, now);
  if (round.failed || round.ready_at == Instant{}) return;
  const double took = seconds(now - std::max(round.ready_at, before));
  if (round.gates && before <= round.ready_at) return;
  if (round.durable && took > round_seconds_) return;
  const bool was_eager = is_eager();
  const double known = round_seconds_ > 0 ? round_seconds_ : step_time();
  round_seconds_ = (1 - kWeight) * known + kWeight * std::min(took, kMostAtOnce * known);
  if (was_eager && !is_eager()) {
    eager_again_at_ = now + uploads(kTryEagerAgain, round_seconds_);
  } else if (eager_again_at_ && now >= *eager_again_at_) {
    eager_again_at_.reset();
    is_held_up_ = false;
    round_seconds_ = 0;
  }
}

// Copies that wait in line at a peer hold its steps up (it keeps few of them), and then a step takes as long
// as its copy, so that neither looks too long beside the other. Where copies do wait, it is tried what steps
// take when commits do not wait for them.
void Run::watch_copies(Instant now) {
  constexpr uint64_t kWindow = 16, kMost = 12;  // steps
  constexpr int kInLine = 3;                    // the way there and back alone makes some wait
  constexpr double kWorthIt = 0.8;
  watched_.waited += std::count_if(rounds_.begin(), rounds_.end(), [](const Round& round) {
                       return round.ready_at != Instant{} && !round.is_whole();
                     }) >= kInLine;
  if (++watched_.steps < kWindow) return;
  const bool waited = watched_.waited >= kMost;
  const double took = seconds(now - std::exchange(watched_, {.since = now}).since);
  if (is_held_up_) {
    if (!eager_seconds_ || std::exchange(is_settling_, false)) return;
    is_held_up_ = took < kWorthIt * *std::exchange(eager_seconds_, std::nullopt);
    if (is_held_up_)
      eager_again_at_ = now + uploads(kTryEagerAgain, std::max(round_seconds_, step_time()));
    else
      compare_again_at_ = now + uploads(kTryEagerAgain, took);
  } else if (waited && is_eager() && now >= compare_again_at_) {
    is_held_up_ = is_settling_ = true;  // commits of the first window still wait
    eager_seconds_ = took;
  }
}

// How many steps an upload takes, at least one: as measured, where half a step is noise, and at the rate,
// until it is known how small copies are packed.
double Run::round_interval() const {
  constexpr double kPackedLeast = 0.5;  // of their bytes
  const double at_rate = (round_seconds_ > 0 ? kPackedLeast : 1) * copy_seconds_;
  return std::clamp(std::max(std::ceil(at_rate / step_time()), std::round(round_seconds_ / step_time())), 1.0,
                    1e15);
}

bool Run::is_eager() const {
  return round_interval() == 1 && !is_held_up_ && largest_bytes_ <= options_.eager_bytes_max;
}

// The script runs ahead of the work: a round that is written only when the one before is whole is copied that
// many steps later than it could be. So the next one is written while one is under way, where those steps are
// many of an interval; where they are few, a peer is spared the third copy of a large state.
bool Run::may_copy(uint64_t interval) const {
  return is_eager() || rounds_.size() < (interval <= uint64_t{4} * options_.window_steps ? 2 : 1);
}

// After the last one; a run that has just begun makes its first at once, for its links carry none yet.
uint64_t Run::next_copy(uint64_t interval) const {
  return snapshots_ == 0 ? granted_ : snapshot_written_ + interval;
}

uint64_t Run::steps_between_rounds() const {
  if (!options_.replicates) return 0;
  const double interval = round_interval();
  if (plan_->borders.checkpoint.steps)
    return interval >= static_cast<double>(*plan_->borders.checkpoint.steps)
               ? 0
               : static_cast<uint64_t>(interval);
  // Where steps are long, checkpoints come as often as steps are granted, which is ahead by the window.
  const double checkpoints = std::max(
      seconds(plan_->borders.checkpoint.every.value_or(options_.checkpoint_every_default)) / step_time(),
      static_cast<double>(options_.window_steps));
  if (interval > checkpoints) return 0;
  return static_cast<uint64_t>(interval);
}

// Of the state after the last step granted.
void Run::write_snapshot(Instant now, bool durable, RunSink& sink) {
  if (durable) {
    last_checkpoint_ = now;
    checkpoint_due_ = false;
  }
  snapshot_written_ = granted_;
  ++snapshots_;
  snapshot_written_durable_ = durable;
  Round round{.sequence = sequence_ + 1,
              .step = granted_,
              .durable = durable,
              .gates = granted_ > committed_ && is_eager(),
              .in = std::vector<bool>(stages_.size(), false),
              .tensors = {}};
  // The first one goes to the broker: what the run is left with after a loss is nowhere else.
  round.direct =
      !durable && !round.gates && snapshots_ > 1 && !stopping_ && !direct_failed_ && sink.copies_go_direct();
  round.made.assign(round.direct ? stages_.size() : 0, false);
  const bool direct = round.direct;
  rounds_.push_back(std::move(round));
  write({.kind = durable ? CommandKind::Checkpoint : CommandKind::Replicate,
         .step = granted_,
         .direct = direct},
        sink);
}

void Run::write_snapshot_if_due(Instant now, RunSink& sink) {
  if (granted_ <= snapshot_written_) return;
  const bool border = plan_->borders.checkpoint.steps && granted_ % *plan_->borders.checkpoint.steps == 0;
  if (checkpoint_due_ || border || granted_ == plan_->training.steps) return write_snapshot(now, true, sink);
  const uint64_t interval = steps_between_rounds();
  if (interval == 0) return;
  if (may_copy(interval) && granted_ >= next_copy(interval)) write_snapshot(now, false, sink);
}

// What the run must not end without: a checkpoint of the last step granted, or, to go on elsewhere, any
// snapshot of it. A step has one snapshot: where the one of this step will not do, one more step is done.
void Run::write_last_snapshot(Instant now, RunSink& sink) {
  if (has_last_snapshot()) return;
  for (const Round& round : rounds_)
    if (round.step == granted_ && (round.durable || (moving_ && !round.direct))) return;
  if (granted_ == snapshot_written_ && !snapshot_written_durable_) {
    if (granted_ == plan_->training.steps) return;  // the last step has a checkpoint
    grant(now, granted_ + 1, sink);
  }
  write_snapshot(now, true, sink);
}

// Whoever leaves takes what it has with it.
bool Run::has_last_snapshot() const {
  return moving_ && !recovery_is_direct_ ? recovery_ == granted_ : checkpointed_ == granted_;
}

bool Run::is_gated(uint64_t step) const {
  return std::any_of(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    return round.step == step && round.gates && !round.is_whole();
  });
}

bool Run::waits_for_snapshot() const {
  return std::any_of(rounds_.begin(), rounds_.end(),
                     [](const Round& round) { return round.durable || round.gates; });
}

void Run::add_reported(std::vector<Digest>& blobs) const {
  for (const Round& round : rounds_)
    if (!round.durable && !round.direct)
      for (const auto& tensor : round.tensors) blobs.push_back(tensor.sha256);
}

Status Run::on_checkpoint_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                 uint32_t blobs_missing, RunSink& sink) {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    return round.step == report.step && !(round.direct ? round.made : round.in)[stage];
  });
  if (at == rounds_.end()) {
    if (may_repeat(stage, report.step)) return {};
    return fail(ErrorCode::InvalidArgument,
                "a snapshot of step " + std::to_string(report.step) + " was not asked for");
  }
  WEFT_TRY_STATUS(claims_[stage].check(report));
  std::optional<Error> failure = report.failure;
  if (!at->direct && blobs_missing != 0) {
    const std::string what =
        "a snapshot of which " + std::to_string(blobs_missing) + " tensors were not uploaded";
    if (!at->outlived) return fail(ErrorCode::InvalidArgument, what);
    failure = Error{ErrorCode::NotFound, what + ", or went with the broker that had them"};
  }
  if (!failure && at->skipped_steps.value_or(report.skipped_steps) != report.skipped_steps)
    failure = Error{ErrorCode::Corrupted, "it says that " + std::to_string(report.skipped_steps) +
                                              " steps were skipped, another stage says " +
                                              std::to_string(*at->skipped_steps)};
  if (!failure) at->skipped_steps = report.skipped_steps;
  if (at->direct) {
    at->made[stage] = true;
    if (failure) {
      give_up_direct(now, *failure, sink);
      return {};
    }
    at->tensors.insert(at->tensors.end(), report.tensors.begin(), report.tensors.end());
    last_progress_ = now;
    if (!at->is_made()) return {};
    at->made_at = now;
    if (at->failed)
      continue_run(now, sink);
    else
      sink.direct_copy_changed();
    return {};
  }
  at->in[stage] = true;
  if (failure) {
    at->failed = true;
    sink.upload_failed(stage, report.step, *failure);
  } else {
    at->tensors.insert(at->tensors.end(), report.tensors.begin(), report.tensors.end());
  }
  if (at->is_whole()) measure_round(*at, now);
  last_progress_ = now;
  continue_run(now, sink);
  return {};
}

std::optional<CheckpointCommitted> Run::copy_to_fetch() const {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(),
                               [](const Round& round) { return round.direct && !round.failed; });
  if (at == rounds_.end() || !at->is_made()) return std::nullopt;
  return CheckpointCommitted{job_, at->step, at->tensors, at->skipped_steps.value_or(0)};
}

void Run::on_fetched(Instant now, uint32_t stage, uint64_t step, RunSink& sink) {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    return round.direct && round.step == step && round.is_made() && !round.in[stage];
  });
  if (at == rounds_.end() || ended_) return;
  at->in[stage] = true;
  if (!at->is_whole()) return;
  direct_failures_ = 0;
  measure_round(*at, now);
  last_progress_ = now;
  continue_run(now, sink);
  sink.direct_copy_changed();
}

// They stay until every stage has carried the command out.
void Run::drop_direct(Instant now, RunSink& sink) {
  if (ended_) return;
  size_t dropped = 0;
  for (Round& round : rounds_) dropped += round.direct && !round.failed && !round.is_whole() && round.drop();
  if (dropped != 0) continue_run(now, sink);
}

bool Run::Round::drop() {
  failed = true;
  in.assign(in.size(), true);
  return is_made();
}

// A stage that is short of memory may not have kept one for as long as it took to fetch it.
void Run::give_up_direct(Instant now, const Error& why, RunSink& sink) {
  constexpr uint32_t kTimes = 3;
  if (ended_ || direct_failed_) return;
  direct_failed_ = why.code != ErrorCode::NotFound || ++direct_failures_ >= kTimes;
  if (direct_failed_) sink.direct_copies_failed(why.message);
  drop_direct(now, sink);
}

void Run::check_direct(Instant now, RunSink& sink) {
  constexpr double kTimes = 10;
  const auto most =
      std::max(options_.direct_deadline, uploads(kTimes, std::max(round_seconds_, copy_seconds_)));
  for (const Round& round : rounds_)
    if (round.direct && !round.failed && round.is_made() && now - round.made_at > most)
      return give_up_direct(
          now, {ErrorCode::Timeout, "nobody has fetched that of step " + std::to_string(round.step)}, sink);
}

std::optional<CheckpointCommitted> Run::newest_copy(
    const std::function<bool(uint32_t stage, uint64_t step)>& has) const {
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
    if (!round->direct || round->failed || !round->is_made() || round->step > committed_) continue;
    bool had = true;
    for (uint32_t s = 0; s < stages_.size(); ++s) had = had && has(s, round->step);
    if (had) return CheckpointCommitted{job_, round->step, round->tensors, round->skipped_steps.value_or(0)};
  }
  return std::nullopt;
}

void Run::complete_rounds(Instant now, RunSink& sink) {
  // Nobody waits for what is still being fetched once something newer is whole.
  const auto newer = std::find_if(rounds_.rbegin(), rounds_.rend(), [&](const Round& round) {
    return round.is_whole() && !round.failed && round.step <= committed_;
  });
  if (newer != rounds_.rend())
    for (Round& round : rounds_)
      if (round.direct && !round.failed && round.step < newer->step && !round.is_whole()) {
        round.drop();
        sink.direct_copy_changed();
      }
  while (!rounds_.empty() && rounds_.front().is_whole() && rounds_.front().step <= committed_) {
    Round round = std::move(rounds_.front());
    rounds_.pop_front();
    if (round.failed) {
      if (round.durable || moving_) retry_at_ = now + options_.checkpoint_retry;
      continue;
    }
    recovery_ = keep_from_ = round.step;
    recovery_is_direct_ = round.direct;
    CheckpointCommitted whole{job_, round.step, std::move(round.tensors), round.skipped_steps.value_or(0)};
    if (!round.durable) {
      sink.commit_round(std::move(whole), round.direct);
      continue;
    }
    checkpointed_ = round.step;
    proto::JobEvent event;
    event.kind = JobEventKind::Checkpoint;
    event.step = round.step;
    sink.commit_checkpoint(std::move(whole));
    sink.emit(std::move(event));
  }
}

void Run::on_tick(Instant now, RunSink& sink) {
  if (ended_ || !training()) return;
  if (retry_at_ && now >= *retry_at_) {
    retry_at_.reset();
    if (needs_last_snapshot()) write_last_snapshot(now, sink);
  }
  check_direct(now, sink);
  if (ended_ || stopping_ || plan_->borders.checkpoint.steps || granted_ <= checkpointed_ ||
      granted_ == plan_->training.steps)
    return;
  if (std::any_of(rounds_.begin(), rounds_.end(), [](const Round& round) { return round.durable; })) return;
  if (now - last_checkpoint_ < plan_->borders.checkpoint.every.value_or(options_.checkpoint_every_default))
    return;
  checkpoint_due_ = true;
  if (!forward_.active) write_snapshot_if_due(now, sink);  // else after it: one may always be ahead
}

}  // namespace weft::broker
