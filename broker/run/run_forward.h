// Evaluation and prediction: forward passes over a data set, a few microbatches a command. What stages report
// is put together by microbatch, in whichever order it comes. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_options.h"

namespace weft::broker {

class ForwardPass {
 public:
  // `chunk`: microbatches of a command. Of a run that predicts the prediction has begun.
  ForwardPass(std::shared_ptr<const PlannedRun> plan, const RunBegin& begin, uint32_t chunk);
  // A command that a broker before this one wrote and that is not settled.
  void resume(const proto::Command& command);

  bool is_due(uint64_t step) const;  // an evaluation
  void begin_evaluation(uint64_t step);
  // Whoever evaluates was lost: what it said of that step, if it is the one, is of weights that nobody else
  // may have.
  void give_up(uint64_t step) { is_active_ = is_active_ && step_ != step; }
  // The next request; nothing: enough is under way.
  std::optional<proto::Command> next();

  // Each says whether the oldest request that is under way came forward.
  // REQUIRES: awaits(). InvalidArgument: microbatches that were not asked for.
  Result<bool> on_report(const proto::EvaluationReport& report);
  bool awaits(const proto::EvaluationReport& report) const;
  // REQUIRES: is_asked(), and not has().
  bool on_report(uint32_t stage, const proto::PredictionReport& report);
  bool is_asked(const proto::PredictionReport& report) const;
  bool has(uint32_t stage, const proto::PredictionReport& report) const;

  // The evaluation's event, once all of it is there and its step is committed. Says so once.
  std::optional<proto::JobEvent> finish(uint64_t committed);

  bool is_active() const { return is_active_; }
  bool is_complete() const { return reported_ == plan_->forward_microbatches; }
  bool is_settled(const proto::Command& command) const;  // REQUIRES: of an evaluation or prediction
  uint64_t evaluated() const { return evaluated_; }      // the step of the run of the last evaluation
  const std::map<std::string, double>& metrics() const { return metrics_; }

  // Its invariants. Internal: which one does not hold.
  Status check() const;

 private:
  bool trains() const { return plan_->training.steps != 0; }
  void begin_prediction(const RunBegin& begin);
  uint64_t samples_of(uint32_t microbatch) const;

  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  uint32_t chunk_;
  uint64_t evaluated_;  // step of the run
  std::map<std::string, double> metrics_;
  bool is_active_ = false;
  uint64_t step_ = 0;                                  // of the evaluation
  uint32_t commanded_ = 0;                             // microbatches
  uint32_t reported_ = 0;                              // all before it are complete
  std::vector<std::optional<double>> correct_;         // by microbatch
  std::vector<std::optional<double>> loss_, counted_;  // by microbatch, each term of the loss
  std::vector<std::vector<bool>> outputs_;             // prediction: by microbatch, which stages reported
  std::vector<uint32_t> reports_;                      // prediction: by microbatch, how many are there
  std::vector<std::set<std::string>> names_;           // prediction: by microbatch, of outputs that are there
};

}  // namespace weft::broker
