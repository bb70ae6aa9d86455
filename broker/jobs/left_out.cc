#include "broker/jobs/left_out.h"

#include <algorithm>
#include <utility>

namespace weft::broker {

bool can_leave_out(const PlannedRun& plan, const Pool& pool) {
  return std::all_of(plan.stages.begin(), plan.stages.end(), [&](const PlannedStage& stage) {
    const Peer* peer = pool.find(stage.peer);
    return peer != nullptr && peer->minor >= proto::kProtocolMinorOfLocalSteps;
  });
}

void let_go_left_out(Job& job, Pool& pool, const std::string& why) {
  phase::Running& at = *job.running();
  for (uint32_t s = 0; s < at.crew.stages.size(); ++s) {
    if (!at.run->absence().has(s) || std::exchange(at.crew.stages[s].left_out, true)) continue;
    Peer& peer = pool.at(at.crew.plan->stages[s].peer);
    pool.send(peer.id, proto::ReleaseStage{job.number(), job.plan_version, why});
    peer.stages.erase(job.number());
  }
  pool.changed();
}

void forget_left_out(proto::JobNumber job, phase::Running& at, Pool& pool) {
  for (uint32_t s = 0; s < at.crew.stages.size(); ++s) {
    if (!at.run->absence().has(s)) continue;
    at.crew.stages[s].left_out = true;
    pool.at(at.crew.plan->stages[s].peer).stages.erase(job);
  }
}

}  // namespace weft::broker
