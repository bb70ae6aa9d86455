// Jobs and peers come together: from waiting through planning to every stage ready, and apart again.
#include <algorithm>

#include "broker/broker.h"
#include "broker/pool/candidates.h"

namespace weft::broker {

using proto::JobEventKind;
using proto::JobState;

namespace {

// Jobs that are planned at once over the same peers: each may find that another got them first.
constexpr size_t kPlanningsMax = 2;

bool has_codecs(const PlannedRun& plan) {
  for (const PlannedStage& stage : plan.stages)
    for (const proto::StageProgram& program : stage.assignment->programs)
      for (const proto::EdgeEnd& end : program.sends)
        if (end.codec.kind != compress::Kind::Dense) return true;
  return false;
}

std::string name_is_taken(const Job& job, proto::JobNumber other) {
  return "waits for a name: job " + std::to_string(other) + " serves as '" + job.serving.model.name + "'";
}

std::string describe_lack(const proto::DeviceReport& device, dag::Arithmetic wanted) {
  std::string text = "has no arithmetic in " + std::string(to_string(wanted)) + ", only in ";
  for (size_t i = 0; i < device.arithmetic.size(); ++i)
    text += (i == 0 ? "" : " and ") + std::string(to_string(device.arithmetic[i]));
  return text;
}

}  // namespace

// ---- who may be had

std::optional<std::string> Broker::why_not(const Peer& peer, const Job& job, bool own) const {
  if (peer.other_version) return "speaks another version";
  if (!peer.connection) return "is away";
  if (job.excludes(peer.name)) return "is excluded by the job";
  if (!job.may_send(peer))
    return "cannot read compressed tensors: its weft (" + peer.software + ") is too old";
  if (!job.can_skip(peer))
    return "cannot skip steps that diverge: its weft (" + peer.software + ") is too old";
  if (!job.is_new_enough(peer))
    return "cannot do what the job asks for: its weft (" + peer.software + ") is too old";
  if (!job.suits(peer)) return describe_lack(peer.device, job.submitted.submission->arithmetic);
  if (job.losses.excluded.contains(peer.id)) return "failed this job before";
  if (peer.device_lost) return "has lost its device";
  if (peer.draining) return "is leaving";
  if (peer.serving && !(own && peer.serving == job.number()))
    return "works on job " + std::to_string(*peer.serving);
  if (!peer.serving && pool_.is_left_out(peer)) return "is left out for a while: it failed stage after stage";
  return std::nullopt;
}

// The peers that a waiting job does not get, by name.
std::string Broker::describe_others(const Job& job) const {
  constexpr size_t kNamesMax = 8;
  std::vector<std::string> others;
  for (const auto& [id, peer] : pool_.peers())
    if (const auto why = why_not(peer, job, false)) others.push_back(peer.name + " " + *why);
  std::sort(others.begin(), others.end());
  std::string text;
  for (size_t i = 0; i < std::min(others.size(), kNamesMax); ++i) text += "; " + others[i];
  if (others.size() > kNamesMax) text += "; and " + std::to_string(others.size() - kNamesMax) + " more";
  return text;
}

std::vector<Candidate> Broker::candidates(const Job& job, bool own) const {
  std::vector<Candidate> free;
  const std::map<std::string, double> usual = pool_.usual_times();
  for (const auto& [id, peer] : pool_.peers())
    if (!why_not(peer, job, own)) {
      free.push_back({id, peer.name, peer.device});
      slow_down(free.back().device.rates, Pool::times_of(peer, usual));
    }
  return free;
}

// What a peer failed by may have passed: rather than wait for ever a job takes the risk, now and then.
void Broker::forgive(Job& job) {
  phase::Waiting& waiting = *job.waiting();
  if (job.losses.excluded.empty()) return waiting.forgive_at.reset();
  if (!waiting.forgive_at) waiting.forgive_at = step_.now.monotonic + options_.forgive_after;
  if (step_.now.monotonic < *waiting.forgive_at) return;
  step_.log("info peers_forgiven job=" + job.text() + " count=" + std::to_string(job.losses.excluded.size()));
  waiting.forgive_at.reset();
  job.losses.excluded.clear();
  job.losses.blamed.clear();
  pool_.changed();
}

// ---- planning

// A job that lost peers goes on with its plan where others can take their stages; else, and at first, it is
// planned with whoever is free.
void Broker::schedule_jobs() {
  size_t plannings = 0;
  for (auto& [number, job] : book_.jobs())
    if (const phase::Planning* planning = job.planning()) plannings += !planning->places_again();
  for (auto& [number, job] : book_.jobs()) {
    phase::Waiting* waiting = job.waiting();
    if (waiting == nullptr) continue;
    if (waiting->not_before && step_.now.monotonic < *waiting->not_before) continue;
    forgive(job);
    if (const auto other = served_jobs_.has_name_of(job)) {
      book_.set_state(job, JobState::Waiting, name_is_taken(job, *other));
      continue;
    }
    if (waiting->infeasible_with == pool_.version()) continue;
    std::vector<Candidate> free = candidates(job);
    if (const auto chosen = peers_to_move_to(job, free)) {
      start_planning(job, *chosen, /*again=*/false);
      continue;
    }
    job.move_to.clear();
    if (job.previous.plan && waiting->unplaceable_with != pool_.version())
      if (const auto placed =
              place_previous(job, *job.previous.plan, job.previous.memory, free, /*by_pace=*/true)) {
        std::vector<Candidate> chosen;
        for (const uint32_t candidate : *placed) chosen.push_back(free[candidate]);
        start_planning(job, std::move(chosen), /*again=*/true);
        continue;
      }
    const size_t wanted = std::max<size_t>(1, job.submitted.submission->stages);
    if (free.size() >= wanted) {
      if (plannings >= kPlanningsMax || probes_.waits_for(job, free)) continue;
      start_planning(job, std::move(free), /*again=*/false);
      ++plannings;
      continue;
    }
    book_.set_state(job, JobState::Waiting,
                    (job.previous.plan && !job.serves()
                         ? "paused after step " + std::to_string(job.step) + ": waits for peers: needs "
                         : std::string("waits for peers: needs ")) +
                        std::to_string(wanted) + ", " + std::to_string(free.size()) +
                        (free.size() == 1 ? " is free" : " are free") + describe_others(job));
  }
}

StartPlanning Broker::planning_request(const Job& job, std::vector<Candidate> from) const {
  StartPlanning request{.job = job.number(),
                        .plan_version = job.plan_version,
                        .submission = job.submitted.submission,
                        .candidates = std::move(from),
                        .cluster = {}};
  request.cluster = probes_.cluster_of(request.candidates);
  if (const CheckpointCommitted* point = job.points.newest()) request.checkpoint = *point;
  request.microbatch_size = job.microbatch_size;
  request.gentler = job.gentler;
  return request;
}

// `again`: candidate s takes stage s of the plan before.
void Broker::start_planning(Job& job, std::vector<Candidate> from, bool again) {
  ++job.plan_version;
  job.drift.planned(belief());
  const bool once_more = job.waiting() != nullptr && job.waiting()->was_being_planned;
  job.phase = phase::Planning{again ? Planned::PlacedAgain : once_more ? Planned::OnceMore : Planned::Anew};
  book_.set_state(job, JobState::Planning,
                  again       ? "others take its stages"
                  : once_more ? "planned once more, for the broker ended while it was planned"
                              : "");
  StartPlanning request = planning_request(job, std::move(from));
  if (again) {
    request.previous = job.previous.plan;
    for (uint32_t s = 0; s < request.candidates.size(); ++s) request.placed.push_back(s);
  }
  step_.effect(std::move(request));
}

void Broker::wait(Job& job, std::string reason, phase::Waiting phase) {
  job.phase = phase;
  book_.set_state(job, JobState::Waiting, std::move(reason));
  step_.jobs = true;
}

void Broker::on_planned(const PlanningDone& event) {
  Job* found = book_.find(event.job);
  if (found == nullptr || found->planning() == nullptr || found->plan_version != event.plan_version)
    return;  // stopped, or planned anew meanwhile
  Job& job = *found;
  const bool places_again = job.planning()->places_again();
  const bool moves = !std::exchange(job.move_to, {}).empty();
  step_.jobs = true;  // others may have waited for their turn
  if (!event.plan) {
    const Error& error = event.plan.error();
    if (moves) {  // then as before
      step_.log("warning not_moved job=" + job.text() + " what=\"" + error.message + "\"");
      return wait(job, error.message);
    }
    if (places_again) {  // then everything anew
      step_.log("warning not_placed_again job=" + job.text() + " what=\"" + error.message + "\"");
      return wait(job, error.message, {.unplaceable_with = pool_.version()});
    }
    // Infeasible: waits for others to come; tried again when the pool has changed.
    if (error.code == ErrorCode::Infeasible)
      return wait(job, error.message, {.infeasible_with = pool_.version()});
    // One that has run is not lost for want of a plan, as where the process that made it died: it was planned
    // before.
    const bool has_run = job.microbatch_size != 0 || job.points.newest() != nullptr || job.serves();
    if (!has_run) return end_job(job, JobState::Failed, error.message);
    book_.notice(job, "it could not be planned anew: " + error.message);
    return wait_after_loss(job, error.message);
  }
  job.serving.model = (*event.plan)->served;
  if (const auto other = served_jobs_.has_name_of(job)) return wait(job, name_is_taken(job, *other));
  for (const PlannedStage& stage : (*event.plan)->stages) {
    const Peer* peer = pool_.find(stage.peer);
    if (peer == nullptr || why_not(*peer, job, /*own=*/false))
      return wait(job, peer != nullptr && peer->serving ? "another job got one of its peers first"
                                                        : "a peer left while the plan was made");
  }
  // The planner may have found that it cannot be the plan before.
  assign(job, *event.plan, places_again && job.previous.plan->stages.size() == (*event.plan)->stages.size());
}

// ---- assignment

Crew Broker::crew_of(std::shared_ptr<const PlannedRun> plan) const {
  Crew crew{.plan = std::move(plan), .stages = {}, .loaded_bytes = {}, .copied_bytes = {}};
  crew.stages.resize(crew.plan->stages.size());
  const std::map<std::string, double> usual = pool_.usual_times();
  for (uint32_t s = 0; s < crew.stages.size(); ++s) {
    crew.loaded_bytes.push_back(loaded_bytes(*crew.plan, s));
    crew.copied_bytes.push_back(copied_bytes(*crew.plan, s));
    if (const Peer* peer = pool_.find(crew.plan->stages[s].peer))
      crew.stages[s].times = Pool::times_of(*peer, usual);
  }
  return crew;
}

void Broker::assign(Job& job, std::shared_ptr<const PlannedRun> planned, bool again) {
  job.phase = phase::Loading{.crew = crew_of(std::move(planned)), .since = step_.now.monotonic};
  Crew& crew = *job.crew();
  const PlannedRun& plan = *crew.plan;
  job.has_codecs = job.has_codecs || has_codecs(plan);
  job.steps = plan.training.steps;
  job.serving = {.model = plan.served, .has_name = plan.serves()};
  const auto sources = stand_bys_.find_sources(job);
  if (!sources) {
    const std::string gone = job.points.describe();
    job.points.drop_round();
    step_.transient = true;
    return recover(job, gone + " cannot be had by those who need it");
  }
  for (const PlannedStage& stage : plan.stages) {
    pool_.at(stage.peer).serving = job.number();
    stand_bys_.forget(stage.peer);
  }
  step_.peers = step_.stand_bys = true;
  book_.set_state(job, JobState::Loading, "");
  if (!plan.equal_bits || (job.bits.fingerprint && *job.bits.fingerprint != plan.fingerprint)) {
    if (job.bits.are_equal)
      book_.notice(job, "the stages run on devices of different kinds: equal bits are no longer promised");
    job.bits.are_equal = false;
  }
  job.bits.fingerprint = plan.fingerprint;
  if (again) {
    ++step_.counters.substitutions;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const PeerId &before = job.previous.plan->stages[s].peer, &now = plan.stages[s].peer;
      crew.stages[s].memory = job.previous.memory[s];
      if (before != now)
        book_.notice(job, "stage " + std::to_string(s + 1) + " goes from " + pool_.at(before).name + " to " +
                              pool_.at(now).name);
    }
  } else {
    proto::JobEvent event;
    event.kind = JobEventKind::Plan;
    for (const std::string& line : plan.explanation) event.text += line + "\n";
    for (const PlannedStage& stage : plan.stages) event.peers.push_back(pool_.at(stage.peer).name);
    event.seconds = seconds(plan.predicted_step);
    if (plan.training.steps > 0 && event.seconds > 0)
      event.samples_per_second = plan.training.batch_size / event.seconds;
    book_.emit(job, std::move(event));
  }
  step_.effect(OpenFeed{job.number(), plan.data_key, {}});
  for (const proto::Secret& ticket : plan.relay_tickets) step_.effect(GrantRelay{ticket});
  for (size_t s = 0; s < plan.stages.size(); ++s) send_stage(job, plan.stages[s], (*sources)[s]);
}

// As it was planned where nothing is said beside it: then nobody encodes it again.
void Broker::send_stage(const Job& job, const PlannedStage& stage, const StateSources& sources) {
  proto::AssignStage assignment = *stage.assignment;
  if (sources.empty()) return pool_.send(stage.peer, std::move(assignment), stage.assignment.bytes());
  assignment.sources = sources.sources;
  assignment.lends = sources.lends;
  if (!sources.sources.empty())
    step_.log("info copies_from_peers job=" + job.text() + " stage=" + std::to_string(assignment.seat.stage) +
              " sources=" + std::to_string(sources.sources.size()));
  pool_.send(stage.peer, std::move(assignment));
}

void Broker::on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready) {
  phase::Loading* loading = job.loading();
  if (loading == nullptr) return;
  Crew& crew = loading->crew;
  const auto in_flight = static_cast<int64_t>(crew.plan->stages[stage].assignment->microbatches_in_flight);
  crew.stages[stage].ready = true;
  // And a copy of its state, which may lie in the same memory.
  crew.stages[stage].memory =
      ready.persistent.value + in_flight * ready.microbatch.value + crew.copied_bytes[stage];
  if (crew.all_ready()) runs_.start(job);
}

void Broker::release_peers(Job& job, const std::string& reason) {
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

void Broker::end_job(Job& job, JobState state, const std::string& reason) {
  std::vector<PeerId> peers;
  if (const Crew* crew = job.crew())
    for (const PlannedStage& stage : crew->plan->stages) peers.push_back(stage.peer);
  release_peers(job, state == JobState::Finished ? "the job is finished" : reason);
  // Their copies are of no use any more.
  for (const PeerId& peer : peers) pool_.send(peer, proto::StandBy{.run = job.number()});
  book_.end(job, state, reason);
  step_.jobs = true;
}

}  // namespace weft::broker
