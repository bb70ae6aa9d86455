// Jobs: from submission through planning to their end.
#include <algorithm>

#include "broker/job_sink.h"

namespace weft::broker {

using proto::JobEventKind;
using proto::JobState;

void Broker::emit(Job& job, proto::JobEvent event) {
  event.job = job.submitted.job;
  event.sequence = ++job.last_event;
  event.unix_ms = now_.unix_ms;
  event.state = job.state;
  out_->records.push_back(std::move(event));
  job.status_dirty = true;
}

void Broker::notice(Job& job, std::string text) {
  proto::JobEvent event;
  event.kind = JobEventKind::Notice;
  event.step = job.step;
  event.text = std::move(text);
  emit(job, std::move(event));
}

void Broker::set_state(Job& job, JobState state, std::string reason) {
  if (job.state == state && job.reason == reason && job.plan_version == job.recorded_version) return;
  job.recorded_version = job.plan_version;
  job.state = state;
  job.reason = std::move(reason);
  job.since = now_.monotonic;
  out_->records.push_back(JobChanged{.job = job.submitted.job,
                                     .state = job.state,
                                     .reason = job.reason,
                                     .plan_version = job.plan_version,
                                     .step = job.step,
                                     .steps = job.steps});
  proto::JobEvent event;
  event.kind = JobEventKind::State;
  event.step = job.step;
  event.text = job.reason;
  event.diverged = job.state == JobState::Failed && job.diverged;
  emit(job, std::move(event));
  log("info job_state job=" + std::to_string(job.submitted.job) + " state=" + std::string(to_string(state)) +
      " step=" + std::to_string(job.step) + " reason=\"" + job.reason + "\"");
}

void Broker::on_submission(const SubmissionChecked& event) {
  if (!clients_.contains(event.connection)) return;
  if (!event.verdict)
    return send(event.connection,
                proto::Refusal{.code = event.verdict.error().code, .message = event.verdict.error().message});
  const auto open = std::count_if(jobs_.begin(), jobs_.end(),
                                  [](const auto& entry) { return entry.second.state < JobState::Finished; });
  if (static_cast<size_t>(open) >= options_.jobs_max)
    return send(event.connection, proto::Refusal{.code = ErrorCode::ResourceExhausted,
                                                 .message = "too many jobs are queued: try again later",
                                                 .retry = true});
  const proto::JobNumber number = jobs_.empty() ? 1 : jobs_.rbegin()->first + 1;
  Job& job = jobs_[number];
  job.drift = Drift(options_.drift);
  job.submitted = {.job = number, .submitter = {}, .submission = event.submission, .unix_ms = now_.unix_ms};
  job.since = now_.monotonic;
  out_->records.push_back(job.submitted);
  proto::JobEvent queued;
  queued.kind = JobEventKind::State;
  emit(job, std::move(queued));
  note_unknown_peers(job);
  note_old_peers(job);
  log("info job_submitted job=" + std::to_string(number) + " name=\"" + event.submission.name + "\"");
  send(event.connection, proto::JobAccepted{number});
  schedule_jobs();
}

namespace {
bool has_codecs(const PlannedRun& plan) {
  for (const PlannedStage& stage : plan.stages)
    for (const proto::StageProgram& program : stage.assignment->programs)
      for (const proto::EdgeEnd& end : program.sends)
        if (end.codec.kind != compress::Kind::Dense) return true;
  return false;
}
}  // namespace

// A name that is misspelt would leave a peer in that its user wants out.
void Broker::note_unknown_peers(Job& job) {
  std::string unknown;
  for (const std::string& name : job.submitted.submission.excluded)
    if (std::none_of(peers_.begin(), peers_.end(),
                     [&](const auto& entry) { return entry.second.name == name; }))
      unknown += (unknown.empty() ? "'" : ", '") + name + "'";
  if (!unknown.empty()) notice(job, "excluded, but not known here so far: " + unknown);
}

// What would help a job that finds too few peers is known before it waits.
void Broker::note_old_peers(Job& job) {
  std::string old;
  for (const auto& [id, peer] : peers_)
    if (peer.connection && !job.may_send(peer))
      old += (old.empty() ? "'" : ", '") + peer.name + "' (weft " + peer.software + ")";
  if (!old.empty()) notice(job, "left out, because they are too old to read compressed tensors: " + old);
}

// What a peer failed by may have passed: rather than wait for ever a job takes the risk, now and then.
void Broker::forgive(Job& job) {
  if (job.excluded.empty()) return job.forgive_at.reset();
  if (!job.forgive_at) job.forgive_at = now_.monotonic + options_.forgive_after;
  if (now_.monotonic < *job.forgive_at) return;
  log("info peers_forgiven job=" + std::to_string(job.submitted.job) +
      " count=" + std::to_string(job.excluded.size()));
  job.forgive_at.reset();
  job.excluded.clear();
  ++pool_version_;
}

// A job that lost peers goes on with its plan where others can take their stages; else, and at first, it is
// planned with whoever is free.
void Broker::schedule_jobs() {
  for (auto& [number, job] : jobs_) {
    if (job.state != JobState::Queued && job.state != JobState::Waiting) continue;
    forgive(job);
    if (job.infeasible_with == pool_version_) continue;
    std::vector<Candidate> free = candidates(job);
    if (const auto chosen = peers_to_move_to(job, free)) {
      start_planning(job, *chosen, /*again=*/false);
      continue;
    }
    job.move_to.clear();
    if (job.previous && job.unplaceable_with != pool_version_)
      if (const auto placed =
              place_previous(job, *job.previous, job.previous_memory, free, /*by_pace=*/true)) {
        std::vector<Candidate> chosen;
        for (const uint32_t candidate : *placed) chosen.push_back(free[candidate]);
        start_planning(job, std::move(chosen), /*again=*/true);
        continue;
      }
    const size_t wanted = std::max<size_t>(1, job.submitted.submission.stages);
    if (free.size() >= wanted) {
      if (waits_for_links(job, free)) continue;
      start_planning(job, std::move(free), /*again=*/false);
      continue;
    }
    set_state(job, JobState::Waiting,
              (job.previous ? "paused after step " + std::to_string(job.step) + ": waits for peers: needs "
                            : std::string("waits for peers: needs ")) +
                  std::to_string(wanted) + ", " + std::to_string(free.size()) +
                  (free.size() == 1 ? " is free" : " are free") + describe_others(job));
  }
}

// Candidates are reserved while the plan is made: another job does not get them. `again`: candidate s takes
// stage s of the plan before.
void Broker::start_planning(Job& job, std::vector<Candidate> free, bool again) {
  ++job.plan_version;
  job.forgive_at.reset();
  job.measuring_since.reset();
  job.drift.planned(belief());
  set_state(job, JobState::Planning, again ? kPlacedAgain : job.was_being_planned ? kPlannedOnceMore : "");
  for (const Candidate& candidate : free) peers_.at(candidate.peer).serving = job.submitted.job;
  peers_dirty_ = stand_bys_dirty_ = true;
  StartPlanning request{.job = job.submitted.job,
                        .plan_version = job.plan_version,
                        .submission = job.submitted.submission,
                        .candidates = std::move(free),
                        .cluster = {}};
  request.cluster = cluster_of(request.candidates);
  if (const CheckpointCommitted* point = recovery_point(job)) request.checkpoint = *point;
  request.microbatch_size = job.microbatch_size;
  request.gentler = job.gentler;
  if (again) {
    request.previous = job.previous;
    for (uint32_t s = 0; s < request.candidates.size(); ++s) request.placed.push_back(s);
  }
  job.placing_again = again;
  out_->effects.push_back(std::move(request));
}

void Broker::on_planned(const PlanningDone& event) {
  const auto at = jobs_.find(event.job);
  if (at == jobs_.end() || at->second.state != JobState::Planning ||
      at->second.plan_version != event.plan_version)
    return;  // stopped, or a peer was lost meanwhile
  Job& job = at->second;
  if (!job.placing_again) job.was_being_planned = false;
  for (auto& [id, peer] : peers_)
    if (peer.serving == event.job) peer.serving.reset();
  peers_dirty_ = stand_bys_dirty_ = true;
  const bool moves = !std::exchange(job.move_to, {}).empty();
  if (!event.plan) {
    const Error& error = event.plan.error();
    if (moves) {  // then as before
      log("warning not_moved job=" + std::to_string(event.job) + " what=\"" + error.message + "\"");
      set_state(job, JobState::Waiting, error.message);
      return schedule_jobs();
    }
    if (job.placing_again) {  // then everything anew
      job.unplaceable_with = pool_version_;
      log("warning not_placed_again job=" + std::to_string(event.job) + " what=\"" + error.message + "\"");
      set_state(job, JobState::Waiting, error.message);
      return schedule_jobs();
    }
    if (error.code ==
        ErrorCode::Infeasible) {  // waits for others to come; tried again when the pool has changed
      job.infeasible_with = pool_version_;
      return set_state(job, JobState::Waiting, error.message);
    }
    return end_job(job, JobState::Failed, error.message);
  }
  for (const PlannedStage& stage : (*event.plan)->stages) {
    const auto peer = peers_.find(stage.peer);
    if (peer == peers_.end() || !peer->second.connection || peer->second.draining) {
      set_state(job, JobState::Waiting, "a peer left while the plan was made");
      return schedule_jobs();
    }
  }
  // The planner may have found that it cannot be the plan before.
  const bool again = job.placing_again && job.previous->stages.size() == (*event.plan)->stages.size();
  set_plan(job, *event.plan);
  assign(job, again);
}

void Broker::set_plan(Job& job, std::shared_ptr<const PlannedRun> plan) {
  job.plan = std::move(plan);
  // A submission that was recorded before it said so.
  if (has_codecs(*job.plan)) job.submitted.submission.compresses = true;
  job.steps = job.plan->steps;
  job.seats.assign(job.plan->stages.size(), Seat{});
  job.copies_go_direct = job.direct_said = false;
  job.stage_bytes.clear();
  const std::map<std::string, double> usual = usual_times();
  for (uint32_t s = 0; s < job.plan->stages.size(); ++s) {
    job.stage_bytes.push_back(state_bytes(*job.plan, s));
    if (const auto peer = peers_.find(job.plan->stages[s].peer); peer != peers_.end())
      job.seats[s].times = times_of(peer->second, usual);
  }
}

void Broker::assign(Job& job, bool again) {
  const proto::JobNumber number = job.submitted.job;
  std::vector<proto::AssignStage> stages;
  for (const PlannedStage& stage : job.plan->stages) stages.push_back(*stage.assignment);
  if (!find_sources(job, stages)) {
    const std::string gone = describe_recovery_point(job);
    drop_recovery_point(job);
    return recover(job, gone + " cannot be had by those who need it");
  }
  for (const PlannedStage& stage : job.plan->stages) {
    Peer& peer = peers_.at(stage.peer);
    peer.serving = number;
    peer.standing.clear();
  }
  set_state(job, JobState::Loading, "");
  if (!job.plan->equal_bits || (job.equal_bits_with && *job.equal_bits_with != job.plan->fingerprint)) {
    if (job.equal_bits)
      notice(job, "the stages run on devices of different kinds: equal bits are no longer promised");
    job.equal_bits = false;
  }
  job.equal_bits_with = job.plan->fingerprint;
  if (again) {
    ++counters_.substitutions;
    for (size_t s = 0; s < job.plan->stages.size(); ++s) {
      const PeerId &before = job.previous->stages[s].peer, &now = job.plan->stages[s].peer;
      job.seats[s].memory = job.previous_memory[s];
      if (before != now)
        notice(job, "stage " + std::to_string(s + 1) + " goes from " + peers_.at(before).name + " to " +
                        peers_.at(now).name);
    }
  } else {
    proto::JobEvent plan;
    plan.kind = JobEventKind::Plan;
    for (const std::string& line : job.plan->explanation) plan.text += line + "\n";
    for (const PlannedStage& stage : job.plan->stages) plan.peers.push_back(peers_.at(stage.peer).name);
    plan.seconds = seconds(job.plan->predicted_step);
    if (job.plan->steps > 0 && plan.seconds > 0)
      plan.samples_per_second = job.plan->batch_size / plan.seconds;
    emit(job, std::move(plan));
  }
  out_->effects.push_back(OpenFeed{number, job.plan->data_key, {}});
  for (const proto::Secret& ticket : job.plan->relay_tickets) out_->effects.push_back(GrantRelay{ticket});
  for (size_t s = 0; s < stages.size(); ++s)
    if (!stages[s].sources.empty())
      log("info copies_from_peers job=" + std::to_string(number) + " stage=" + std::to_string(s) +
          " sources=" + std::to_string(stages[s].sources.size()));
  for (size_t s = 0; s < stages.size(); ++s) send_to_peer(job.plan->stages[s].peer, std::move(stages[s]));
}

void Broker::on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready) {
  if (job.run) return;
  const auto in_flight = static_cast<int64_t>(job.plan->stages[stage].assignment->microbatches_in_flight);
  job.seats[stage].ready = true;
  // And a copy of its state, which may lie in the same memory.
  job.seats[stage].memory =
      ready.persistent.value + in_flight * ready.microbatch.value + job.stage_bytes[stage];
  for (const Seat& seat : job.seats)
    if (!seat.ready) return;
  RunBegin begin = begin_of(job, *job.plan);
  begin.after_step = job.plan->stages[0].assignment->after_step;
  job.run =
      std::make_unique<Run>(job.submitted.job, job.plan_version, job.plan, std::move(begin), options_.run);
  out_->records.push_back(RunStarted{job.submitted.job, job.plan_version, job.plan});
  job.microbatch_size = job.plan->microbatch_size;
  job.loading_took = now_.monotonic - job.since;
  job.drift.begin(now_.monotonic, job.run->committed_step());
  set_state(job, JobState::Running, "");
  stand_bys_dirty_ = true;
  Sink sink(*this, job);
  job.run->start(now_.monotonic, sink);
}

void Broker::stop_job(Job& job) {
  if (job.state >= JobState::Finished || job.stop_requested) return;
  job.stop_requested = true;
  if (job.run) {
    set_state(job, JobState::Stopping, "asked by its user");
    Sink sink(*this, job);
    job.run->request_stop(now_.monotonic, /*to_go_on=*/false, sink);
  } else {
    end_job(job, JobState::Stopped, "stopped by its user before it ran");
  }
}

void Broker::release_peers(Job& job, const std::string& reason) {
  if (job.run) out_->records.push_back(RunEnded{job.submitted.job});
  job.run.reset();
  if (job.plan) {
    for (const proto::Secret& ticket : job.plan->relay_tickets) out_->effects.push_back(RevokeRelay{ticket});
    out_->effects.push_back(CloseFeed{job.submitted.job});
    for (const PlannedStage& stage : job.plan->stages)
      send_to_peer(stage.peer, proto::ReleaseStage{job.submitted.job, job.plan_version, reason});
    job.previous_memory = memory_of(job);
    job.previous = std::move(job.plan);
  }
  for (auto& [id, peer] : peers_)
    if (peer.serving == job.submitted.job) peer.serving.reset();
  job.plan.reset();
  job.seats.clear();
  job.stage_bytes.clear();
  job.away_since.reset();
  job.restarted = false;
  peers_dirty_ = stand_bys_dirty_ = transient_dirty_ = probes_dirty_ = true;
  ++pool_version_;
}

// From the same state the same numbers come again, with whichever peers: the job does not go on by itself.
void Broker::end_diverged(Job& job, const std::string& what) {
  job.diverged = true;
  const std::string number = std::to_string(job.submitted.job);
  end_job(
      job, JobState::Failed,
      "not finite: " + what + ": the model diverged, or who computed it is at fault; " +
          (job.checkpoints.empty() ? "there was no checkpoint yet"
                                   : "the checkpoint of step " + std::to_string(job.checkpoints.back().step) +
                                         " is kept: weft fetch " + number));
}

void Broker::end_job(Job& job, JobState state, const std::string& reason) {
  std::vector<PeerId> peers;
  if (job.plan)
    for (const PlannedStage& stage : job.plan->stages) peers.push_back(stage.peer);
  release_peers(job, state == JobState::Finished ? "the job is finished" : reason);
  // Their copies are of no use any more.
  for (const PeerId& peer : peers) send_to_peer(peer, proto::StandBy{.run = job.submitted.job});
  job.stop_requested = false;
  job.previous.reset();
  job.round.reset();
  job.round_at_broker.reset();
  job.round_is_direct = false;
  job.holders.clear();
  job.round_before.clear();
  job.losses.clear();
  set_state(job, state, reason);
  schedule_jobs();
}

}  // namespace weft::broker
