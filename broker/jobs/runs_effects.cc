// What runs want, carried out in the name of their jobs.
#include <bit>
#include <cstdio>
#include <set>

#include "base/overloaded.h"
#include "broker/jobs/codec_guard.h"
#include "broker/jobs/runs.h"

namespace weft::broker {

using proto::JobEventKind;

Status Runs::tell(Job& job, const std::function<Result<RunEffects>(Run& run, Instant now)>& what) {
  Run& run = *job.running()->run;
  const uint64_t step_before = run.committed_step(), repeats_before = run.repeats_dropped();
  Outcome outcome;
  auto effects = what(run, step_.now.monotonic);
  if (effects) carry_out(job, std::move(*effects), outcome);
  look_at(job, step_before, repeats_before, outcome);
  if (!effects) return fail(std::move(effects).error());
  return {};
}

void Runs::carry_out(Job& job, RunEffects effects, Outcome& outcome) {
  for (RunEffect& effect : effects) carry_out_one(job, effect, outcome);
}

void Runs::carry_out_one(Job& job, RunEffect& effect, Outcome& outcome) {
  phase::Running& at = *job.running();
  const auto end = [&](Verdict verdict) {
    if (!outcome.verdict || verdict.divergence) outcome.verdict = std::move(verdict);
  };
  std::visit(Overloaded{
                 [&](IssueCommand& e) { issue(job, e.command); },
                 [&](TellStage& e) { send_to_stage(job, e.stage, std::move(e.message)); },
                 [&](SayEvent& e) { say(job, std::move(e.event)); },
                 [&](RepeatedStep& e) { on_repeated(job, e); },
                 [&](WholeSnapshot& e) { on_snapshot(job, std::move(e)); },
                 [&](DirectCopyChanged&) { step_.stand_bys = true; },
                 [&](DirectCopiesFailed& e) {
                   step_.stand_bys = true;
                   book_.notice(job,
                                "copies of the state go through the broker until the next plan: " + e.why);
                 },
                 [&](UploadFailed& e) { on_upload_failed(job, e); },
                 [&](TakenPrediction& e) {
                   take_prediction(job, std::move(e.report));
                   outcome.came_forward = true;
                 },
                 [&](Compared& e) {
                   guard_codecs(step_, book_, job, e.comparison);
                   const Instant now = step_.now.monotonic;
                   if (at.moving) carry_out(job, at.run->request_stop(now, /*to_go_on=*/true), outcome);
                   carry_out(job, at.run->go_on(now), outcome);
                 },
                 [&](Divergence& e) { end({.kind = Verdict::Kind::Diverged, .divergence = std::move(e)}); },
                 [&](Finished& e) {
                   end({.kind = Verdict::Kind::Finished, .step = e.step});
                   keep_result(job, e.step);
                 },
                 [&](Stopped& e) { end({.kind = Verdict::Kind::Stopped, .step = e.step}); },
             },
             effect);
}

// ---- one by one

void Runs::issue(Job& job, const proto::Command& command) {
  step_.record(CommandIssued{job.number(), command});
  for (uint32_t s = 0; s < job.running()->crew.stages.size(); ++s) send_to_stage(job, s, command);
}

// A stage that has yet to resume is given what it missed when it does.
void Runs::send_to_stage(Job& job, uint32_t stage, proto::Message message) {
  const Crew& crew = job.running()->crew;
  if (crew.stages[stage].here) pool_.send(crew.plan->stages[stage].peer, std::move(message));
}

namespace {
// Which codecs the evaluation's tensors travel in, by name, each once.
std::string codecs_of_evaluation(const PlannedRun& plan) {
  std::set<std::string> names;
  for (const PlannedStage& stage : plan.stages)
    for (const proto::StageProgram& program : stage.assignment->programs)
      if (program.kind == proto::ProgramKind::Evaluate)
        for (const proto::EdgeEnd& end : program.sends)
          if (end.codec.kind != compress::Kind::Dense) names.insert(compress::name(end.codec));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}
}  // namespace

void Runs::say(Job& job, proto::JobEvent event) {
  if (event.kind == JobEventKind::Step) {
    job.log.recorded_step = event.step;
    job.log.loss = event.loss;
    job.log.losses[event.step] = event.loss;
  } else if (event.kind == JobEventKind::Evaluation) {
    job.log.evaluated_step = event.step;
    job.log.metrics = event.metrics;
    event.text = codecs_of_evaluation(*job.running()->crew.plan);
  }
  book_.emit(job, std::move(event));
}

void Runs::on_repeated(Job& job, const RepeatedStep& repeated) {
  const auto before = job.log.losses.find(repeated.step);
  if (before == job.log.losses.end() ||
      std::bit_cast<uint64_t>(before->second) == std::bit_cast<uint64_t>(repeated.loss))
    return;
  if (!job.bits.are_equal || job.bits.difference_said) return;
  job.bits.difference_said = true;
  char text[160];
  std::snprintf(text, sizeof text, "step %llu, done again, has the loss %.17g; it was %.17g",
                static_cast<unsigned long long>(repeated.step), repeated.loss, before->second);
  book_.notice(job, std::string(text) + ": the bits are not equal, although they should be");
  step_.log("warning bits_differ job=" + job.text() + " what=\"" + text + "\"");
}

void Runs::on_snapshot(Job& job, WholeSnapshot whole) {
  const uint64_t step = whole.snapshot.step;
  job.log.losses.erase(job.log.losses.begin(), job.log.losses.upper_bound(step));
  job.upload_failure_said = false;
  step_.stand_bys = step_.transient = true;
  if (whole.is_durable) {
    job.points.commit_checkpoint(whole.snapshot);
    step_.record(std::move(whole.snapshot));
    job.losses.in_a_row = 0;
    return;
  }
  if (whole.is_direct && !std::exchange(job.running()->direct_said, true))
    step_.log("info copies_go_direct job=" + job.text() + " step=" + std::to_string(step));
  job.points.commit_round(std::move(whole.snapshot), whole.is_direct);
}

void Runs::on_upload_failed(Job& job, const UploadFailed& failed) {
  const std::string what = "the copy of step " + std::to_string(failed.step) + " could not be kept: stage " +
                           std::to_string(failed.stage + 1) + ": " + failed.error.message;
  step_.log("warning upload_failed job=" + job.text() + " what=\"" + what + "\"");
  if (std::exchange(job.upload_failure_said, true)) return;
  book_.notice(job, what + "; the run goes on, and tries again");
}

void Runs::take_prediction(Job& job, proto::PredictionReport report) {
  report.run = job.number();
  job.predictions.push_back(report);
  job.losses.in_a_row = 0;
  step_.record(PredictionCommitted{job.number(), std::move(report)});
}

void Runs::keep_result(Job& job, uint64_t step) {
  const Run& run = *job.running()->run;
  proto::JobResult result;
  result.job = job.number();
  result.step = step;
  if (run.training()) {
    for (const auto& tensor : job.points.checkpoint()->tensors)
      if (is_weight(tensor.key.slot)) result.tensors.push_back(tensor);
  } else {
    result.sample_count = run.plan().forward_samples;
  }
  job.result = result;
  step_.record(ResultCommitted{job.number(), std::move(result)});
}

// ---- what a run has come to

void Runs::look_at(Job& job, uint64_t step_before, uint64_t repeats_before, Outcome& outcome) {
  const phase::Running& at = *job.running();
  step_.counters.repeats_dropped += at.run->repeats_dropped() - repeats_before;
  job.step = at.run->committed_step();
  if (job.step > job.losses.at_step) job.losses.in_a_row = 0;
  if (job.step >= job.losses.diverged_at) job.losses.diverged_at = 0;
  if (job.step > step_before)
    for (const PlannedStage& stage : at.crew.plan->stages)
      if (Peer* peer = pool_.find(stage.peer)) pool_.did_step(*peer);
  if (job.losses.lost_at && (job.step > step_before || outcome.came_forward)) {
    char text[64];
    std::snprintf(text, sizeof text, "going on after %.1f s",
                  seconds(step_.now.monotonic - *job.losses.lost_at));
    job.losses.lost_at.reset();
    book_.notice(job, text);
  }
  if (outcome.verdict) give_verdict(job, std::move(*outcome.verdict));
}

}  // namespace weft::broker
