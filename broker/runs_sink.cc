#include "broker/runs_sink.h"

#include <cstdio>
#include <cstring>
#include <set>

namespace weft::broker {

using proto::JobEventKind;

Runs::Sink::Sink(Runs& runs, Job& job)
    : runs_(runs),
      job_(job),
      at_(*job.running()),
      before_(at_.run->committed_step()),
      repeats_(at_.run->repeats_dropped()) {}

Runs::Sink::~Sink() {
  runs_.step_.counters.repeats_dropped += at_.run->repeats_dropped() - repeats_;
  job_.step = at_.run->committed_step();
  if (job_.step > job_.losses.at_step) job_.losses.in_a_row = 0;
  if (job_.step >= job_.losses.diverged_at) job_.losses.diverged_at = 0;
  if (job_.step > before_)
    for (const PlannedStage& stage : at_.crew.plan->stages)
      if (Peer* peer = runs_.pool_.find(stage.peer)) runs_.pool_.did_step(*peer);
  if (job_.losses.lost_at && (job_.step > before_ || came_forward_)) {
    char text[64];
    std::snprintf(text, sizeof text, "going on after %.1f s",
                  seconds(runs_.step_.now.monotonic - *job_.losses.lost_at));
    job_.losses.lost_at.reset();
    runs_.book_.notice(job_, text);
  }
  if (verdict_) runs_.give_verdict(job_, std::move(*verdict_));
}

void Runs::Sink::issue(const proto::Command& command) {
  runs_.step_.record(CommandIssued{job_.number(), command});
}

// A stage that has yet to resume is given what it missed when it does.
void Runs::Sink::send_to_stage(uint32_t stage, proto::Message message) {
  if (at_.crew.stages[stage].here) runs_.pool_.send(at_.crew.plan->stages[stage].peer, std::move(message));
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

void Runs::Sink::emit(proto::JobEvent event) {
  if (event.kind == JobEventKind::Step) {
    job_.log.recorded_step = event.step;
    job_.log.loss = event.loss;
    job_.log.losses[event.step] = event.loss;
  } else if (event.kind == JobEventKind::Evaluation) {
    job_.log.evaluated_step = event.step;
    job_.log.metrics = event.metrics;
    event.text = codecs_of_evaluation(*at_.crew.plan);
  }
  runs_.book_.emit(job_, std::move(event));
}

void Runs::Sink::step_repeated(uint64_t step, double loss) {
  const auto before = job_.log.losses.find(step);
  if (before == job_.log.losses.end() || std::memcmp(&before->second, &loss, sizeof loss) == 0) return;
  if (!job_.bits.are_equal || job_.bits.difference_said) return;
  job_.bits.difference_said = true;
  char text[160];
  std::snprintf(text, sizeof text, "step %llu, done again, has the loss %.17g; it was %.17g",
                static_cast<unsigned long long>(step), loss, before->second);
  runs_.book_.notice(job_, std::string(text) + ": the bits are not equal, although they should be");
  runs_.step_.log("warning bits_differ job=" + job_.text() + " what=\"" + text + "\"");
}

void Runs::Sink::new_recovery_point(uint64_t step) {
  job_.log.losses.erase(job_.log.losses.begin(), job_.log.losses.upper_bound(step));
  job_.upload_failure_said = false;
  runs_.step_.stand_bys = runs_.step_.transient = true;
}

void Runs::Sink::commit_checkpoint(CheckpointCommitted checkpoint) {
  new_recovery_point(checkpoint.step);
  job_.points.commit_checkpoint(checkpoint);
  runs_.step_.record(std::move(checkpoint));
  job_.losses.in_a_row = 0;
}

void Runs::Sink::commit_round(CheckpointCommitted round, bool direct) {
  new_recovery_point(round.step);
  if (direct && !std::exchange(at_.direct_said, true))
    runs_.step_.log("info copies_go_direct job=" + job_.text() + " step=" + std::to_string(round.step));
  job_.points.commit_round(std::move(round), direct);
}

void Runs::Sink::direct_copies_failed(const std::string& why) {
  at_.copies_go_direct = false;
  runs_.step_.stand_bys = true;
  runs_.book_.notice(job_, "copies of the state go through the broker until the next plan: " + why);
}

void Runs::Sink::upload_failed(uint32_t stage, uint64_t step, const Error& error) {
  const std::string what = "the copy of step " + std::to_string(step) + " could not be kept: stage " +
                           std::to_string(stage + 1) + ": " + error.message;
  runs_.step_.log("warning upload_failed job=" + job_.text() + " what=\"" + what + "\"");
  if (std::exchange(job_.upload_failure_said, true)) return;
  runs_.book_.notice(job_, what + "; the run goes on, and tries again");
}

void Runs::Sink::commit_prediction(proto::PredictionReport report) {
  report.run = job_.number();
  job_.predictions.push_back(report);
  job_.losses.in_a_row = 0;
  came_forward_ = true;
  runs_.step_.record(PredictionCommitted{job_.number(), std::move(report)});
}

void Runs::Sink::compared(const proto::LinkComparison& comparison) {
  runs_.guard(job_, comparison);
  if (at_.moving) at_.run->request_stop(runs_.step_.now.monotonic, /*to_go_on=*/true, *this);
}

void Runs::Sink::finished(uint64_t step) {
  if (!verdict_) verdict_ = Verdict{.kind = Verdict::Kind::Finished, .step = step};
  proto::JobResult result;
  result.job = job_.number();
  result.step = step;
  if (at_.run->training()) {
    for (const auto& tensor : job_.points.checkpoint()->tensors)
      if (is_weight(tensor.key.slot)) result.tensors.push_back(tensor);
  } else {
    result.sample_count = at_.run->plan().forward_samples;
  }
  job_.result = result;
  runs_.step_.record(ResultCommitted{job_.number(), std::move(result)});
}

void Runs::Sink::diverged(const Divergence& divergence) {
  verdict_ = Verdict{.kind = Verdict::Kind::Diverged, .divergence = divergence};
}

void Runs::Sink::stopped(uint64_t step) {
  if (!verdict_) verdict_ = Verdict{.kind = Verdict::Kind::Stopped, .step = step};
}

}  // namespace weft::broker
