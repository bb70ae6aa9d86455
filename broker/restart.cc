// After a restart: jobs and their runs from the records, and the stages that come back one by one.
#include <algorithm>

#include "broker/job_sink.h"

namespace weft::broker {

using proto::JobState;

Broker::Broker(BrokerOptions options, const StoredState& state) : options_(std::move(options)) {
  options_.run.replication_rate = options_.replication_rate;
  options_.run.replicates = options_.replicates;
  for (const PrincipalAdmitted& principal : state.principals)
    known_[principal.principal].insert(principal.role);
  for (const auto& [number, stored] : state.jobs) load_job(stored);
  go_on(state);
}

void Broker::load_job(const StoredJob& stored) {
  Job& job = jobs_[stored.submitted.job];
  job.submitted = stored.submitted;
  job.state = stored.last.state;
  job.reason = stored.last.reason;
  job.plan_version = stored.last.plan_version;
  job.steps = stored.last.steps;
  job.microbatch_size = stored.microbatch_size;
  job.drift = Drift(options_.drift);
  job.checkpoints = stored.checkpoints;
  job.predictions = stored.predictions;
  job.result = stored.result;
  job.last_event = stored.last_event;
  job.recorded_step = job.step = stored.committed_step;
  job.evaluated_step = stored.evaluated_step;
  if (job.state >= JobState::Finished || job.state == JobState::Queued) return;
  job.stop_requested = job.state == JobState::Stopping;
  const bool goes_on = (job.state == JobState::Running || job.state == JobState::Stopping) && stored.run &&
                       stored.run->plan && !stored.run->plan->stages.empty();
  if (!goes_on) {
    const bool was_planned = job.state == JobState::Planning && job.reason != kPlacedAgain;
    job.was_being_planned = was_planned;
    job.ends_brokers = was_planned && job.reason == kPlannedOnceMore;
    job.state = JobState::Waiting;
    job.reason = "the broker was restarted";
    job.step = job.checkpoints.empty() ? 0 : job.checkpoints.back().step;
    return;
  }
  job.restarted = true;
  set_plan(job, stored.run->plan);
  job.plan_version = std::max(job.plan_version, stored.run->plan_version);
  job.equal_bits_with = job.plan->fingerprint;
  job.equal_bits = job.plan->equal_bits;
  job.gentler = job.plan->gentler.value_or(0);
  for (Seat& seat : job.seats) {
    seat.ready = true;
    seat.here = false;
  }
  RunBegin begin = begin_of(job, *job.plan);
  begin.after_step = job.plan->stages[0].assignment->after_step;
  job.run = std::make_unique<Run>(job.submitted.job, stored.run->plan_version, job.plan, std::move(begin),
                                  options_.run);
  job.run->resume(stored.script);
}

// The peers of runs that go on are known by name before they are back.
void Broker::go_on(const StoredState& state) {
  for (auto& [number, job] : jobs_) {
    if (!job.run) continue;
    for (const PlannedStage& stage : job.plan->stages) {
      Peer& peer = peers_[stage.peer];
      peer.id = stage.peer;
      peer.serving = number;
      for (const PrincipalAdmitted& principal : state.principals)
        if (principal.principal == stage.peer && principal.role == proto::Role::Peer)
          peer.name = free_name(principal.name, stage.peer);
      if (peer.name.empty()) peer.name = free_name("", stage.peer);
    }
  }
}

void Broker::first_step() {
  stepped_ = true;
  for (auto& [id, peer] : peers_) peer.last_heard = now_.monotonic;
  for (auto& [number, job] : jobs_) {
    job.since = now_.monotonic;
    if (job.state >= JobState::Finished) continue;
    if (job.stop_requested && !job.run) {
      end_job(job, JobState::Stopped, "stopped by its user; the broker was restarted");
      continue;
    }
    if (job.ends_brokers) {
      end_job(job, JobState::Failed,
              "the broker ended twice while this job was planned; if nothing else ended it, the model is too "
              "much for it");
      continue;
    }
    if (!job.run) continue;
    job.away_since = now_.monotonic;
    out_->effects.push_back(
        OpenFeed{number, job.plan->data_key, job.submitted.submission, job.plan->microbatch_size});
    for (const proto::Secret& ticket : job.plan->relay_tickets) out_->effects.push_back(GrantRelay{ticket});
    log("info run_goes_on job=" + std::to_string(number) + " step=" + std::to_string(job.recorded_step));
    if (job.state != JobState::Stopping) continue;
    Sink sink(*this, job);
    job.run->request_stop(now_.monotonic, /*to_go_on=*/false, sink);
  }
  transient_dirty_ = true;
}

Broker::Job* Broker::job_held(const PeerId& peer, const std::optional<proto::StageHeld>& held) {
  if (!held) return nullptr;
  const auto at = jobs_.find(held->run);
  if (at == jobs_.end() || !at->second.run || at->second.plan_version != held->plan_version) return nullptr;
  const PlannedRun& plan = *at->second.plan;
  const auto seat = plan.find(held->seat);
  return seat && plan.stages[*seat].peer == peer ? &at->second : nullptr;
}

void Broker::ask_to_resume(Job& job, Peer& peer) {
  if (!job.away_since) job.away_since = now_.monotonic;
  for (size_t s = 0; s < job.seats.size(); ++s)
    if (job.plan->stages[s].peer == peer.id) job.seats[s].here = false;
  peer.serving = job.submitted.job;
  send(*peer.connection, proto::ResumeStage{job.submitted.job, job.plan_version});
}

bool Broker::all_here(const Job& job) {
  return std::all_of(job.seats.begin(), job.seats.end(), [](const Seat& seat) { return seat.here; });
}

Status Broker::on_stage_resumed(Peer& peer, const proto::StageResumed& resumed) {
  uint32_t stage = 0;
  Job* job = job_of(peer, resumed.run, resumed.plan_version, stage);
  if (job == nullptr) return {};
  if (!job->run || job->seats[stage].here)
    return fail(ErrorCode::InvalidArgument, "it resumes a stage that it was not asked to resume");
  {
    Sink sink(*this, *job);
    job->seats[stage].here = true;
    WEFT_TRY_STATUS(job->run->on_resumed(now_.monotonic, stage, resumed.last_sequence, sink));
  }
  log("info stage_resumed job=" + std::to_string(resumed.run) + " stage=" + std::to_string(stage) +
      " peer=" + peer.name + " last_sequence=" + std::to_string(resumed.last_sequence));
  if (!job->run) return {};
  for (const proto::Secret& ticket : std::exchange(job->seats[stage].relays_waiting, {}))
    send(*peer.connection, proto::RelayInvitation{resumed.run, resumed.plan_version, ticket});
  if (!all_here(*job)) return {};
  job->away_since.reset();
  job->drift.begin(now_.monotonic, job->run->committed_step());
  if (std::exchange(job->restarted, false))
    notice(*job, "the broker was restarted; all " + std::to_string(job->seats.size()) +
                     " stages came back and go on");
  return {};
}

}  // namespace weft::broker
