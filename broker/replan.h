// A run that goes on is looked at now and then: planned anew under what is believed by now, and moved to that
// plan where it pays (broker/run/drift.h); or with those that have followed it until then.
#pragma once

#include "broker/availability.h"
#include "broker/events.h"
#include "broker/jobs/runs.h"
#include "broker/scheduling.h"

namespace weft::broker {

class Replanning {
 public:
  Replanning(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book, Runs& runs,
             const Availability& availability, const Scheduler& scheduler)
      : options_(options),
        step_(step),
        pool_(pool),
        book_(book),
        runs_(runs),
        availability_(availability),
        scheduler_(scheduler) {}

  void look_at_runs();
  void on_reconsidered(const Reconsidered& event);
  // Of a run that goes on: once all that followed have what the others have, it stops, to go on with them.
  void on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready);

 private:
  void take_in(Job& job);
  void follow(Job& job);
  bool may_grow(const Job& job) const;
  void look_at(Job& job);
  double cost_of_move(const Job& job) const;

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  Runs& runs_;
  const Availability& availability_;
  const Scheduler& scheduler_;
};

}  // namespace weft::broker
