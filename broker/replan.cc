// A run that goes on is looked at now and then: planned anew under what is believed by now, and moved to that
// plan where it pays (broker/drift.h).
#include <algorithm>
#include <cstdio>

#include "broker/job_sink.h"

namespace weft::broker {

using proto::JobState;

namespace {
constexpr double kRateUnlimited = 125e6;  // bytes a second
constexpr double kMoveSeconds = 2;        // connecting, compiling, the first steps
// A device is believed to have become slower or faster by more than this.
constexpr double kNews = 0.15;
constexpr double kTimesMin = 0.5, kTimesMax = 50;
}  // namespace

// ---- how fast devices are at real tasks
// ---------------------------------------------------------------------------

// By fingerprint, what devices of it need for their tasks, times what their rates promise: the one in the
// middle.
std::map<std::string, double> Broker::usual_times() const {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [id, peer] : peers_)
    if (peer.times && peer.connection) all[peer.device.fingerprint].push_back(*peer.times);
  std::map<std::string, double> usual;
  for (auto& [fingerprint, times] : all) {
    const auto middle = times.begin() + static_cast<long>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    usual[fingerprint] = *middle;
  }
  return usual;
}

// As measured, else as others of its kind.
double Broker::times_of(const Peer& peer, const std::map<std::string, double>& usual) {
  if (peer.times) return *peer.times;
  const auto of_kind = usual.find(peer.device.fingerprint);
  return of_kind == usual.end() ? 1 : of_kind->second;
}

void Broker::learn_times(Peer& peer, double times) {
  times = std::clamp(times, kTimesMin, kTimesMax);
  const double before = peer.times.value_or(1);
  if (std::abs(times - before) > kNews * std::min(times, before)) ++devices_version_;
  peer.times = times;
}

// ---- looking
// ------------------------------------------------------------------------------------------------------

Belief Broker::belief() const {
  return {.links = links_.version(), .devices = devices_version_, .pool = pool_version_};
}

// Those that may take a stage of a run that goes on: nobody's bits change for its speed.
std::vector<Candidate> Broker::candidates_to_move(const Job& job) const {
  std::vector<Candidate> all = candidates(job, /*own=*/true);
  if (job.plan->equal_bits && job.equal_bits)
    std::erase_if(all, [&](const Candidate& candidate) {
      return candidate.device.fingerprint != job.plan->fingerprint;
    });
  return all;
}

void Broker::look_at_runs() {
  // Who waits for peers would take those that a move lets go for a moment.
  for (const auto& [number, job] : jobs_)
    if (job.state == JobState::Waiting || job.state == JobState::Queued || job.state == JobState::Planning)
      return;
  for (auto& [number, job] : jobs_)
    if (job.run && job.run->training() && !job.moving && !job.stop_requested && !job.away_since) look_at(job);
}

void Broker::look_at(Job& job) {
  if (!job.drift.is_time(now_.monotonic, job.run->committed_step())) return;
  if (const auto before = job.drift.take_disappointment()) {
    char text[160];
    std::snprintf(text, sizeof text, "the move did not pay: a step took %.3g s before it and takes %.3g s",
                  *before, job.drift.step_seconds());
    return notice(job, text);
  }
  if (!job.drift.has_news(belief())) return;
  StartPlanning request{.job = job.submitted.job,
                        .plan_version = job.plan_version,
                        .submission = job.submitted.submission,
                        .candidates = candidates_to_move(job),
                        .cluster = {}};
  std::vector<uint32_t> placed;
  for (const PlannedStage& stage : job.plan->stages) {
    const auto at = std::find_if(request.candidates.begin(), request.candidates.end(),
                                 [&](const Candidate& candidate) { return candidate.peer == stage.peer; });
    if (at == request.candidates.end()) return;  // one of them leaves: then it is planned again anyway
    placed.push_back(static_cast<uint32_t>(at - request.candidates.begin()));
  }
  request.cluster = cluster_of(request.candidates);
  if (const CheckpointCommitted* point = recovery_point(job)) request.checkpoint = *point;
  request.microbatch_size = job.microbatch_size;
  request.gentler = job.gentler;
  out_->effects.push_back(Reconsider{std::move(request), job.plan, std::move(placed)});
}

// ---- moving
// -------------------------------------------------------------------------------------------------------

// Seconds: a snapshot, and fetching it elsewhere.
double Broker::cost_of_move(const Job& job) const {
  const double rate =
      options_.replication_rate > 0 ? static_cast<double>(options_.replication_rate) : kRateUnlimited;
  return kMoveSeconds + seconds(job.loading_took) +
         2 * static_cast<double>(largest_state_bytes(*job.plan)) / rate;
}

void Broker::on_reconsidered(const Reconsidered& event) {
  const auto at = jobs_.find(event.job);
  if (at == jobs_.end()) return;
  Job& job = at->second;
  if (!job.run || job.plan_version != event.plan_version || job.moving || job.stop_requested) return;
  if (!event.other) {
    log("warning not_reconsidered job=" + std::to_string(event.job) + " what=\"" +
        event.other.error().message + "\"");
    return;
  }
  const double cost = cost_of_move(job);
  const uint64_t left = job.run->steps() - job.run->committed_step();
  const bool moves = event.other->peers.size() > 0 &&
                     job.drift.pays(event.other->as_it_is, event.other->as_planned, left, cost);
  char text[240];
  std::snprintf(text, sizeof text,
                "a step takes %.3g s, of which %.3g s are predicted by now; planned anew %.3g s",
                job.drift.step_seconds(), seconds(event.other->as_it_is), seconds(event.other->as_planned));
  log("info reconsidered job=" + std::to_string(event.job) + " moves=" + (moves ? "yes" : "no") + " what=\"" +
      text + "\"");
  if (!moves) return;
  std::snprintf(text + std::char_traits<char>::length(text), 80, ": moving, which takes about %.0f s", cost);
  notice(job, text);
  job.drift.moves();
  job.moving = true;
  job.move_to = event.other->peers;
  Sink sink(*this, job);
  job.run->request_stop(now_.monotonic, /*to_go_on=*/true, sink);
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
