// What a peer says of the stage it runs.
#include "proto/codec/wire.h"

namespace weft::proto {

namespace {

constexpr size_t kOwedMax = 2;  // agreements that are over with one step

void put_digests(const std::vector<Digest>& from, auto& to) {
  for (const Digest& digest : from) *to.Add() = put_bytes(digest);
}

}  // namespace

void put(const StageReady& from, wire::StageReady& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_persistent(static_cast<uint64_t>(from.persistent.value));
  to.set_microbatch(static_cast<uint64_t>(from.microbatch.value));
  to.set_follows(from.follows);
}
Status get(const wire::StageReady& from, StageReady& to) {
  Reader read("StageReady");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.bytes(from.persistent(), to.persistent, "persistent");
  read.bytes(from.microbatch(), to.microbatch, "microbatch");
  to.follows = from.follows();
  return read.status();
}

void put(const StageFailed& from, wire::StageFailed& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_code(put_enum<wire::ErrorCode>(from.error.code));
  to.set_message(put_text(from.error.message));
  if (from.unreachable) {
    to.set_unreachable_stage(from.unreachable->stage);
    to.set_unreachable_replica(from.unreachable->replica);
  }
  to.set_permanent(from.permanent);
  to.set_diverged(from.diverged);
  to.set_step(from.step);
  if (from.damaged) to.set_damaged(put_bytes(*from.damaged));
}
Status get(const wire::StageFailed& from, StageFailed& to) {
  Reader read("StageFailed");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.error_code(from.code(), to.error.code, "code");
  read.message(from.message(), to.error.message, "message");
  if (from.has_unreachable_stage())
    read.seat(from.unreachable_stage(), from.unreachable_replica(), to.unreachable.emplace(),
              "unreachable_stage");
  to.permanent = from.permanent();
  to.diverged = from.diverged();
  to.step = from.step();
  read.digest(from.damaged(), to.damaged, "damaged");
  return read.status();
}

void put(const StepReport& from, wire::StepReport& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  put_plain(from.losses, *to.mutable_losses());
  put_plain(from.squares, *to.mutable_squares());
  to.set_updated(from.updated);
  to.set_seconds_busy(from.seconds_busy);
  to.set_seconds(from.seconds);
  put_list(from.links, *to.mutable_links());
  put_plain(from.sample_positions, *to.mutable_sample_positions());
  to.set_statistics_diverged(from.statistics_diverged);
  put_digests(from.owed, *to.mutable_owed());
}
Status get(const wire::StepReport& from, StepReport& to) {
  Reader read("StepReport");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.step = from.step();
  read.numbers(from.losses(), to.losses, kLossesMax, "losses");
  read.numbers(from.squares(), to.squares, kListMax, "squares");
  to.updated = from.updated();
  read.not_negative(from.seconds_busy(), to.seconds_busy, "seconds_busy");
  read.not_negative(from.seconds(), to.seconds, "seconds");
  read.list(from.links(), to.links, kStagesMax, "links");
  read.numbers(from.sample_positions(), to.sample_positions, kLossesMax, "sample_positions");
  to.statistics_diverged = from.statistics_diverged();
  read.digests(from.owed(), to.owed, kOwedMax, "owed");
  return read.status();
}

void put(const LocalPoint& from, wire::LocalPoint& to) {
  to.set_steps(from.steps);
  put_plain(from.skipped_steps, *to.mutable_skipped_steps());
  if (!from.inherited.is_whole()) put(from.inherited, *to.mutable_inherited());
  put_list(from.given_again, *to.mutable_given_again());
}
Status get(const wire::LocalPoint& from, LocalPoint& to) {
  Reader read("LocalPoint");
  to.steps = from.steps();
  read.numbers(from.skipped_steps(), to.skipped_steps, replicas::kReplicasMax, "skipped_steps");
  if (from.has_inherited()) read.part(from.inherited(), to.inherited, "inherited");
  read.list(from.given_again(), to.given_again, replicas::kStepRangesMax, "given_again");
  return read.status();
}

void put(const CheckpointReport& from, wire::CheckpointReport& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  put_list(from.tensors, *to.mutable_tensors());
  to.set_skipped_steps(from.skipped_steps);
  if (from.local) put(*from.local, *to.mutable_local());
  if (!from.failure) return;
  to.set_failure_code(put_enum<wire::ErrorCode>(from.failure->code));
  to.set_failure_message(put_text(from.failure->message));
}
Status get(const wire::CheckpointReport& from, CheckpointReport& to) {
  Reader read("CheckpointReport");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.step = from.step();
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  to.skipped_steps = from.skipped_steps();
  read.require(to.skipped_steps <= to.step, "skipped_steps", "more than there were steps");
  if (from.has_local()) read.part(from.local(), to.local.emplace(), "local");
  for (const uint64_t skipped : to.local ? to.local->skipped_steps : std::vector<uint64_t>{})
    read.require(skipped <= to.step, "local", "more skipped steps than there were");
  if (from.failure_code() != wire::ERROR_CODE_UNSPECIFIED) {
    to.failure.emplace();
    read.error_code(from.failure_code(), to.failure->code, "failure_code");
    read.message(from.failure_message(), to.failure->message, "failure_message");
  }
  return read.status();
}

void put(const EvaluationReport& from, wire::EvaluationReport& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_first_microbatch(from.first_microbatch);
  put_plain(from.loss, *to.mutable_loss());
  put_plain(from.correct, *to.mutable_correct());
  put_plain(from.counted, *to.mutable_counted());
}
Status get(const wire::EvaluationReport& from, EvaluationReport& to) {
  Reader read("EvaluationReport");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.step = from.step();
  to.first_microbatch = from.first_microbatch();
  read.numbers(from.loss(), to.loss, kLossesMax, "loss");
  read.numbers(from.correct(), to.correct, kLossesMax, "correct");
  read.numbers(from.counted(), to.counted, kLossesMax, "counted");
  return read.status();
}

void put(const ReplicasLeftOut& from, wire::ReplicasLeftOut& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_sequence(from.sequence);
  to.set_too_late(from.too_late);
}
Status get(const wire::ReplicasLeftOut& from, ReplicasLeftOut& to) {
  to = {from.run(), from.plan_version(), from.step(), from.sequence(), from.too_late()};
  return {};
}

void put(const DifferenceRefused& from, wire::DifferenceRefused& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_replica(from.replica);
  to.set_ratio(from.ratio);
}
Status get(const wire::DifferenceRefused& from, DifferenceRefused& to) {
  Reader read("DifferenceRefused");
  to = {from.run(), from.plan_version(), from.step(), from.replica()};
  read.require(to.replica < kReplicasMax, "replica", "not below 1024");
  read.finite(from.ratio(), to.ratio, "ratio");
  read.require(to.ratio >= 0, "ratio", "negative");
  return read.status();
}

void put(const MeanPiece& from, wire::MeanPiece& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_sequence(from.sequence);
  put_plain(from.shown.difference, *to.mutable_difference());
  to.set_mean(put_bytes(from.shown.mean));
  put_plain(from.shown.owed, *to.mutable_owed());
  put_digests(from.shown.owed_before, *to.mutable_owed_before());
  put_digests(from.shown.owed_after, *to.mutable_owed_after());
  put_digests(from.shown.heard, *to.mutable_heard());
  put_plain(from.shown.read, *to.mutable_read());
}
Status get(const wire::MeanPiece& from, MeanPiece& to) {
  Reader read("MeanPiece");
  to = {from.run(), from.plan_version(), from.step(), from.sequence()};
  read.numbers(from.difference(), to.shown.difference, replicas::kMeanPiece, "difference");
  read.digest(from.mean(), to.shown.mean, "mean");
  read.numbers(from.owed(), to.shown.owed, replicas::kMeanPiece, "owed");
  read.digests(from.owed_before(), to.shown.owed_before, replicas::kPathMax, "owed_before");
  read.digests(from.owed_after(), to.shown.owed_after, replicas::kPathMax, "owed_after");
  read.digests(from.heard(), to.shown.heard, replicas::kReplicasMax, "heard");
  read.numbers(from.read(), to.shown.read, replicas::kMeanPiece, "read");
  return read.status();
}

void put(const ComparisonReport& from, wire::ComparisonReport& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  put_plain(from.losses, *to.mutable_losses());
  put_plain(from.squares, *to.mutable_squares());
}
Status get(const wire::ComparisonReport& from, ComparisonReport& to) {
  Reader read("ComparisonReport");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.step = from.step();
  read.numbers(from.losses(), to.losses, kComparisonPasses, "losses");
  read.numbers(from.squares(), to.squares, kComparisonPasses, "squares");
  return read.status();
}

void put(const PredictionReport& from, wire::PredictionReport& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_microbatch(from.microbatch);
  put_list(from.outputs, *to.mutable_outputs());
}
Status get(const wire::PredictionReport& from, PredictionReport& to) {
  Reader read("PredictionReport");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.microbatch = from.microbatch();
  read.list(from.outputs(), to.outputs, kShortListMax, "outputs");
  return read.status();
}

}  // namespace weft::proto
