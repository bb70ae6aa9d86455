// Around a restart: how jobs are left, and then jobs and their runs from the records, and the stages that
// come back one by one.
#include <algorithm>

#include "broker/broker.h"

namespace weft::broker {

using proto::JobState;

namespace {
BrokerOptions completed(BrokerOptions options) {
  options.pool.lease = options.lease;
  return options;
}

// As it was admitted; empty: it is known no more.
std::string name_of_peer(const PeerId& peer, const StoredState& state) {
  std::string name;
  for (const PrincipalAdmitted& principal : state.principals)
    if (principal.principal == peer && principal.role == proto::Role::Peer) name = principal.name;
  return name;
}
}  // namespace

Broker::Broker(BrokerOptions options, const StoredState& state)
    : options_(completed(std::move(options))),
      pool_(options_.pool, step_),
      book_(step_),
      runs_(options_, step_, pool_, book_),
      stand_bys_(options_, step_, pool_, book_, runs_),
      served_jobs_(step_, book_),
      probes_(options_, step_, pool_, book_, stand_bys_),
      availability_(pool_, stand_bys_, probes_),
      phases_(options_, step_, pool_, book_),
      recovery_(step_, pool_, book_, stand_bys_, availability_, runs_, phases_),
      scheduler_(options_, {step_, pool_, book_, runs_, stand_bys_, served_jobs_, probes_}, availability_,
                 phases_, recovery_),
      replanning_(options_, step_, pool_, book_, runs_, availability_, scheduler_),
      clients_(options_, step_, pool_, book_, runs_, probes_, phases_,
               [this](Peer& peer, ErrorCode code, const std::string& why) {
                 membership_.disconnect(peer, code, why);
               }),
      admission_(options_, step_, pool_, book_, clients_),
      membership_(options_, {step_, pool_, book_, runs_, stand_bys_, probes_}, recovery_, clients_,
                  admission_) {
  for (const PrincipalAdmitted& principal : state.principals) admission_.load(principal);
  for (const PeerBanned& ban : state.bans) {
    pool_.load_ban(ban.peer);
    Peer& peer = pool_.enter(ban.peer);  // listed, so that the ban can be lifted
    peer.name = pool_.free_name(ban.name, ban.peer);
  }
  book_.set_next(state.jobs.empty() ? state.next_job
                                    : std::max(state.next_job, state.jobs.rbegin()->first + 1));
  for (const auto& [number, stored] : state.jobs)
    if (stored.last.state < JobState::Finished) load_job(stored, state);
}

void Broker::load_job(const StoredJob& stored, const StoredState& state) {
  Job& job = book_.load(stored);
  job.drift = Drift(options_.drift);
  if (job.state == JobState::Queued) return;
  job.stop_requested = job.state == JobState::Stopping;
  const bool goes_on = (job.state == JobState::Running || job.state == JobState::Stopping) && stored.run &&
                       stored.run->plan && !stored.run->plan->stages.empty();
  if (!goes_on) {
    const Planned planned = stored.last.planned;
    const bool was_planned = job.state == JobState::Planning && planned != Planned::PlacedAgain;
    job.phase = phase::Waiting{.was_being_planned = was_planned,
                               .ends_brokers = was_planned && planned == Planned::OnceMore};
    job.state = JobState::Waiting;
    job.reason = "the broker was restarted";
    if (!job.stop_requested) job.step = job.points.steps_made();  // else it ends, and says what is lost
    return;
  }
  job.steps = InnerSteps(*stored.run->plan).in_all();
  // The peers of runs that go on are known by name before they are back.
  for (const PlannedStage& stage : stored.run->plan->stages) {
    Peer& peer = pool_.enter(stage.peer);
    peer.stages.try_emplace(job.number(), StageGiven{.serves = stored.run->plan->serves()});
    if (peer.name.empty()) peer.name = pool_.free_name(name_of_peer(stage.peer, state), stage.peer);
  }
  runs_.resume(job, crew_of(stored.run->plan, pool_), stored);
}

// Whoever starts next must not take this end for one that planning brought about.
void Broker::leave() {
  for (auto& [number, job] : book_.jobs())
    if (job.planning() != nullptr) phases_.wait(job, "the broker was ended while it was planned");
  step_.jobs = step_.probes = step_.stand_bys = false;
}

void Broker::first_step() {
  stepped_ = true;
  for (auto& [id, peer] : pool_.peers()) peer.last_heard = step_.now.monotonic;
  for (auto& [number, job] : book_.jobs()) {
    phase::Running* at = job.running();
    if (at == nullptr) {
      if (job.stop_requested)
        phases_.end(job, JobState::Stopped, "stopped by its user; the broker was restarted");
      else if (const phase::Waiting* waiting = job.waiting(); waiting != nullptr && waiting->ends_brokers)
        phases_.end(
            job, JobState::Failed,
            "the broker ended twice while this job was planned; if nothing else ended it, the model is too "
            "much for it");
      continue;
    }
    at->away_since = step_.now.monotonic;
    const PlannedRun& plan = *at->crew.plan;
    if (!plan.serves())  // nothing feeds such a job
      step_.effect(OpenFeed{number, plan.data_key, job.submitted.submission, plan.training.microbatch_size});
    for (const proto::Secret& ticket : plan.relay_tickets) step_.effect(GrantRelay{ticket});
    step_.log("info run_goes_on job=" + job.text() + " step=" + std::to_string(job.log.recorded_step));
    if (job.state == JobState::Stopping) runs_.request_stop(job, /*to_go_on=*/false);
  }
  step_.transient = true;
}

}  // namespace weft::broker
