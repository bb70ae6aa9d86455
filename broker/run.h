// One run of a job, from the moment its stages are assigned: which commands its stages get, when a step is
// committed, when a checkpoint is whole, when it is finished. Pure: told what came in, it says what goes out.
//
// Stages carry their commands out strictly in order, so a run is a script: steps are granted a few ahead of
// the last committed one, and at a border (evaluation, checkpoint, the end) the border's commands follow the
// grant that ends there. No stage can be past a border that was not yet written when it was granted.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/events.h"

namespace weft::broker {

// What a run wants from the broker around it.
class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual void send_to_stage(uint32_t stage, proto::Message message) = 0;
  virtual void emit(proto::JobEvent event) = 0;  // job, sequence and time are filled in
  virtual void commit_checkpoint(CheckpointCommitted checkpoint) = 0;
  virtual void commit_prediction(proto::PredictionReport report) = 0;
  virtual void finished(
      uint64_t step) = 0;  // the last checkpoint is of the last step, or all predictions are there
  virtual void stopped(uint64_t step) = 0;  // as asked, after a checkpoint
};

struct RunOptions {
  uint32_t window_steps = 8;  // granted ahead of the last committed step
  uint32_t forward_chunk =
      8;  // microbatches of evaluation or prediction a command; two commands are under way
  Duration checkpoint_every_default = std::chrono::seconds(60);  // when the job names nothing
};

class Run {
 public:
  // `predicted`: microbatches of a prediction that were reported before.
  Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
      uint64_t after_step, uint32_t predicted, RunOptions options);

  // REQUIRES: every stage is ready. The first commands.
  void start(Instant now, RunSink& sink);
  // What a stage reports, in its peer's order. InvalidArgument when it cannot be: the peer breaks the
  // protocol.
  Status on_step_report(Instant now, uint32_t stage, const proto::StepReport& report, RunSink& sink);
  Status on_checkpoint_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                              RunSink& sink);
  Status on_evaluation_report(Instant now, uint32_t stage, const proto::EvaluationReport& report,
                              RunSink& sink);
  Status on_prediction_report(Instant now, uint32_t stage, const proto::PredictionReport& report,
                              RunSink& sink);
  void on_tick(Instant now, RunSink& sink);
  void request_stop(Instant now, RunSink& sink);

  uint64_t committed_step() const { return committed_; }
  uint64_t steps() const { return plan_->steps; }
  double last_loss() const { return last_loss_; }
  double samples_per_second() const { return samples_per_second_; }
  const std::vector<proto::StageStatus>& stages() const { return stages_; }
  const PlannedRun& plan() const { return *plan_; }
  // When something last came in that brought the run forward: a step, a part of a checkpoint, or the answer
  // to the oldest request of an evaluation or prediction.
  Instant last_progress() const { return last_progress_; }
  bool checkpoint_is_under_way() const { return !checkpoints_.empty(); }
  bool training() const { return plan_->steps != 0; }

 private:
  struct StepInProgress {
    std::vector<bool> squares_in, updated;  // by stage
    std::vector<double> losses;
    std::vector<double> squares;  // by parameter of the whole graph
    bool norm_sent = false;
    double norm = 0;
  };
  struct CheckpointInProgress {
    uint64_t step = 0;
    std::vector<bool> in;  // by stage
    std::vector<proto::TensorReference> tensors;
  };
  struct Forward {  // an evaluation, or the prediction
    bool active = false;
    uint64_t step = 0;
    uint32_t commanded = 0;                                     // microbatches
    uint32_t reported = 0;                                      // all before it are complete
    std::vector<std::optional<double>> loss, correct, counted;  // by microbatch
    std::vector<std::vector<bool>> outputs;  // prediction: by microbatch, which stages reported
  };

  void send_all(proto::Command command, RunSink& sink);
  void advance(Instant now, RunSink& sink);
  uint64_t next_border() const;
  void write_border(Instant now, RunSink& sink);
  void continue_forward(RunSink& sink);
  void finish_evaluation(RunSink& sink);
  void request_checkpoint(Instant now, uint64_t step, RunSink& sink);
  void commit_steps(Instant now, RunSink& sink);
  void end_if_done(RunSink& sink);
  bool evaluation_is_due(uint64_t step) const;
  uint64_t samples_of(uint32_t microbatch) const;

  proto::JobNumber job_;
  proto::PlanVersion version_;
  std::shared_ptr<const PlannedRun> plan_;
  RunOptions options_;
  uint64_t granted_ = 0;    // Advance up to here was sent
  uint64_t committed_ = 0;  // every stage has updated
  std::map<uint64_t, StepInProgress> steps_;
  std::deque<CheckpointInProgress> checkpoints_;
  Forward forward_;
  uint64_t checkpointed_ = 0;  // the step of the last committed checkpoint
  bool stopping_ = false, ended_ = false;
  Instant last_checkpoint_, last_commit_, last_progress_;
  double last_loss_ = 0, samples_per_second_ = 0;
  std::map<std::string, double> metrics_;
  std::vector<proto::StageStatus> stages_;
};

}  // namespace weft::broker
