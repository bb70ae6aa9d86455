#include "broker/jobs/job_phases.h"

#include <algorithm>
#include <cmath>

namespace weft::broker {

using proto::JobState;

void JobPhases::wait(Job& job, std::string reason, phase::Waiting phase) {
  job.phase = phase;
  book_.set_state(job, JobState::Waiting, std::move(reason));
  step_.jobs = true;
}

// One more without a step between them. The first may pass at once; what fails again and again is given time,
// and at last given up, unless it serves: somebody may come who can. A service that stood for as long as it
// would be given has had that time, and it counts as a step.
void JobPhases::wait_after_loss(Job& job, const std::string& reason, Duration served) {
  const uint32_t failures = ++job.losses.in_a_row;
  if (failures >= options_.failures_max && !job.serves())
    return end(job, JobState::Failed,
               "given up after " + std::to_string(failures) +
                   " losses without a step between them: weft resume " + job.text() + " goes on from " +
                   job.points.describe() + "; the last: " + reason);
  phase::Waiting waiting;
  std::string why = reason;
  if (failures > 1) {
    constexpr uint32_t kDoublings = 20;
    const Duration pause =
        std::min(options_.failure_pause_max,
                 options_.failure_pause * (int64_t{1} << std::min(failures - 2, kDoublings)));
    if (job.serves() && served >= pause) {
      job.losses.in_a_row = 1;
    } else {
      waiting.not_before = step_.now.monotonic + pause;
      why += "; tried again in " + std::to_string(static_cast<int>(std::ceil(seconds(pause)))) + " s";
    }
  }
  job.losses.at_step = job.step;
  wait(job, why, waiting);
}

void JobPhases::release(Job& job, const std::string& reason) {
  if (job.running() != nullptr) step_.record(RunEnded{job.number()});
  if (Crew* crew = job.crew()) {
    const PlannedRun& plan = *crew->plan;
    for (const proto::Secret& ticket : plan.relay_tickets) step_.effect(RevokeRelay{ticket});
    step_.effect(CloseFeed{job.number()});
    for (const PlannedStage& stage : plan.stages)
      pool_.send(stage.peer, proto::ReleaseStage{job.number(), job.plan_version, reason});
    job.previous = {.plan = crew->plan, .memory = crew->memory()};
  }
  pool_.release(job.number());
  job.phase = phase::Waiting{};
  step_.peers = step_.stand_bys = step_.transient = step_.probes = true;
  pool_.changed();
}

void JobPhases::end(Job& job, JobState state, const std::string& reason) {
  std::vector<PeerId> peers;
  if (const Crew* crew = job.crew())
    for (const PlannedStage& stage : crew->plan->stages) peers.push_back(stage.peer);
  release(job, state == JobState::Finished ? "the job is finished" : reason);
  // Their copies are of no use any more.
  for (const PeerId& peer : peers) pool_.send(peer, proto::StandBy{.run = job.number()});
  book_.end(job, state, reason);
  step_.jobs = true;
}

}  // namespace weft::broker
