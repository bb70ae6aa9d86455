// A run that goes on is looked at now and then: planned anew under what is believed by now, and moved to that
// plan where it pays (broker/run/drift.h).
#include <algorithm>
#include <cstdio>

#include "broker/broker.h"

namespace weft::broker {

namespace {
constexpr double kRateUnlimited = 125e6;  // bytes a second
constexpr double kMoveSeconds = 2;        // connecting, compiling, the first steps
}  // namespace

// ---- looking

Belief Broker::belief() const {
  return {.links = probes_.version(), .devices = pool_.devices_version(), .pool = pool_.version()};
}

// Those that may take a stage of a run that goes on: nobody's bits change for its speed.
std::vector<Candidate> Broker::candidates_to_move(const Job& job) const {
  std::vector<Candidate> all = candidates(job, /*own=*/true);
  const PlannedRun& plan = *job.crew()->plan;
  if (plan.equal_bits && job.bits.are_equal)
    std::erase_if(
        all, [&](const Candidate& candidate) { return candidate.device.fingerprint != plan.fingerprint; });
  return all;
}

void Broker::look_at_runs() {
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

void Broker::look_at(Job& job) {
  const phase::Running& at = *job.running();
  if (!job.drift.is_time(step_.now.monotonic, at.run->committed_step())) return;
  if (const auto before = job.drift.take_disappointment()) {
    char text[160];
    std::snprintf(text, sizeof text, "the move did not pay: a step took %.3g s before it and takes %.3g s",
                  *before, job.drift.step_seconds());
    return book_.notice(job, text);
  }
  if (!job.drift.has_news(belief())) return;
  StartPlanning request = planning_request(job, candidates_to_move(job));
  std::vector<uint32_t> placed;
  for (const PlannedStage& stage : at.crew.plan->stages) {
    const auto own = std::find_if(request.candidates.begin(), request.candidates.end(),
                                  [&](const Candidate& candidate) { return candidate.peer == stage.peer; });
    if (own == request.candidates.end()) return;  // one of them leaves: then it is planned again anyway
    placed.push_back(static_cast<uint32_t>(own - request.candidates.begin()));
  }
  step_.effect(Reconsider{std::move(request), at.crew.plan, std::move(placed)});
}

// ---- moving

// Seconds: a snapshot, and fetching it elsewhere.
double Broker::cost_of_move(const Job& job) const {
  const double rate =
      options_.run.copy_rate > 0 ? static_cast<double>(options_.run.copy_rate) : kRateUnlimited;
  const PlannedRun& plan = *job.crew()->plan;
  const int64_t bytes = largest_copied_bytes(plan) + largest_loaded_bytes(plan);
  return kMoveSeconds + seconds(job.running()->loading_took) + static_cast<double>(bytes) / rate;
}

void Broker::on_reconsidered(const Reconsidered& event) {
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
  const uint64_t left = at->run->steps() - at->run->committed_step();
  const bool moves = !event.other->peers.empty() &&
                     job.drift.pays(event.other->as_it_is, event.other->as_planned, left, cost);
  char text[240];
  std::snprintf(text, sizeof text,
                "a step takes %.3g s, of which %.3g s are predicted by now; planned anew %.3g s",
                job.drift.step_seconds(), seconds(event.other->as_it_is), seconds(event.other->as_planned));
  step_.log("info reconsidered job=" + std::to_string(event.job) + " moves=" + (moves ? "yes" : "no") +
            " what=\"" + text + "\"");
  if (!moves) return;
  std::snprintf(text + std::char_traits<char>::length(text), 80, ": moving, which takes about %.0f s", cost);
  book_.notice(job, text);
  job.drift.moves();
  at->moving = true;
  job.move_to = event.other->peers;
  runs_.request_stop(job, /*to_go_on=*/true);
}

// Whether the peers that it moves to are there and free still.
std::optional<std::vector<Candidate>> Broker::peers_to_move_to(const Job& job,
                                                               const std::vector<Candidate>& free) const {
  std::vector<Candidate> chosen;
  for (const Candidate& candidate : free)
    if (std::find(job.move_to.begin(), job.move_to.end(), candidate.peer) != job.move_to.end())
      chosen.push_back(candidate);
  if (job.move_to.empty() || chosen.size() != job.move_to.size()) return std::nullopt;
  return chosen;
}

}  // namespace weft::broker
