#include "broker/jobs/slow_stages.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace weft::broker {

double SlowStages::slowness(const Crew& crew, uint32_t stage) const {
  const PlannedStage& planned = crew.plan->stages[stage];
  if (planned.microbatch_seconds < options_.promise_min) return 0;
  uint32_t segments = 1;
  for (const proto::StageProgram& program : planned.assignment->programs)
    if (program.kind == proto::ProgramKind::Train) segments = std::max(1u, program.segment_count);
  return crew.stages[stage].work.slowness(options_, planned.microbatch_seconds / segments);
}

// Where the others have nothing to do because of it, only what was promised is left to compare it with; as
// that may be wrong, this is done once.
std::optional<SlowStage> SlowStages::on_work(Job& job, Peer& peer, const proto::StageWork& work) {
  phase::Running& at = *job.running();
  const auto own = at.crew.stage_of(peer.id);
  if (!own) return std::nullopt;
  const uint32_t stage = *own;
  StageAtWork& seat = at.crew.stages[stage];
  const auto is_new = seat.work.say(work.segments_done, work.seconds_busy);
  if (!is_new) return std::nullopt;
  if (*is_new) at.computed_at = step_.now.monotonic;
  if (!seat.work.is_whole(options_)) return std::nullopt;
  // Beside another job's stage it is not the device that is slow.
  if (peer.stages.size() > 1) {
    seat.work.end(0);
    return std::nullopt;
  }
  std::vector<double> others;
  for (uint32_t s = 0; s < at.crew.stages.size(); ++s) {
    if (!at.crew.stages[s].work.has_said()) return std::nullopt;
    if (const double other = s == stage ? 0 : slowness(at.crew, s); other > 0) others.push_back(other);
  }
  const double here = slowness(at.crew, stage);
  if (here > 0) pool_.learn_times(peer, here * seat.times);
  seat.work.end(here);
  if (others.empty() && job.losses.judged_alone) return std::nullopt;
  const double usual = usual_slowness(others);
  if (here < options_.factor * usual || at.moving || job.stop_requested) return std::nullopt;
  char times[96];
  std::snprintf(times, sizeof times, " computes %.0f times slower than promised, the others %.1f times", here,
                usual);
  return SlowStage{.job = &job,
                   .stage = stage,
                   .alone = others.empty(),
                   .what = at.crew.plan->name_of(stage) + ": peer " + peer.name + times};
}

}  // namespace weft::broker
