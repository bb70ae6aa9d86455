#include "broker/scheduling.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

}  // namespace

Crew crew_of(std::shared_ptr<const PlannedRun> plan, const Pool& pool) {
  Crew crew{.plan = std::move(plan), .stages = {}, .loaded_bytes = {}, .copied_bytes = {}};
  crew.stages.resize(crew.plan->stages.size());
  const std::map<std::string, double> usual = pool.usual_times();
  for (uint32_t s = 0; s < crew.stages.size(); ++s) {
    crew.loaded_bytes.push_back(loaded_bytes(*crew.plan, s));
    crew.copied_bytes.push_back(copied_bytes(*crew.plan, s));
    if (const Peer* peer = pool.find(crew.plan->stages[s].peer))
      crew.stages[s].times = Pool::times_of(*peer, usual);
  }
  return crew;
}

// ---- planning

// What a peer failed by may have passed: rather than wait for ever a job takes the risk, now and then.
void Scheduler::forgive(Job& job) {
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

// A job that lost peers goes on with its plan where others can take their stages; else, and at first, it is
// planned with whoever is free.
void Scheduler::schedule() {
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
    std::vector<Candidate> free = availability_.of(job);
    if (const auto chosen = peers_to_move_to(job, free)) {
      start_planning(job, *chosen, /*again=*/false);
      continue;
    }
    // One that was about to grow when it lost somebody does so now.
    const bool grows = !job.move_to.empty() && job.previous.plan && job.previous.plan->replicas_max > 0;
    if (!grows) job.move_to.clear();
    if (!grows && may_place_again(job) && waiting->unplaceable_with != pool_.version())
      if (const auto placed = availability_.place_previous(job, *job.previous.plan, job.previous.memory, free,
                                                           /*by_pace=*/true)) {
        std::vector<Candidate> chosen;
        for (const uint32_t candidate : *placed) chosen.push_back(free[candidate]);
        start_planning(job, std::move(chosen), /*again=*/true);
        continue;
      }
    const size_t wanted = std::max<size_t>(1, job.submitted.submission->stages);
    if (free.size() >= wanted) {
      if (plannings >= kPlanningsMax) continue;
      const bool waits = probes_.waits_for(job, free);
      if (waits) {
        free = and_who_is_known(who_was_there(job, free), free);
        if (free.size() < wanted || job.needs_who_came) continue;
      }
      job.move_to.clear();
      start_planning(job, std::move(free), /*again=*/false);
      job.planning()->lacks_who_came = waits;
      ++plannings;
      continue;
    }
    book_.set_state(job, JobState::Waiting,
                    (job.previous.plan && !job.serves()
                         ? "paused after step " + std::to_string(job.step) + ": waits for peers: needs "
                         : std::string("waits for peers: needs ")) +
                        std::to_string(wanted) + ", " + std::to_string(free.size()) +
                        (free.size() == 1 ? " is free" : " are free") + availability_.describe_others(job));
  }
}

// Where replicas come and go the plan before may have begun after what the job goes back to. And where some
// begin with what others had, it is another plan that says so.
bool Scheduler::may_place_again(const Job& job) {
  if (!job.previous.plan) return false;
  const CheckpointCommitted* point = job.points.newest();
  if (point != nullptr && point->local && !point->local->inherited.is_whole()) return false;
  const InnerSteps inner(*job.previous.plan);
  return point != nullptr ? inner.find(point->step, point->made()).has_value()
                          : !inner.are_local() || inner.is_begun_at(0);
}

// A run that may grow goes on with those that had a part in it, whose links are known, and takes in who has
// just come later: their links are measured meanwhile.
std::vector<Candidate> Scheduler::who_was_there(const Job& job, const std::vector<Candidate>& free) {
  std::vector<Candidate> known;
  if (!job.previous.plan || job.previous.plan->replicas_max == 0) return known;
  const auto& stages = job.previous.plan->stages;
  std::copy_if(free.begin(), free.end(), std::back_inserter(known), [&](const Candidate& candidate) {
    return std::any_of(stages.begin(), stages.end(),
                       [&](const PlannedStage& stage) { return stage.peer == candidate.peer; });
  });
  return known;
}

// Of those who came meanwhile, all whose line is known by now, if not every pair.
std::vector<Candidate> Scheduler::and_who_is_known(const std::vector<Candidate>& were_there,
                                                   const std::vector<Candidate>& free) const {
  std::vector<Candidate> known;
  std::copy_if(free.begin(), free.end(), std::back_inserter(known), [&](const Candidate& candidate) {
    return (!were_there.empty() && probes_.is_known(candidate.peer, were_there)) ||
           std::any_of(were_there.begin(), were_there.end(),
                       [&](const Candidate& other) { return other.peer == candidate.peer; });
  });
  return known;
}

// Whether the peers that it moves to are there and free still.
std::optional<std::vector<Candidate>> Scheduler::peers_to_move_to(const Job& job,
                                                                  const std::vector<Candidate>& free) const {
  std::vector<Candidate> chosen;
  for (const Candidate& candidate : free)
    if (std::find(job.move_to.begin(), job.move_to.end(), candidate.peer) != job.move_to.end())
      chosen.push_back(candidate);
  if (job.move_to.empty() || chosen.size() != job.move_to.size()) return std::nullopt;
  return chosen;
}

Belief Scheduler::belief() const {
  return {.links = probes_.version(), .devices = pool_.devices_version(), .pool = pool_.version()};
}

StartPlanning Scheduler::planning_request(const Job& job, std::vector<Candidate> from) const {
  StartPlanning request{.job = job.number(),
                        .plan_version = job.plan_version,
                        .submission = job.submitted.submission,
                        .candidates = std::move(from),
                        .cluster = {}};
  request.cluster = probes_.cluster_of(request.candidates);
  if (const CheckpointCommitted* point = job.points.newest()) request.checkpoint = *point;
  request.checkpoint_is_direct = job.points.is_direct();
  // Whoever follows is planned with once more, by a copy that each has to be able to give.
  request.may_follow = job.points.stays() && std::all_of(request.candidates.begin(), request.candidates.end(),
                                                         [&](const Candidate& candidate) {
                                                           return pool_.at(candidate.peer).may_give();
                                                         });
  request.microbatch_size = job.microbatch_size;
  request.chosen = job.chosen;
  request.gentler = job.gentler;
  return request;
}

// `again`: candidate s takes stage s of the plan before.
void Scheduler::start_planning(Job& job, std::vector<Candidate> from, bool again) {
  ++job.plan_version;
  if (!again) job.drift.planned(belief());  // else whoever else is free was not asked about
  const bool once_more = job.waiting() != nullptr && job.waiting()->was_being_planned;
  job.phase = phase::Planning{.planned = again       ? Planned::PlacedAgain
                                         : once_more ? Planned::OnceMore
                                                     : Planned::Anew,
                              .pool = pool_.version()};
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

void Scheduler::on_planned(const PlanningDone& event) {
  Job* found = book_.find(event.job);
  if (found == nullptr || found->planning() == nullptr || found->plan_version != event.plan_version)
    return;  // stopped, or planned anew meanwhile
  Job& job = *found;
  const bool places_again = job.planning()->places_again();
  const uint64_t pool = job.planning()->pool;
  const bool lacked_some = job.planning()->lacks_who_came;
  const bool moves = !std::exchange(job.move_to, {}).empty();
  step_.jobs = true;  // others may have waited for their turn
  if (!event.plan) {
    const Error& error = event.plan.error();
    if (moves) {  // then as before
      step_.log("warning not_moved job=" + job.text() + " what=\"" + error.message + "\"");
      return phases_.wait(job, error.message);
    }
    if (places_again) {  // then everything anew
      step_.log("warning not_placed_again job=" + job.text() + " what=\"" + error.message + "\"");
      return phases_.wait(job, error.message, {.unplaceable_with = pool});
    }
    // Infeasible: waits for others to come; tried again when the pool is another than was asked about.
    if (error.code == ErrorCode::Infeasible && lacked_some) {
      job.needs_who_came = true;
      return phases_.wait(job, error.message);
    }
    if (error.code == ErrorCode::Infeasible)
      return phases_.wait(job, error.message, {.infeasible_with = pool});
    // One that has run is not lost for want of a plan, as where the process that made it died: it was planned
    // before.
    const bool has_run = job.microbatch_size != 0 || job.points.newest() != nullptr || job.serves();
    if (!has_run) return phases_.end(job, JobState::Failed, error.message);
    book_.notice(job, "it could not be planned anew: " + error.message);
    return phases_.wait_after_loss(job, error.message);
  }
  job.serving.model = (*event.plan)->served;
  if (const auto other = served_jobs_.has_name_of(job)) return phases_.wait(job, name_is_taken(job, *other));
  for (const PlannedStage& stage : (*event.plan)->stages) {
    const Peer* peer = pool_.find(stage.peer);
    if (peer == nullptr || availability_.why_not(*peer, job, /*own=*/false))
      return phases_.wait(job, peer != nullptr && !peer->is_idle() ? "another job got one of its peers first"
                                                                   : "a peer left while the plan was made");
  }
  // The planner may have found that it cannot be the plan before.
  assign(job, *event.plan,
         places_again && job.previous.plan->stages.size() == (*event.plan)->stages.size() &&
             job.previous.plan->local_steps == (*event.plan)->local_steps);
}

// ---- assignment

void Scheduler::assign(Job& job, std::shared_ptr<const PlannedRun> planned, bool again) {
  job.phase = phase::Loading{.crew = crew_of(std::move(planned), pool_), .since = step_.now.monotonic};
  Crew& crew = *job.crew();
  const PlannedRun& plan = *crew.plan;
  job.has_codecs = job.has_codecs || has_codecs(plan);
  job.steps = InnerSteps(plan).in_all();
  job.needs_who_came = false;
  job.serving = {.model = plan.served, .has_name = plan.serves()};
  const auto sources = stand_bys_.find_sources(job);
  if (!sources) {
    const std::string gone = job.points.describe();
    if (stand_bys_.lose_holders(job) == StandBys::Left::All) job.points.drop_round();
    step_.transient = true;
    return recovery_.recover(job, gone + " cannot be had by those who need it");
  }
  for (const PlannedStage& stage : plan.stages) {
    pool_.at(stage.peer).stages[job.number()] = {.serves = plan.serves()};
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
  // More replicas, or fewer, make other steps of what is done again, and count them otherwise; those that
  // begin with what others had come to other weights.
  const CheckpointCommitted* point = job.points.newest();
  const bool has_heirs = point != nullptr && point->local && !point->local->inherited.is_whole();
  if (has_heirs || (job.previous.plan && job.previous.plan->local_steps != plan.local_steps)) {
    job.log.losses.clear();
    job.losses.diverged_at = 0;
  }
  if (again) {
    ++step_.counters.substitutions;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const PeerId &before = job.previous.plan->stages[s].peer, &now = plan.stages[s].peer;
      crew.stages[s].memory = job.previous.memory[s];
      if (before != now)
        book_.notice(job, plan.name_of(static_cast<uint32_t>(s)) + " goes from " + pool_.at(before).name +
                              " to " + pool_.at(now).name);
    }
  } else {
    proto::JobEvent event;
    event.kind = JobEventKind::Plan;
    for (const std::string& line : plan.explanation) event.text += line + "\n";
    for (const PlannedStage& stage : plan.stages) {
      event.peers.push_back(pool_.at(stage.peer).name);
      if (plan.local_steps || !plan.exact_ranges.empty()) event.seats.push_back(stage.assignment->seat);
    }
    event.local_steps = plan.local_steps;
    if (has_heirs) event.inherited = point->local->inherited;
    event.seconds = seconds(plan.predicted_step);
    if (plan.training.steps > 0 && event.seconds > 0)
      event.samples_per_second =
          static_cast<double>(uint64_t{plan.training.batch_size} * InnerSteps(plan).makers()) / event.seconds;
    book_.emit(job, std::move(event));
  }
  step_.effect(OpenFeed{job.number(), plan.data_key, {}});
  for (const proto::Secret& ticket : plan.relay_tickets) step_.effect(GrantRelay{ticket});
  for (size_t s = 0; s < plan.stages.size(); ++s) send_stage(job, plan.stages[s], (*sources)[s]);
}

// As it was planned where nothing is said beside it: then nobody encodes it again.
void Scheduler::send_stage(const Job& job, const PlannedStage& stage, const StateSources& sources) {
  proto::AssignStage assignment = *stage.assignment;
  if (sources.empty()) return pool_.send(stage.peer, std::move(assignment), stage.assignment.bytes());
  assignment.sources = sources.sources;
  assignment.lends = sources.lends;
  if (!sources.sources.empty())
    step_.log("info copies_from_peers job=" + job.text() + " stage=" + std::to_string(assignment.seat.stage) +
              " sources=" + std::to_string(sources.sources.size()));
  pool_.send(stage.peer, std::move(assignment));
}

void Scheduler::on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready) {
  phase::Loading* loading = job.loading();
  if (loading == nullptr) return;
  Crew& crew = loading->crew;
  const PlannedStage& planned = crew.plan->stages[stage];
  step_.log("info stage_ready job=" + job.text() + " " + crew.plan->fields_of(stage) +
            " peer=" + pool_.at(planned.peer).name + (ready.follows ? " follows=yes" : ""));
  crew.stages[stage].has_all = !ready.follows;
  // Without what it begins with only a follower is of use.
  if (ready.follows && !is_follower(*planned.assignment)) return;
  crew.stages[stage].ready = true;
  keep_memory(pool_, job, stage, ready.persistent, ready.microbatch);
  const bool may_have_more = pool_.at(planned.peer).device.stages > 1;
  if (crew.all_ready()) runs_.start(job);
  if (!may_have_more) return;
  // Beside it there may be room for a job that waits.
  for (auto& [number, other] : book_.jobs())
    if (phase::Waiting* waiting = other.waiting()) waiting->infeasible_with = 0;
  step_.jobs = true;
}

}  // namespace weft::broker
