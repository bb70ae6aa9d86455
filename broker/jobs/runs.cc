#include "broker/jobs/runs.h"

#include <algorithm>
#include <cstdio>

#include "base/overloaded.h"

namespace weft::broker {

using proto::JobState;

namespace {

std::string late_peers(const Pool& pool, const Crew& crew, bool StageAtWork::*done) {
  std::string late;
  for (size_t s = 0; s < crew.stages.size(); ++s)
    if (!(crew.stages[s].*done)) late += " " + pool.at(crew.plan->stages[s].peer).name;
  return late;
}

// They have been there since then, and could have said it.
std::vector<PeerId> connected_without(const Pool& pool, const Crew& crew, bool StageAtWork::*done,
                                      Instant since) {
  std::vector<PeerId> peers;
  for (size_t s = 0; s < crew.stages.size(); ++s)
    if (const Peer* peer = pool.find(crew.plan->stages[s].peer);
        !(crew.stages[s].*done) && peer != nullptr && peer->connection && peer->connected_at <= since)
      peers.push_back(peer->id);
  return peers;
}

void note_serving_again(Job& job, Instant now, JobBook& book) {
  if (!job.losses.lost_at) return;
  char text[64];
  std::snprintf(text, sizeof text, "serving again after %.1f s", seconds(now - *job.losses.lost_at));
  job.losses.lost_at.reset();
  book.notice(job, text);
}

}  // namespace

bool can_replicas_give(const PlannedRun& plan, const Pool& pool) {
  const bool are_exact = plan.exact_ranges.size() > 1 && !plan.shares_slots();
  const bool are_local = plan.local_steps && plan.local_steps->terms.count > 1;
  const uint32_t minor = are_exact ? proto::kProtocolMinorOfKeptCopies : 0;
  return (are_exact || are_local) &&
         std::all_of(plan.stages.begin(), plan.stages.end(), [&](const PlannedStage& stage) {
           const Peer* peer = pool.find(stage.peer);
           return peer != nullptr && peer->may_give() && peer->minor >= minor;
         });
}

void Runs::give_verdict(Job& job, Verdict verdict) {
  verdict.job = job.number();
  if (phase::Running* at = job.running()) at->over = true;
  verdicts_.push_back(std::move(verdict));
}

// ---- beginning and ending

void Runs::start(Job& job) {
  phase::Loading& loaded = *job.loading();
  phase::Running at{.crew = std::move(loaded.crew),
                    .since = step_.now.monotonic,
                    .loading_took = step_.now.monotonic - loaded.since};
  const PlannedRun& plan = *at.crew.plan;
  at.run =
      std::make_unique<Run>(job.number(), job.plan_version, at.crew.plan, begin_of(job, plan), options_.run);
  at.run->let_copies_stay(options_.copies_go_direct && can_replicas_give(plan, pool_));
  step_.record(RunStarted{job.number(), job.plan_version, at.crew.plan, job.losses.diverged_at});
  job.microbatch_size = plan.training.microbatch_size;
  job.chosen = chosen_by(plan);
  job.drift.begin(step_.now.monotonic, at.run->inner().made(at.run->committed_step()));
  job.phase = std::move(at);
  book_.set_state(job, JobState::Running, plan.serves() ? "serves as " + plan.served.name : "");
  step_.stand_bys = true;
  (void)tell(job, [](Run& run, Instant now) { return run.start(now); });
  if (plan.serves()) note_serving_again(job, step_.now.monotonic, book_);
}

void Runs::resume(Job& job, Crew crew, const StoredJob& stored) {
  phase::Running at{.crew = std::move(crew), .restarted = true};
  const PlannedRun& plan = *at.crew.plan;
  job.plan_version = std::max(job.plan_version, stored.run->plan_version);
  job.bits.fingerprint = plan.fingerprint;
  job.bits.are_equal = plan.equal_bits;
  job.gentler = plan.gentler.value_or(0);
  job.losses.diverged_at = stored.run->diverged_at;
  if (plan.serves()) job.serving = {.model = plan.served, .has_name = true};
  for (StageAtWork& stage : at.crew.stages) {
    stage.ready = true;
    stage.here = stage.has_all = false;
  }
  at.run = std::make_unique<Run>(job.number(), stored.run->plan_version, at.crew.plan, begin_of(job, plan),
                                 options_.run);
  at.run->resume(stored.script);
  at.moving = at.run->is_moving();
  forget_left_out(job.number(), at, pool_);
  job.phase = std::move(at);
}

void Runs::request_stop(Job& job, bool to_go_on) {
  if (job.running()->over) return;
  (void)tell(job, [&](Run& run, Instant now) { return run.request_stop(now, to_go_on); });
}

// ---- replicas that are lost

bool Runs::leave_out(Job& job, const Peer& peer, const std::string& why) {
  phase::Running* at = job.running();
  const auto stage = at != nullptr && !at->over ? at->crew.stage_of(peer.id) : std::nullopt;
  if (!stage || at->away_since) return false;
  const PlannedRun& plan = *at->crew.plan;
  const uint32_t replica = at->run->inner().replica_of(plan.stages[*stage].assignment->seat);
  if (!can_leave_out(plan, pool_)) return false;
  bool is_left_out = false;
  (void)tell(job, [&](Run& run, Instant now) -> Result<RunEffects> {
    auto effects = run.leave_out(now, replica);
    is_left_out = effects.has_value();
    if (is_left_out) let_go_left_out(job, pool_, "its replica is left out: " + why);
    return is_left_out ? std::move(*effects) : RunEffects{};
  });
  if (is_left_out) at->moving = step_.peers = step_.stand_bys = true;
  return is_left_out;
}

// ---- what stages say

// A copy of its state may lie in the same memory.
void keep_memory(Pool& pool, Job& job, uint32_t stage, Bytes persistent, Bytes microbatch) {
  Crew& crew = *job.crew();
  const PlannedStage& planned = crew.plan->stages[stage];
  const StageGiven::Taken taken{
      .programs = persistent.value +
                  static_cast<int64_t>(planned.assignment->microbatches_in_flight) * microbatch.value,
      .copies = crew.copied_bytes[stage]};
  crew.stages[stage].memory = taken.programs + taken.copies;
  pool.at(planned.peer).stages.at(job.number()).memory = taken;
}

std::optional<Runs::Place> Runs::place_of(const Peer& peer, proto::JobNumber run,
                                          proto::PlanVersion version) {
  Job* job = peer.works_on(run) ? book_.find(run) : nullptr;
  const Crew* crew = job != nullptr && job->plan_version == version ? job->crew() : nullptr;
  const auto stage = crew != nullptr ? crew->stage_of(peer.id) : std::nullopt;
  if (!stage || (job->running() != nullptr && job->running()->over)) {
    ++step_.counters.stale_dropped;
    return std::nullopt;
  }
  return Place{job, *stage};
}

Status Runs::on_report(Peer& peer, const proto::Message& message, uint32_t blobs_missing) {
  Status status;
  const auto with_run = [&](const auto& report, const auto&... more) {
    const auto place = place_of(peer, report.run, report.plan_version);
    phase::Running* at = place ? place->job->running() : nullptr;
    if (at == nullptr) return;
    if (!at->crew.stages[place->stage].here) {
      ++step_.counters.stale_dropped;
      return;
    }
    status = tell(*place->job,
                  [&](Run& run, Instant now) { return run.on_report(now, place->stage, report, more...); });
  };
  std::visit(Overloaded{
                 [&](const proto::StepReport& m) { with_run(m); },
                 [&](const proto::CheckpointReport& m) { with_run(m, blobs_missing); },
                 [&](const proto::EvaluationReport& m) { with_run(m); },
                 [&](const proto::ComparisonReport& m) { with_run(m); },
                 [&](const proto::ReplicasLeftOut& m) { with_run(m); },
                 [&](const proto::MeanPiece& m) { with_run(m); },
                 [&](const proto::PredictionReport& m) { with_run(m); },
                 [&](const auto&) {
                   status = fail(ErrorCode::InvalidArgument,
                                 std::string(name_of(message)) + " is not for a broker");
                 },
             },
             message);
  return status;
}

Status Runs::on_stage_resumed(Peer& peer, const proto::StageResumed& resumed) {
  const auto place = place_of(peer, resumed.run, resumed.plan_version);
  if (!place) return {};
  phase::Running* at = place->job->running();
  if (at == nullptr || at->crew.stages[place->stage].here)
    return fail(ErrorCode::InvalidArgument, "it resumes a stage that it was not asked to resume");
  StageAtWork& stage = at->crew.stages[place->stage];
  stage.here = step_.served = true;
  if (resumed.persistent.value > 0)
    keep_memory(pool_, *place->job, place->stage, resumed.persistent, resumed.microbatch);
  WEFT_TRY_STATUS(tell(*place->job, [&](Run& run, Instant now) {
    return run.on_resumed(now, place->stage, resumed.last_sequence);
  }));
  step_.log("info stage_resumed job=" + place->job->text() + " " + at->crew.plan->fields_of(place->stage) +
            " peer=" + peer.name + " last_sequence=" + std::to_string(resumed.last_sequence));
  if (at->over) return {};
  for (const proto::Secret& ticket : std::exchange(stage.relays_waiting, {}))
    pool_.send(peer.id, proto::RelayInvitation{resumed.run, resumed.plan_version, ticket});
  if (!at->crew.all_here()) return {};
  at->away_since.reset();
  at->since = step_.now.monotonic;
  place->job->drift.begin(step_.now.monotonic, at->run->inner().made(at->run->committed_step()));
  if (std::exchange(at->restarted, false))
    book_.notice(*place->job, "the broker was restarted; all " +
                                  std::to_string(std::count_if(at->crew.stages.begin(), at->crew.stages.end(),
                                                               [](const StageAtWork& s) { return s.here; })) +
                                  " stages came back and go on");
  return {};
}

Job* Runs::find_ahead(const Peer& peer, const proto::StageResumed& resumed) {
  const auto place = place_of(peer, resumed.run, resumed.plan_version);
  if (!place) return nullptr;
  const phase::Running* at = place->job->running();
  const bool waits = at != nullptr && at->restarted && !at->crew.stages[place->stage].here;
  return waits && !at->run->has_given(resumed.last_sequence) ? place->job : nullptr;
}

std::vector<Job*> Runs::jobs_held(const PeerId& peer, const std::vector<proto::StageHeld>& held) {
  std::vector<Job*> jobs;
  for (const proto::StageHeld& each : held) {
    Job* job = book_.find(each.run);
    const phase::Running* at = job != nullptr ? job->running() : nullptr;
    if (at == nullptr || at->over || job->plan_version != each.plan_version) continue;
    const PlannedRun& plan = *at->crew.plan;
    const auto seat = plan.find(each.seat);
    const bool is_new = std::find(jobs.begin(), jobs.end(), job) == jobs.end();
    if (seat && plan.stages[*seat].peer == peer && is_new && !at->crew.stages[*seat].left_out)
      jobs.push_back(job);
  }
  return jobs;
}

void Runs::ask_to_resume(Job& job, Peer& peer) {
  phase::Running& at = *job.running();
  step_.served = true;
  if (!at.away_since) at.away_since = step_.now.monotonic;
  if (const auto stage = at.crew.stage_of(peer.id)) at.crew.stages[*stage].here = false;
  peer.stages.try_emplace(job.number(), StageGiven{.serves = job.serves()});
  pool_.send(peer.id, proto::ResumeStage{job.number(), job.plan_version});
}

void Runs::on_relay_waiting(const proto::Secret& ticket) {
  for (auto& [number, job] : book_.jobs()) {
    Crew* crew = job.crew();
    if (crew == nullptr) continue;
    for (size_t s = 0; s < crew->plan->stages.size(); ++s)
      for (const proto::LinkRoute& link : crew->plan->stages[s].assignment->links) {
        if (link.dials || link.relay_ticket != ticket) continue;
        if (!crew->stages[s].here) crew->stages[s].relays_waiting.insert(ticket);
        pool_.send(crew->plan->stages[s].peer, proto::RelayInvitation{number, job.plan_version, ticket});
      }
  }
}

// ---- progress

// It makes no steps: that it has run for so long is as good as one. What others failed it by may have passed.
void Runs::note_service(Job& job) {
  const phase::Running& at = *job.running();
  if (step_.now.monotonic - at.since < options_.forgive_after) return;
  job.losses.in_a_row = 0;
  job.losses.excluded.clear();
  job.losses.called_hopeless_by.clear();
  for (const PlannedStage& stage : at.crew.plan->stages)
    if (Peer* peer = pool_.find(stage.peer)) pool_.did_step(*peer);
}

void Runs::check_progress() {
  const Instant now = step_.now.monotonic;
  const auto lose = [&](Job& job, std::string why, std::vector<PeerId> excluded = {}) {
    give_verdict(job, {.kind = Verdict::Kind::Lost, .what = std::move(why), .excluded = std::move(excluded)});
  };
  for (auto& [number, job] : book_.jobs()) {
    if (job.losses.end_rests(now)) pool_.changed();
    if (phase::Running* at = job.running(); at != nullptr && !at->over) {
      if (at->away_since) {
        const Duration deadline = options_.return_deadline;
        if (now - *at->away_since > deadline)
          lose(job, "did not come back in time:" + late_peers(pool_, at->crew, &StageAtWork::here),
               connected_without(pool_, at->crew, &StageAtWork::here, now - deadline / 2));
        continue;
      }
      if (at->run->serves()) {
        note_service(job);
        continue;
      }
      (void)tell(job, [](Run& run, Instant when) { return run.on_tick(when); });
      if (at->over) continue;
      if (at->run->late()) {
        give_verdict(job, {.kind = Verdict::Kind::Late});
        continue;
      }
      const Duration deadline = deadlines_.stall(job);
      if (now - at->run->last_progress() <= deadline) continue;
      at->is_at_standstill = now - at->computed_at > deadlines_.shortest_stall(*at->run);
      give_verdict(job,
                   {.kind = Verdict::Kind::Stalled,
                    .what = "no progress for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"});
    } else if (const phase::Loading* loading = job.loading();
               loading != nullptr && now - loading->since > deadlines_.loading(*loading->crew.plan)) {
      lose(job, "not ready in time:" + late_peers(pool_, loading->crew, &StageAtWork::ready),
           connected_without(pool_, loading->crew, &StageAtWork::ready, loading->since));
    }
  }
}

std::optional<SlowStage> Runs::on_work(Peer& peer, const proto::StageWork& work) {
  Job* job = peer.works_on(work.run) ? book_.find(work.run) : nullptr;
  const phase::Running* at =
      job != nullptr && job->plan_version == work.plan_version ? job->running() : nullptr;
  if (at == nullptr || at->over || !at->run->training()) return std::nullopt;
  return slow_stages_.on_work(*job, peer, work);
}

void Runs::on_saving(const Peer& peer, const proto::StageSaving& saving) {
  Job* job = peer.works_on(saving.run) ? book_.find(saving.run) : nullptr;
  phase::Running* at = job != nullptr && job->plan_version == saving.plan_version ? job->running() : nullptr;
  const auto stage = at != nullptr && !at->over ? at->crew.stage_of(peer.id) : std::nullopt;
  if (stage && at->crew.stages[*stage].here) at->run->on_saving(*stage, saving.step, saving.saved);
}

}  // namespace weft::broker
