#include "broker/jobs/run_records.h"

#include <bit>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

namespace weft::broker {

using proto::JobEventKind;

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

std::string name_of(const Job& job, uint32_t stage) {
  const Crew* crew = job.crew();
  return crew != nullptr ? crew->plan->name_of(stage) : plan::to_string(plan::Seat{stage});
}
}  // namespace

void RunRecords::add_event(Job& job, proto::JobEvent event) {
  if (event.kind == JobEventKind::Step) {
    job.log.recorded_step = event.step;
    if (!event.skipped) job.log.loss = event.loss;
    job.log.losses[event.step] = event.loss;
    step_.figures.on_step(event.seconds);
  } else if (event.kind == JobEventKind::Evaluation) {
    job.log.evaluated_step = event.step;
    job.log.metrics = event.metrics;
    event.text = codecs_of_evaluation(*job.running()->crew.plan);
  }
  book_.emit(job, std::move(event));
}

void RunRecords::add_repeated(Job& job, const RepeatedStep& repeated) {
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

void RunRecords::add_snapshot(Job& job, WholeSnapshot whole) {
  const uint64_t step = whole.snapshot.made();
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
  job.points.commit_round(std::move(whole.snapshot), whole.is_direct, whole.stays);
}

void RunRecords::add_upload_failure(Job& job, const UploadFailed& failed) {
  const std::string what = "the copy of step " + std::to_string(failed.step) +
                           " could not be kept: " + name_of(job, failed.stage) + ": " + failed.error.message;
  step_.log("warning upload_failed job=" + job.text() + " what=\"" + what + "\"");
  if (std::exchange(job.upload_failure_said, true)) return;
  book_.notice(job, what + "; the run goes on, and tries again");
}

void RunRecords::add_prediction(Job& job, proto::PredictionReport report) {
  report.run = job.number();
  job.predictions.push_back(report);
  job.losses.in_a_row = 0;
  step_.record(PredictionCommitted{job.number(), std::move(report)});
}

void RunRecords::add_result(Job& job, uint64_t step) {
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

}  // namespace weft::broker
