#include "broker/replan.h"

#include <algorithm>
#include <cstdio>

namespace weft::broker {

namespace {
constexpr double kRateUnlimited = 125e6;                // bytes a second
constexpr double kMoveSeconds = 2;                      // connecting, compiling, the first steps
constexpr Duration kFollowMax = std::chrono::hours(3);  // some GB over a slow line

uint64_t steps_made(const Run& run) { return run.inner().made(run.committed_step()); }
}  // namespace

void Replanning::look_at_runs() {
  // Who waits for peers would take those that a move lets go for a moment.
  for (auto& [number, job] : book_.jobs())
    if (job.waiting() != nullptr || job.planning() != nullptr) return;
  for (auto& [number, job] : book_.jobs()) {
    const phase::Running* at = job.running();
    if (at != nullptr && !at->over && at->run->training() && !at->moving && !job.stop_requested &&
        !at->away_since)
      look_at(job);
  }
}

// Whether there may be more replicas than there are: somebody came since the plan was made, or last looked
// at.
bool Replanning::may_grow(const Job& job) const {
  const PlannedRun& plan = *job.crew()->plan;
  if (plan.replicas_max <= InnerSteps(plan).replicas() || !job.drift.has_news(scheduler_.belief()))
    return false;
  return availability_.to_move(job).size() > plan.stages.size();
}

void Replanning::look_at(Job& job) {
  const phase::Running& at = *job.running();
  if (!at.run->followers().empty()) return follow(job);
  if (!job.drift.is_time(step_.now.monotonic, steps_made(*at.run), may_grow(job))) return;
  if (const auto before = job.drift.take_disappointment()) {
    char text[160];
    std::snprintf(text, sizeof text, "the move did not pay: a step took %.3g s before it and takes %.3g s",
                  *before, job.drift.step_seconds());
    return book_.notice(job, text);
  }
  if (!job.drift.take_news(scheduler_.belief())) return;
  StartPlanning request = scheduler_.planning_request(job, availability_.to_move(job));
  std::vector<uint32_t> placed;
  for (const PlannedStage& stage : at.crew.plan->stages) {
    const auto own = std::find_if(request.candidates.begin(), request.candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.peer == stage.peer; });
    if (own == request.candidates.end()) return;  // one of them leaves: then it is planned again anyway
    placed.push_back(static_cast<uint32_t>(own - request.candidates.begin()));
  }
  step_.effect(Reconsider{std::move(request), at.crew.plan, std::move(placed)});
}

// ---- replicas that follow the others

void Replanning::on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready) {
  phase::Running* at = job.running();
  if (at == nullptr || at->over) return;
  Followers& followers = at->run->followers();
  if (!ready.follows && followers.has(stage)) followers.came(stage);
  for (uint32_t s = 0; s < at->crew.stages.size(); ++s)  // that had it all when the run began
    if (followers.has(s) && at->crew.stages[s].has_all) followers.came(s);
  if (followers.are_there()) take_in(job);
}

// They make steps from the next agreement on.
void Replanning::take_in(Job& job) {
  phase::Running& at = *job.running();
  if (at.moving || job.stop_requested) return;
  std::string names;
  for (uint32_t s = 0; s < at.crew.plan->stages.size(); ++s) {
    const PlannedStage& planned = at.crew.plan->stages[s];
    job.move_to.push_back(planned.peer);
    if (at.run->followers().has(s)) names += (names.empty() ? "" : ", ") + pool_.at(planned.peer).name;
  }
  book_.notice(job, names + ": has what the others have, and takes part when they agree next");
  at.moving = true;
  runs_.request_stop(job, /*to_go_on=*/true);
}

// As long as somebody follows nothing is kept that the run could go back to, and nobody else joins it.
void Replanning::follow(Job& job) {
  const phase::Running& at = *job.running();
  if (!at.run->followers().are_awaited() || step_.now.monotonic - at.since < kFollowMax) return;
  for (uint32_t s = 0; s < at.crew.plan->stages.size() && !at.moving; ++s) {
    if (!at.run->followers().has(s)) continue;
    const PeerId peer = at.crew.plan->stages[s].peer;
    job.losses.excluded.insert(peer);
    runs_.leave_out(job, pool_.at(peer), "it was not given in time what the others have");
  }
}

// Seconds: a snapshot, and fetching it elsewhere. Where it stays with the replicas who comes fetches about
// what the first ones did.
double Replanning::cost_of_move(const Job& job) const {
  if (job.running()->run->rounds().do_stay()) return kMoveSeconds + 2 * seconds(job.running()->loading_took);
  const double rate =
      options_.run.copy_rate > 0 ? static_cast<double>(options_.run.copy_rate) : kRateUnlimited;
  const PlannedRun& plan = *job.crew()->plan;
  const int64_t bytes = largest_copied_bytes(plan) + largest_loaded_bytes(plan);
  return kMoveSeconds + seconds(job.running()->loading_took) + static_cast<double>(bytes) / rate;
}

void Replanning::on_reconsidered(const Reconsidered& event) {
  Job* found = book_.find(event.job);
  phase::Running* at = found != nullptr ? found->running() : nullptr;
  if (at == nullptr || at->over || found->plan_version != event.plan_version || at->moving ||
      found->stop_requested)
    return;
  Job& job = *found;
  if (!event.other) {
    step_.log("warning not_reconsidered job=" + std::to_string(event.job) + " what=\"" +
              event.other.error().message + "\"");
    return;
  }
  const double cost = cost_of_move(job);
  const uint64_t left = at->run->inner().in_all() - steps_made(*at->run);
  const uint32_t replicas = at->run->inner().replicas();
  const bool grows = event.other->replicas > replicas;
  const bool moves = !event.other->peers.empty() &&
                     job.drift.pays(event.other->as_it_is, event.other->as_planned, left, cost, grows);
  char text[240];
  std::snprintf(text, sizeof text,
                "a step takes %.3g s, of which %.3g s are predicted by now; planned anew %.3g s",
                job.drift.step_seconds(), seconds(event.other->as_it_is), seconds(event.other->as_planned));
  step_.log("info reconsidered job=" + std::to_string(event.job) + " moves=" + (moves ? "yes" : "no") +
            " what=\"" + text + "\"");
  if (!moves) return;
  std::snprintf(text + std::char_traits<char>::length(text), 80, ": moving, which takes about %.0f s", cost);
  if (grows) {
    std::snprintf(text, sizeof text,
                  "%u %s %u when they agree next: a step of the run will take %.2g of its time", replicas,
                  replicas == 1 ? "replica becomes" : "replicas become", event.other->replicas,
                  seconds(event.other->as_planned) / seconds(event.other->as_it_is));
  } else {
    job.drift.moves();
  }
  book_.notice(job, text);
  at->moving = true;
  job.move_to = event.other->peers;
  runs_.request_stop(job, /*to_go_on=*/true);
}

}  // namespace weft::broker
