#include "broker/jobs/runs.h"

#include <algorithm>
#include <cstdio>

#include "base/overloaded.h"
#include "plan/noise.h"

namespace weft::broker {

using proto::JobState;

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
  step_.record(RunStarted{job.number(), job.plan_version, at.crew.plan, job.losses.diverged_at});
  job.microbatch_size = plan.training.microbatch_size;
  job.drift.begin(step_.now.monotonic, at.run->committed_step());
  job.phase = std::move(at);
  book_.set_state(job, JobState::Running, plan.serves() ? "serves as " + plan.served.name : "");
  step_.stand_bys = true;
  (void)tell(job, [](Run& run, Instant now) { return run.start(now); });
  if (plan.serves()) serves_again(job);
}

void Runs::serves_again(Job& job) {
  if (!job.losses.lost_at) return;
  char text[64];
  std::snprintf(text, sizeof text, "serving again after %.1f s",
                seconds(step_.now.monotonic - *job.losses.lost_at));
  job.losses.lost_at.reset();
  book_.notice(job, text);
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
    stage.here = false;
  }
  at.run = std::make_unique<Run>(job.number(), stored.run->plan_version, at.crew.plan, begin_of(job, plan),
                                 options_.run);
  at.run->resume(stored.script);
  job.phase = std::move(at);
}

void Runs::request_stop(Job& job, bool to_go_on) {
  if (job.running()->over) return;
  (void)tell(job, [&](Run& run, Instant now) { return run.request_stop(now, to_go_on); });
}

// ---- what stages say

std::optional<Runs::Place> Runs::place_of(const Peer& peer, proto::JobNumber run,
                                          proto::PlanVersion version) {
  Job* job = peer.serving == run ? book_.find(run) : nullptr;
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
  WEFT_TRY_STATUS(tell(*place->job, [&](Run& run, Instant now) {
    return run.on_resumed(now, place->stage, resumed.last_sequence);
  }));
  step_.log("info stage_resumed job=" + place->job->text() + " stage=" + std::to_string(place->stage) +
            " peer=" + peer.name + " last_sequence=" + std::to_string(resumed.last_sequence));
  if (at->over) return {};
  for (const proto::Secret& ticket : std::exchange(stage.relays_waiting, {}))
    pool_.send(peer.id, proto::RelayInvitation{resumed.run, resumed.plan_version, ticket});
  if (!at->crew.all_here()) return {};
  at->away_since.reset();
  at->since = step_.now.monotonic;
  place->job->drift.begin(step_.now.monotonic, at->run->committed_step());
  if (std::exchange(at->restarted, false))
    book_.notice(*place->job, "the broker was restarted; all " + std::to_string(at->crew.stages.size()) +
                                  " stages came back and go on");
  return {};
}

Job* Runs::job_held(const PeerId& peer, const std::optional<proto::StageHeld>& held) {
  Job* job = held ? book_.find(held->run) : nullptr;
  phase::Running* at = job != nullptr ? job->running() : nullptr;
  if (at == nullptr || at->over || job->plan_version != held->plan_version) return nullptr;
  const PlannedRun& plan = *at->crew.plan;
  const auto seat = plan.find(held->seat);
  return seat && plan.stages[*seat].peer == peer ? job : nullptr;
}

void Runs::ask_to_resume(Job& job, Peer& peer) {
  phase::Running& at = *job.running();
  step_.served = true;
  if (!at.away_since) at.away_since = step_.now.monotonic;
  if (const auto stage = at.crew.stage_of(peer.id)) at.crew.stages[*stage].here = false;
  peer.serving = job.number();
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

Duration Runs::transfer_time(const PlannedRun& plan) const {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(largest_loaded_bytes(plan)) / options_.slowest_bytes_per_second));
}

Duration Runs::shortest_stall(const Run& run) const {
  return std::max(options_.stall_deadline, 20 * run.plan().predicted_step);
}

// Twice as long after each time that it passed: a plan that takes links for far faster than they are would
// otherwise never see its first step done.
Duration Runs::stall_deadline(const Job& job) const {
  constexpr uint32_t kDoublings = 5;
  const Run& run = *job.running()->run;
  Duration deadline = shortest_stall(run);
  deadline *= int64_t{1} << std::min(job.losses.stalls, kDoublings);
  if (run.waits_for_snapshot()) deadline += transfer_time(run.plan());
  if (const auto comparing = run.comparing()) deadline += 20 * *comparing;
  return deadline;
}

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
  const auto late_peers = [&](const Crew& crew, bool StageAtWork::*done) {
    std::string late;
    for (size_t s = 0; s < crew.stages.size(); ++s)
      if (!(crew.stages[s].*done)) late += " " + pool_.at(crew.plan->stages[s].peer).name;
    return late;
  };
  // They are there and could have said it.
  const auto connected_without = [&](const Crew& crew, bool StageAtWork::*done) {
    std::vector<PeerId> peers;
    for (size_t s = 0; s < crew.stages.size(); ++s)
      if (const Peer* peer = pool_.find(crew.plan->stages[s].peer);
          !(crew.stages[s].*done) && peer != nullptr && peer->connection)
        peers.push_back(peer->id);
    return peers;
  };
  const auto lose = [&](Job& job, std::string why, std::vector<PeerId> excluded = {}) {
    give_verdict(job, {.kind = Verdict::Kind::Lost, .what = std::move(why), .excluded = std::move(excluded)});
  };
  for (auto& [number, job] : book_.jobs()) {
    if (phase::Running* at = job.running(); at != nullptr && !at->over) {
      if (at->away_since) {
        if (now - *at->away_since > options_.return_deadline)
          lose(job, "did not come back in time:" + late_peers(at->crew, &StageAtWork::here),
               connected_without(at->crew, &StageAtWork::here));
        continue;
      }
      if (at->run->serves()) {
        note_service(job);
        continue;
      }
      (void)tell(job, [](Run& run, Instant when) { return run.on_tick(when); });
      const Duration deadline = stall_deadline(job);
      if (at->over || now - at->run->last_progress() <= deadline) continue;
      at->is_at_standstill = now - at->computed_at > shortest_stall(*at->run);
      give_verdict(job,
                   {.kind = Verdict::Kind::Stalled,
                    .what = "no progress for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"});
    } else if (const phase::Loading* loading = job.loading();
               loading != nullptr &&
               now - loading->since > options_.loading_deadline + transfer_time(*loading->crew.plan)) {
      lose(job, "not ready in time:" + late_peers(loading->crew, &StageAtWork::ready),
           connected_without(loading->crew, &StageAtWork::ready));
    }
  }
}

// How many times what was promised a stage needs: over the window that has begun when it says something, else
// over the one before. 0: nobody knows yet.
double Runs::slowness(const Crew& crew, uint32_t stage) const {
  const StageAtWork& work = crew.stages[stage];
  const PlannedStage& planned = crew.plan->stages[stage];
  uint32_t segments = 1;
  for (const proto::StageProgram& program : planned.assignment->programs)
    if (program.kind == proto::ProgramKind::Train) segments = std::max(1u, program.segment_count);
  const double promised = planned.microbatch_seconds / segments;
  const uint64_t done = work.segments - work.segments_before;
  const double busy = work.busy - work.busy_before;
  if (planned.microbatch_seconds < options_.slow_promise_min) return 0;
  // The one at hand counts as done: a stage that has not done its first is slow too.
  if (done == 0 && busy < seconds(options_.slow_after)) return work.slowness;
  return busy / (promised * static_cast<double>(std::max<uint64_t>(1, done)));
}

// A stage is judged by windows of `slow_after` of computing, so that a peer that becomes slow late is found
// as soon as one that was slow from the beginning. Where the others have nothing to do because of it, only
// what was promised is left to compare it with; as that may be wrong, this is done once.
std::optional<Runs::Slow> Runs::on_work(Peer& peer, const proto::StageWork& work) {
  Job* job = peer.serving == work.run ? book_.find(work.run) : nullptr;
  phase::Running* at = job != nullptr && job->plan_version == work.plan_version ? job->running() : nullptr;
  if (at == nullptr || at->over || !at->run->training()) return std::nullopt;
  const auto own = at->crew.stage_of(peer.id);
  if (!own) return std::nullopt;
  const uint32_t stage = *own;
  StageAtWork& seat = at->crew.stages[stage];
  if (work.segments_done < seat.segments || work.seconds_busy < seat.busy) return std::nullopt;
  seat.work_said = true;
  if (work.segments_done > seat.segments) at->computed_at = step_.now.monotonic;
  seat.segments = work.segments_done;
  seat.busy = work.seconds_busy;
  if (seat.busy - seat.busy_before < seconds(options_.slow_after)) return std::nullopt;
  std::vector<double> others;
  for (uint32_t s = 0; s < at->crew.stages.size(); ++s) {
    if (!at->crew.stages[s].work_said) return std::nullopt;
    if (const double other = s == stage ? 0 : slowness(at->crew, s); other > 0) others.push_back(other);
  }
  const double here = slowness(at->crew, stage);
  seat.slowness = here;
  if (here > 0) pool_.learn_times(peer, here * seat.times);
  seat.segments_before = seat.segments;
  seat.busy_before = seat.busy;
  if (others.empty() && job->losses.judged_alone) return std::nullopt;
  const auto middle = others.begin() + static_cast<long>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  const double usual = others.empty() ? 1 : std::max(1.0, *middle);
  if (here < options_.slow_factor * usual || at->moving || job->stop_requested) return std::nullopt;
  char times[96];
  std::snprintf(times, sizeof times, " computes %.0f times slower than promised, the others %.1f times", here,
                usual);
  return Slow{.job = job,
              .stage = stage,
              .alone = others.empty(),
              .what = "stage " + std::to_string(stage + 1) + ": peer " + peer.name + times};
}

// ---- compressed links

namespace {
// What the codecs of its links gather.
plan::Noise noise_of(const PlannedRun& plan) {
  std::vector<plan::LinkCodec> codecs;
  for (uint32_t s = 0; s < plan.stages.size(); ++s)
    for (const proto::StageProgram& program : plan.stages[s].assignment->programs) {
      if (program.kind != proto::ProgramKind::Train) continue;
      for (const proto::EdgeEnd& end : program.sends) {
        const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
        codecs.push_back({s, end.stage, backward, end.codec});
      }
    }
  return plan::noise_of(codecs);
}
}  // namespace

// What comparisons of compressed links with dense ones came to. Codecs change as stages do: after a snapshot,
// by a new plan, so that whatever is done again is done with the codecs that it began with.
void Runs::guard(Job& job, const proto::LinkComparison& comparison) {
  char text[200];
  std::snprintf(text, sizeof text, "step=%llu loss=%.6g loss_dense=%.6g gradient_error=%.4g cosine=%.4g",
                static_cast<unsigned long long>(comparison.step), comparison.loss, comparison.loss_dense,
                comparison.gradient_error, comparison.gradient_cosine);
  step_.log("info compared job=" + job.text() + " " + text);
  const auto too_much = job.guard.judge(comparison);
  phase::Running& at = *job.running();
  if (!too_much || at.moving || job.stop_requested) return;
  job.guard.begin();
  const PlannedRun& plan = *at.crew.plan;
  const plan::Noise noise = noise_of(plan);
  const bool adds_none = noise.forward == 0 && noise.backward == 0;
  if (!plan.gentler || adds_none) {
    if (!std::exchange(job.harm_said, true))
      book_.notice(job, *too_much + (adds_none ? "; they add nothing that could be left out"
                                               : "; the job names their codecs itself"));
    return;
  }
  // So much that at least one link has to become gentler: whatever a peer reports, moves come to an end.
  job.gentler = *plan.gentler + 1;
  while (job.gentler < proto::kGentlerMax &&
         plan::is_within(noise, plan::noise_bound({.gentler = job.gentler})))
    ++job.gentler;
  book_.notice(job, *too_much + ": planned anew with gentler codecs");
  at.moving = true;
  for (const PlannedStage& stage : plan.stages) job.move_to.push_back(stage.peer);
}

}  // namespace weft::broker
