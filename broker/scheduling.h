// Jobs and peers come together: from waiting through planning to every stage ready.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "broker/availability.h"
#include "broker/jobs/job_phases.h"
#include "broker/jobs/runs.h"
#include "broker/jobs/served_jobs.h"
#include "broker/links/probes.h"
#include "broker/place/stand_bys.h"
#include "broker/recovery.h"

namespace weft::broker {

// Of a plan that somebody is to carry out, each stage at the pace that its peer is known for.
Crew crew_of(std::shared_ptr<const PlannedRun> plan, const Pool& pool);

// The rooms that it takes several of.
struct SchedulerRooms {
  Step& step;
  Pool& pool;
  JobBook& book;
  Runs& runs;
  StandBys& stand_bys;
  ServedJobs& served_jobs;
  Probes& probes;
};

class Scheduler {
 public:
  Scheduler(const BrokerOptions& options, const SchedulerRooms& rooms, const Availability& availability,
            JobPhases& phases, Recovery& recovery)
      : options_(options),
        step_(rooms.step),
        pool_(rooms.pool),
        book_(rooms.book),
        runs_(rooms.runs),
        stand_bys_(rooms.stand_bys),
        served_jobs_(rooms.served_jobs),
        probes_(rooms.probes),
        availability_(availability),
        phases_(phases),
        recovery_(recovery) {}

  void schedule();
  void on_planned(const PlanningDone& event);
  void on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready);

  // What a plan that is made now rests on.
  Belief belief() const;
  StartPlanning planning_request(const Job& job, std::vector<Candidate> from) const;

 private:
  void forgive(Job& job);
  static bool may_place_again(const Job& job);
  static std::vector<Candidate> who_was_there(const Job& job, const std::vector<Candidate>& free);
  std::vector<Candidate> and_who_is_known(const std::vector<Candidate>& were_there,
                                          const std::vector<Candidate>& free) const;
  std::optional<std::vector<Candidate>> peers_to_move_to(const Job& job,
                                                         const std::vector<Candidate>& free) const;
  void start_planning(Job& job, std::vector<Candidate> from, bool again);
  void assign(Job& job, std::shared_ptr<const PlannedRun> plan, bool again);
  void send_stage(const Job& job, const PlannedStage& stage, const StateSources& sources);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  Runs& runs_;
  StandBys& stand_bys_;
  ServedJobs& served_jobs_;
  Probes& probes_;
  const Availability& availability_;
  JobPhases& phases_;
  Recovery& recovery_;
};

}  // namespace weft::broker
