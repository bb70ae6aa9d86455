// What a peer finds out about its own device before it offers it: how fast it is.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"
#include "peer/service/trial.h"
#include "peer/service/unit_problems.h"
#include "plan/cost.h"
#include "plan/device.h"

namespace weft::peer {

// Times small graphs on the backend, round by round, and finds the rates with which plan::seconds_of predicts
// these times. Each graph determines one rate, given the rates found before. Only the fastest warm runs
// count. Graphs that multiply grow until a run takes a millisecond or two, if they fit into a 64th of the
// memory that is free, and into a 16th of what is `offered` (0: that does not matter). Rounds block: on the
// thread that drives the backend, while nothing else runs there. Errors: the backend's own.
class DeviceMeter {
 public:
  explicit DeviceMeter(Backend& backend, Bytes offered = {}, TrialClock clock = wall_clock);

  Status round();
  // REQUIRES: a round was made.
  plan::Rates rates() const;

 private:
  // The least that it took, and what a plan knows of it.
  struct Measured {
    int64_t times = 0;  // 0: it did not run yet
    double seconds = 0;
    std::vector<plan::GroupCost> groups;
    std::vector<Bytes> updated;
  };
  Status measure(const UnitProblem& problem, Measured& measured);
  Status measure_launch();
  Result<Trial> fitting_trial(const UnitProblem& problem, Measured& measured);
  static double predicted(const Measured& measured, const plan::Rates& rates);
  static double solve(const UnitProblem& problem, const Measured& measured, plan::Rates rates);

  Backend& backend_;
  TrialClock clock_;
  Bytes share_;
  double kernel_seconds_ = 1;
  const std::vector<UnitProblem> problems_ = unit_problems();
  std::vector<Measured> measured_;  // by problem
};

// Two or three rounds, of about a second each on a processor. Not for a null backend: its rates are given.
Result<plan::Rates> measure_rates(Backend& backend, Bytes offered = {});

}  // namespace weft::peer
