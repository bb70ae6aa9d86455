// What the stages of a run report.
#include "broker/run/run.h"

namespace weft::broker {

// Of a stage that has come back it may be a report that was heard before.
Result<RunEffects> Run::refuse_unasked(uint32_t stage, uint64_t step, const char* what) {
  if (repeats_.drop(stage, step)) return RunEffects{};
  return fail(ErrorCode::InvalidArgument, std::string(what) + " that was not asked for");
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::StepReport& report) {
  WEFT_TRY(Steps::Heard heard,
           steps_.on_report(now, stage, claims_[stage], report, repeats_.may_be(stage, report.step)));
  if (heard.is_updated) WEFT_TRY_STATUS(mean_checks_.hear(stage, report, commands_.settled()));
  RunEffects out;
  if (heard.is_repeat) repeats_.count();
  if (heard.divergence) {
    ended_ = true;
    out.push_back(std::move(*heard.divergence));
    return out;
  }
  for (const uint32_t told : heard.tell) out.push_back(tell_norm(told, *heard.decision));
  if (!heard.is_updated) return out;
  last_progress_ = now;
  if (heard.is_whole) {
    rounds_.on_step_done(now, report.step, heard.seconds);
    comparison_.on_step_done(now, report.step);
  }
  continue_run(now, out);
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                  uint32_t blobs_missing) {
  RunEffects out;
  if (!rounds_.is_asked(stage, report.step)) return refuse_unasked(stage, report.step, "a snapshot");
  WEFT_TRY_STATUS(claims_[stage].check(report));
  WEFT_TRY(Rounds::Part part, rounds_.on_report(now, stage, report, blobs_missing));
  if (part.disagreement) {
    ended_ = true;
    out.push_back(std::move(*part.disagreement));
    return out;
  }
  if (part.is_direct && part.failure) return give_up_direct(now, *part.failure);
  last_progress_ = now;
  if (part.failure) out.push_back(UploadFailed{stage, inner_.made(report.step), *part.failure});
  if (!part.is_direct || part.is_dropped)
    continue_run(now, out);
  else if (part.is_complete)
    out.push_back(DirectCopyChanged{});
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::EvaluationReport& report) {
  RunEffects out;
  if (!forward_.awaits(report)) {
    if (training() && repeats_.drop(stage, report.step)) return out;
    return fail(ErrorCode::InvalidArgument, "an evaluation that was not asked for");
  }
  WEFT_TRY_STATUS(claims_[stage].check(report));
  WEFT_TRY(const bool came_forward, forward_.on_report(report));
  if (came_forward) last_progress_ = now;
  commands_.continue_forward(out);
  continue_run(now, out);
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::PredictionReport& report) {
  RunEffects out;
  if (!forward_.is_asked(report))
    return fail(ErrorCode::InvalidArgument, "a prediction that was not asked for");
  if (forward_.has(stage, report)) {
    repeats_.count();
    return out;
  }
  WEFT_TRY_STATUS(claims_[stage].check(report));
  out.push_back(TakenPrediction{report});
  if (forward_.on_report(stage, report)) last_progress_ = now;
  commands_.continue_forward(out);
  end_if_done(out);
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::ReplicasLeftOut& report) {
  if (!absence_.awaits(stage) && repeats_.drop(stage, report.step)) return RunEffects{};
  WEFT_TRY_STATUS(absence_.on_report(stage, report));
  last_progress_ = now;
  ended_ = absence_.was_too_late();
  if (ended_) return RunEffects{TooLateToLeaveOut{stage}};
  RunEffects out;
  continue_run(now, out);
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::MeanPiece& report) {
  RunEffects out;
  if (!absence_.empty()) return out;  // nobody looks at it any more
  if (!mean_checks_.awaits(stage, report.sequence))
    return refuse_unasked(stage, report.step, "a piece of a mean");
  last_progress_ = now;
  auto wrong = mean_checks_.on_report(stage, report);
  if ((ended_ = wrong.has_value())) return RunEffects{std::move(*wrong)};
  continue_run(now, out);
  return out;
}

Result<RunEffects> Run::on_report(Instant now, uint32_t stage, const proto::ComparisonReport& report) {
  RunEffects out;
  if (!comparison_.awaits(stage, report.step)) return refuse_unasked(stage, report.step, "a comparison");
  WEFT_TRY_STATUS(Comparison::check_passes(report));
  WEFT_TRY_STATUS(claims_[stage].check(report));
  const Comparison::Heard heard = comparison_.on_report(now, stage, report);
  last_progress_ = now;
  if (heard.is_done) steps_.hold_up_until(now);
  if (heard.result)
    out.push_back(Compared{*heard.result});
  else
    continue_run(now, out);
  return out;
}

}  // namespace weft::broker
