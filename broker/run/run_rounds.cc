#include "broker/run/run_rounds.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace weft::broker {

using proto::CommandKind;

namespace {

std::vector<Bytes> bytes_by_stage(const PlannedRun& plan) {
  std::vector<Bytes> bytes;
  bytes.reserve(plan.stages.size());
  for (uint32_t s = 0; s < plan.stages.size(); ++s) bytes.push_back({copied_bytes(plan, s)});
  return bytes;
}

}  // namespace

CheckpointCommitted Rounds::taken_from(Round round) const {
  CheckpointCommitted taken{job_, round.step, std::move(round.tensors),
                            round.skipped_steps.front().value_or(0)};
  if (!inner_.are_local()) return taken;
  taken.local.emplace().steps = inner_.made(round.step);
  for (const auto& skipped : round.skipped_steps) taken.local->skipped_steps.push_back(skipped.value_or(0));
  absence_.complete(taken, round.with_followers ? std::vector<bool>() : followers_.replicas());
  return taken;
}

Rounds::Rounds(proto::JobNumber job, std::shared_ptr<const PlannedRun> plan, const RunBegin& begin,
               const RunOptions& options, const Absence& absence, Followers& followers)
    : job_(job),
      plan_(std::move(plan)),
      inner_(*plan_),
      options_(options),
      absence_(absence),
      followers_(followers),
      pace_(*plan_, options),
      bytes_(bytes_by_stage(*plan_)),
      checkpointed_(begin.checkpointed),
      recovery_(begin.after_step),
      begun_with_(std::max(begin.after_step, begin.checkpointed)),
      keep_from_(begin.after_step),
      written_{begin.after_step, begin.after_step == begin.checkpointed},
      have_stayed_(!followers.empty()) {}

void Rounds::resume(uint64_t keep_from) {
  keep_from_ = std::max(keep_from_, keep_from);
  recovery_ = checkpointed_;
  written_ = {keep_from_, keep_from_ == checkpointed_};  // a step has one snapshot
}

void Rounds::resume(const proto::Command& command, uint64_t recorded) {
  if (command.kind != CommandKind::Checkpoint && command.kind != CommandKind::CopyState) return;
  written_ = {command.step, command.kind == CommandKind::Checkpoint};
  have_stayed_ = have_stayed_ || command.stays;
  if (command.with_followers) followers_.take_part(command.step);
  if (command.step <= checkpointed_) return;
  rounds_.drop(command.step);  // one that had failed, which the script still has behind a LeaveOut
  add({.sequence = command.sequence,
       .step = command.step,
       .durable = written_.is_durable,
       .gates = command.step > recorded && !command.direct && pace_.is_eager(),
       .direct = command.direct,
       .stays = command.stays,
       .with_followers = command.with_followers});
}

Round& Rounds::add(Round round) {
  const bool are_several = inner_.are_local() || (round.stays && !plan_->exact_ranges.empty());
  std::vector<uint32_t> replicas;
  for (const PlannedStage& stage : plan_->stages)
    if (are_several) replicas.push_back(stage.assignment->seat.replica);
  std::vector<bool> followers;
  for (uint32_t s = 0; s < replicas.size(); ++s) followers.push_back(followers_.has(s));
  round.begin(plan_->stages.size(), std::move(replicas), std::move(followers));
  for (uint32_t s = 0; s < plan_->stages.size(); ++s)
    if (absence_.has(s) || !keeps_copy(*plan_->stages[s].assignment, round.stays, round.with_followers))
      round.leave_out(s, /*forgets=*/false);
  return rounds_.add(std::move(round));
}

// ---- writing

// A run that has just begun makes its first copy at once, for its links carry none yet. What followers fetch
// is the one that the run began with: another one beside it would be one too many for who has little room.
std::optional<uint64_t> Rounds::next_copy(uint64_t granted) const {
  if (!followers_.empty()) return std::nullopt;
  if (do_stay()) {
    // Which ones may go stages are told with further commands, and they keep few.
    constexpr size_t kUnderWayMax = 2;
    if (rounds_.size() >= kUnderWayMax) return std::nullopt;
    return count_ == 0 ? granted : written_.step + pace_.steps_between_kept();
  }
  const uint64_t interval = pace_.steps_between();
  const auto most = pace_.under_way_max();
  if (interval == 0 || (most && rounds_.size() >= *most)) return std::nullopt;
  return count_ == 0 ? granted : written_.step + interval;
}

std::optional<Rounds::Kind> Rounds::due(uint64_t granted) const {
  if (granted <= written_.step || !inner_.is_whole(granted)) return std::nullopt;
  const auto& every = plan_->borders.checkpoint.steps;
  if (checkpoint_due_ || (every && inner_.is_due(*every, granted)) || granted == plan_->training.steps)
    return Kind::Checkpoint;
  const auto next = next_copy(granted);
  return next && granted >= *next ? std::optional(Kind::Copy) : std::nullopt;
}

proto::Command Rounds::write(Instant now, Kind kind, const Place& place) {
  const bool durable = kind == Kind::Checkpoint;
  if (durable) {
    last_checkpoint_ = now;
    checkpoint_due_ = false;
  }
  written_ = {place.granted, durable};
  ++count_;
  Round round{.sequence = place.sequence,
              .step = place.granted,
              .begun = now,
              .durable = durable,
              .gates = place.granted > place.committed && pace_.is_eager()};
  // The first one goes to the broker: what the run is left with after a loss is nowhere else.
  round.direct = !durable && !round.gates && count_ > 1 && !direct_failed_ && place.may_be_direct;
  if (!durable && !round.gates && do_stay()) have_stayed_ = round.direct = round.stays = true;
  round.with_followers = followers_.are_there();
  if (round.with_followers) followers_.take_part(round.step);
  const Round& written = add(std::move(round));
  return {.kind = durable ? CommandKind::Checkpoint : CommandKind::CopyState,
          .step = place.granted,
          .direct = written.direct,
          .stays = written.stays,
          .with_followers = written.with_followers};
}

// What the run must not end without: a checkpoint of the last step granted, or, to go on elsewhere, any
// snapshot of it; the last step has a checkpoint.
Rounds::Last Rounds::last_needed(uint64_t granted, bool moving) const {
  if (has_last(granted, moving)) return Last::IsWritten;
  for (const Round& round : rounds_)
    if (round.step == granted && (round.durable || (moving && !round.is_for_others())))
      return Last::IsWritten;
  if (granted != written_.step || written_.is_durable) return Last::Now;
  return granted == plan_->training.steps ? Last::IsWritten : Last::AfterAnother;
}

// Whoever leaves takes what it has with it: of replicas their own alone.
bool Rounds::has_last(uint64_t granted, bool moving) const {
  return moving && (!recovery_is_direct_ || recovery_stays_) ? recovery_ == granted
                                                             : checkpointed_ == granted;
}

bool Rounds::ask_for_checkpoint(Instant now, uint64_t granted) {
  const dag::CheckpointSpec& wanted = plan_->borders.checkpoint;
  if (wanted.steps || granted <= checkpointed_ || granted == plan_->training.steps) return false;
  if (std::any_of(rounds_.begin(), rounds_.end(), [](const Round& round) { return round.durable; }))
    return false;
  if (now - last_checkpoint_ < wanted.every.value_or(options_.checkpoint_every_default)) return false;
  return checkpoint_due_ = true;
}

bool Rounds::take_retry(Instant now) {
  if (!retry_at_ || now < *retry_at_) return false;
  retry_at_.reset();
  return true;
}

// ---- what stages and peers say

bool Rounds::is_asked(uint32_t stage, uint64_t step) const {
  return const_cast<RoundsUnderWay&>(rounds_).asked(stage, step) != nullptr;
}

Result<Rounds::Part> Rounds::on_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                       uint32_t blobs_missing) {
  WEFT_CHECK(is_asked(stage, report.step));
  Round& round = *rounds_.asked(stage, report.step);
  WEFT_TRY(std::optional<Error> failure, round.take(now, stage, report, blobs_missing));
  Part part{.is_direct = round.is_for_others(), .failure = std::move(failure)};
  if (auto found = round.disagreement())
    part.disagreement = Disagreement{inner_.made(round.step), found->stage, found->other,
                                     to_string(found->key), std::move(found->outvoted)};
  if (!round.direct && round.is_whole())
    pace_.on_upload({round.ready_at, round.gates, round.durable, round.failed}, now);
  if (round.stays && round.is_whole() && round.ready_at != Instant{}) pace_.on_kept(now - round.ready_at);
  if (part.is_direct && !part.failure && round.is_made()) {
    part.is_complete = true;
    part.is_dropped = round.failed;
  }
  return part;
}

bool Rounds::on_fetched(Instant now, uint32_t stage, uint64_t step) {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    return round.step == step && round.awaits_fetch(stage);
  });
  if (at == rounds_.end()) return false;
  at->in[stage] = true;
  if (!at->is_whole()) return false;
  direct_failures_ = 0;
  pace_.on_upload({at->ready_at, at->gates, at->durable, at->failed}, now);
  return true;
}

void Rounds::on_saving(uint32_t stage, uint64_t step, Bytes saved) {
  for (Round& round : rounds_)
    if (round.step == step && round.durable) round.on_saving(stage, std::min(saved, bytes_[stage]));
}

void Rounds::on_step_done(Instant now, uint64_t step, double took) {
  for (Round& round : rounds_)
    if (round.step == step) round.ready_at = now;
  pace_.on_step(took);
  const auto waiting = std::count_if(rounds_.begin(), rounds_.end(), [](const Round& round) {
    return round.ready_at != Instant{} && !round.is_whole();
  });
  pace_.on_step_copied(now, static_cast<size_t>(waiting));
}

Rounds::Completed Rounds::complete(Instant now, uint64_t committed, bool moving) {
  Completed completed;
  // Nobody waits for what is still being fetched once something newer is whole.
  const auto newer = std::find_if(rounds_.rbegin(), rounds_.rend(), [&](const Round& round) {
    return round.is_whole() && !round.failed && round.step <= committed;
  });
  if (newer != rounds_.rend())
    for (Round& round : rounds_)
      if (round.direct && !round.failed && round.step < newer->step && !round.is_whole()) {
        round.drop();
        ++completed.dropped;
      }
  while (rounds_.has_whole(committed)) {
    Round round = rounds_.take_first();
    // Whoever was to tell who is right was left out.
    if (round.failed || round.disagreement()) {
      if (round.durable || moving) retry_at_ = now + options_.checkpoint_retry;
      continue;
    }
    recovery_ = round.step;
    if (!followers_.are_awaited()) keep_from_ = round.step;  // else somebody fetches what is older
    recovery_is_direct_ = round.direct;
    recovery_stays_ = round.stays;
    if (round.durable) checkpointed_ = round.step;
    WholeSnapshot whole{.is_durable = round.durable, .is_direct = round.direct, .stays = round.stays};
    whole.snapshot = taken_from(std::move(round));
    completed.whole.push_back(std::move(whole));
  }
  return completed;
}

// ---- direct copies

// They stay until every stage has carried the command out.
bool Rounds::drop_direct() {
  bool may_go = false;
  for (Round& round : rounds_)
    if (round.is_for_others() && !round.failed && !round.is_whole()) may_go = round.drop() || may_go;
  return may_go;
}

// A stage that is short of memory may not have kept one for as long as it took to fetch it.
bool Rounds::give_up_direct(const Error& why) {
  constexpr uint32_t kTimes = 3;
  return direct_failed_ = why.code != ErrorCode::NotFound || ++direct_failures_ >= kTimes;
}

std::optional<uint64_t> Rounds::unfetched(Instant now) const {
  const Duration most = pace_.fetch_max();
  for (const Round& round : rounds_)
    if (round.is_for_others() && !round.failed && round.is_made() && now - round.made_at > most)
      return round.step;
  return std::nullopt;
}

std::optional<CheckpointCommitted> Rounds::copy_to_fetch() const {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(),
                               [](const Round& round) { return round.is_for_others() && !round.failed; });
  if (at == rounds_.end() || !at->is_made()) return std::nullopt;
  return taken_from(*at);
}

std::optional<CheckpointCommitted> Rounds::newest_copy(
    uint64_t committed, const std::function<bool(uint32_t stage, uint64_t step)>& has) const {
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
    if (!round->direct || round->failed || !round->is_made() || round->step > committed) continue;
    bool had = true;
    for (uint32_t s = 0; s < plan_->stages.size(); ++s)
      had = had && (absence_.has(s) ||
                    !keeps_copy(*plan_->stages[s].assignment, round->stays, round->with_followers) ||
                    has(s, round->step));
    if (had) return taken_from(*round);
  }
  return std::nullopt;
}

// ---- what is known

Status Rounds::check(uint64_t committed, uint64_t granted) const {
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Internal, "rounds: " + what); };
  const uint64_t safe = std::max(committed, begun_with_);
  if (recovery_ > safe || checkpointed_ > safe || keep_from_ > safe)
    return broken("the run would go back to a step that is not committed: " + std::to_string(recovery_));
  if (written_.step > std::max(granted, begun_with_)) return broken("one of a step that is not granted");
  const Round* before = nullptr;
  for (const Round& round : rounds_) {
    const std::string step = std::to_string(round.step);
    if (before != nullptr && (before->step >= round.step || before->sequence >= round.sequence))
      return broken("that of step " + step + " is out of its turn");
    if (round.step > granted || round.step > written_.step)
      return broken("that of step " + step + " was never written");
    if (round.direct && (round.durable || round.gates)) return broken(step + " waits for peers alone");
    if (round.in.size() != plan_->stages.size() || round.saved.size() != plan_->stages.size() ||
        round.made.size() != (round.direct ? plan_->stages.size() : 0))
      return broken(step + " has parts of stages that are not there");
    before = &round;
  }
  return pace_.check();
}

}  // namespace weft::broker
