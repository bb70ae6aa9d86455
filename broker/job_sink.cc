#include "broker/job_sink.h"

#include <cstdio>
#include <set>

namespace weft::broker {

using proto::JobEventKind;
using proto::JobState;

Broker::Sink::~Sink() {
  broker_.counters_.repeats_dropped += job_.run->repeats_dropped() - repeats_;
  job_.step = job_.run->committed_step();
  job_.status_dirty = true;
  if (job_.step > job_.failures_at_step) job_.failures = 0;
  if (job_.lost_at && (job_.step > before_ || came_forward_)) {
    char text[64];
    std::snprintf(text, sizeof text, "going on after %.1f s",
                  seconds(broker_.now_.monotonic - *job_.lost_at));
    job_.lost_at.reset();
    broker_.notice(job_, text);
  }
  if (diverged_) {
    broker_.end_diverged(job_, *diverged_);
    return;
  }
  if (finished_) broker_.end_job(job_, JobState::Finished, "");
  if (!stopped_) return;
  if (job_.moving && !job_.stop_requested)
    broker_.recover(job_, (job_.move_to.empty() ? "a peer wants to leave; moving after step "
                                                : "planned anew; moving after step ") +
                              std::to_string(step_));
  else
    broker_.end_job(job_, JobState::Stopped, "stopped by its user after step " + std::to_string(step_));
}

void Broker::Sink::issue(const proto::Command& command) {
  broker_.out_->records.push_back(CommandIssued{job_.submitted.job, command});
}

// A stage that has yet to resume is given what it missed when it does.
void Broker::Sink::send_to_stage(uint32_t stage, proto::Message message) {
  if (job_.seats[stage].here) broker_.send_to_peer(job_.plan->stages[stage].peer, std::move(message));
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

void Broker::Sink::emit(proto::JobEvent event) {
  if (event.kind == JobEventKind::Step) {
    job_.recorded_step = event.step;
    job_.losses[event.step] = event.loss;
  } else if (event.kind == JobEventKind::Evaluation) {
    job_.evaluated_step = event.step;
    job_.metrics = event.metrics;
    event.text = codecs_of_evaluation(*job_.plan);
  }
  broker_.emit(job_, std::move(event));
}

void Broker::Sink::step_repeated(uint64_t step, double loss) {
  const auto before = job_.losses.find(step);
  if (before == job_.losses.end() || std::memcmp(&before->second, &loss, sizeof loss) == 0) return;
  if (!job_.equal_bits || job_.difference_said) return;
  job_.difference_said = true;
  char text[160];
  std::snprintf(text, sizeof text, "step %llu, done again, has the loss %.17g; it was %.17g",
                static_cast<unsigned long long>(step), loss, before->second);
  broker_.notice(job_, std::string(text) + ": the bits are not equal, although they should be");
  broker_.log("warning bits_differ job=" + std::to_string(job_.submitted.job) + " what=\"" + text + "\"");
}

void Broker::Sink::new_recovery_point(uint64_t step) {
  job_.losses.erase(job_.losses.begin(), job_.losses.upper_bound(step));
  job_.upload_failure_said = false;
  broker_.stand_bys_dirty_ = broker_.transient_dirty_ = true;
}

void Broker::Sink::commit_checkpoint(CheckpointCommitted checkpoint) {
  new_recovery_point(checkpoint.step);
  job_.round_before.clear();
  if (job_.round && !job_.round_is_direct)
    for (const auto& tensor : job_.round->tensors) job_.round_before.insert(tensor.sha256);
  job_.round.reset();
  job_.round_at_broker.reset();
  job_.round_is_direct = false;
  job_.checkpoints.push_back(checkpoint);
  if (job_.checkpoints.size() > 2) job_.checkpoints.erase(job_.checkpoints.begin());
  broker_.out_->records.push_back(std::move(checkpoint));
  job_.failures = 0;
}

void Broker::Sink::commit_round(CheckpointCommitted round, bool direct) {
  new_recovery_point(round.step);
  job_.round_before.clear();
  if (job_.round && !job_.round_is_direct)
    for (const auto& tensor : job_.round->tensors) job_.round_before.insert(tensor.sha256);
  if (!direct)
    job_.round_at_broker.reset();
  else if (!job_.round_is_direct)
    job_.round_at_broker = std::move(job_.round);
  if (direct && !std::exchange(job_.direct_said, true))
    broker_.log("info copies_go_direct job=" + std::to_string(job_.submitted.job) +
                " step=" + std::to_string(round.step));
  job_.round = std::move(round);
  job_.round_is_direct = direct;
}

void Broker::Sink::direct_copies_failed(const std::string& why) {
  job_.copies_go_direct = false;
  broker_.stand_bys_dirty_ = true;
  broker_.notice(job_, "copies of the state go through the broker until the next plan: " + why);
}

void Broker::Sink::upload_failed(uint32_t stage, uint64_t step, const Error& error) {
  const std::string what = "the copy of step " + std::to_string(step) + " could not be kept: stage " +
                           std::to_string(stage + 1) + ": " + error.message;
  broker_.log("warning upload_failed job=" + std::to_string(job_.submitted.job) + " what=\"" + what + "\"");
  if (std::exchange(job_.upload_failure_said, true)) return;
  broker_.notice(job_, what + "; the run goes on, and tries again");
}

void Broker::Sink::commit_prediction(proto::PredictionReport report) {
  report.run = job_.submitted.job;
  job_.predictions.push_back(report);
  job_.failures = 0;
  came_forward_ = true;
  broker_.out_->records.push_back(PredictionCommitted{job_.submitted.job, std::move(report)});
}

void Broker::Sink::compared(const proto::LinkComparison& comparison) {
  broker_.guard(job_, comparison);
  if (job_.moving) job_.run->request_stop(broker_.now_.monotonic, /*to_go_on=*/true, *this);
}

void Broker::Sink::finished(uint64_t step) {
  finished_ = true;
  step_ = step;
  proto::JobResult result;
  result.job = job_.submitted.job;
  result.step = step;
  if (job_.run->training()) {
    for (const auto& tensor : job_.checkpoints.back().tensors)
      if (is_weight(tensor.key.slot)) result.tensors.push_back(tensor);
  } else {
    result.sample_count = job_.run->plan().forward_samples;
  }
  job_.result = result;
  broker_.out_->records.push_back(ResultCommitted{job_.submitted.job, std::move(result)});
}

void Broker::Sink::diverged(const std::string& what) { diverged_ = what; }

void Broker::Sink::stopped(uint64_t step) {
  stopped_ = true;
  step_ = step;
}

}  // namespace weft::broker
