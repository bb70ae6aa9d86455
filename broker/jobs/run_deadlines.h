// By when a run has to have come forward. Pure.
#pragma once

#include "broker/jobs/job.h"
#include "broker/options.h"

namespace weft::broker {

class RunDeadlines {
 public:
  explicit RunDeadlines(const BrokerOptions& options) : options_(options) {}

  // What of the job's bytes the largest stage takes to travel, at least.
  Duration transfer(const PlannedRun& plan) const;
  Duration loading(const PlannedRun& plan) const { return options_.loading_deadline + transfer(plan); }
  // Without progress. REQUIRES: the job runs.
  Duration stall(const Job& job) const;
  Duration shortest_stall(const Run& run) const;

 private:
  const BrokerOptions& options_;
};

}  // namespace weft::broker
