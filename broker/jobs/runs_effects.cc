// What runs want, carried out in the name of their jobs.
#include <algorithm>
#include <cstdio>
#include <set>

#include "base/overloaded.h"
#include "broker/jobs/codec_guard.h"
#include "broker/jobs/runs.h"

namespace weft::broker {

namespace {

std::string said_of(const Job& job, const Pool& pool, const Disagreement& disagreement) {
  const PlannedRun& plan = *job.crew()->plan;
  const auto who = [&](uint32_t stage) {
    return plan.name_of(stage) + " on " + pool.at(plan.stages[stage].peer).name;
  };
  return "replicas that had agreed hold different bytes of '" + disagreement.tensor + "' after step " +
         std::to_string(disagreement.step) + ": " + who(disagreement.stage) + " and " +
         who(disagreement.other);
}

// Who is outvoted had perhaps been sent something else than the others: the second time it is out.
Verdict verdict_on(Job& job, const Pool& pool, const Disagreement& disagreement) {
  constexpr uint32_t kOutvotedMax = 2;
  std::string what = said_of(job, pool, disagreement);
  if (disagreement.outvoted.empty())
    return {.kind = Verdict::Kind::Failed, .what = what + "; one of them computed or said something wrong"};
  Verdict verdict{.kind = Verdict::Kind::Lost, .what = what + ", as most do"};
  for (const uint32_t stage : disagreement.outvoted) {
    const PeerId& peer = job.crew()->plan->stages[stage].peer;
    if (++job.losses.outvoted[peer] < kOutvotedMax) continue;
    verdict.excluded.push_back(peer);
    verdict.what += "; " + pool.at(peer).name + " gets no part in this job any more";
  }
  return verdict;
}

// Whose word stands against whose, beside those of before. Who is one of two in two different pairs is out;
// of a pair that comes again both are, for nobody can tell which.
std::set<PeerId> out_by_quarrel(Job::Losses& losses, const PeerId& one, const PeerId& other) {
  std::set<PeerId> out;
  const std::set<PeerId> pair{one, other};
  if (!losses.quarrels.insert(pair).second) return pair;
  for (const PeerId& peer : pair)
    if (std::count_if(losses.quarrels.begin(), losses.quarrels.end(),
                      [&](const auto& before) { return before.contains(peer); }) > 1)
      out.insert(peer);
  return out;
}

// A machine may compute wrong once.
Verdict verdict_on(Job& job, const Pool& pool, const WrongMean& mean) {
  constexpr uint32_t kWrongMax = 2;
  const PlannedRun& plan = *job.crew()->plan;
  const auto peer_of = [&](uint32_t stage) -> const PeerId& { return plan.stages[stage].peer; };
  const auto who = [&](uint32_t stage) {
    return plan.name_of(stage) + " on " + pool.at(peer_of(stage)).name;
  };
  Verdict verdict{.what = "the mean of '" + mean.tensor + "' on which replicas had agreed after step " +
                          std::to_string(mean.step) + " was looked at again, and it is another"};
  std::set<PeerId> out;
  for (const uint32_t stage : mean.wrong) {
    verdict.what += "; " + who(stage) + " is wrong";
    if (++job.losses.outvoted[peer_of(stage)] >= kWrongMax) out.insert(peer_of(stage));
  }
  for (const uint32_t stage : mean.other) {
    verdict.what += "; " + who(mean.owner) + " and " + who(stage) + " say different things of it";
    out.merge(out_by_quarrel(job.losses, peer_of(mean.owner), peer_of(stage)));
  }
  for (const PeerId& peer : out) {
    verdict.excluded.push_back(peer);
    verdict.what += "; " + pool.at(peer).name + " gets no part in this job any more";
  }
  return verdict;
}

}  // namespace

Status Runs::tell(Job& job, const std::function<Result<RunEffects>(Run& run, Instant now)>& what) {
  Run& run = *job.running()->run;
  const uint64_t step_before = run.committed_step(), repeats_before = run.repeats_dropped();
  Outcome outcome;
  auto effects = what(run, step_.now.monotonic);
  if (effects) carry_out(job, std::move(*effects), outcome);
  look_at(job, step_before, repeats_before, outcome);
  if (!effects) return fail(std::move(effects).error());
  return {};
}

void Runs::carry_out(Job& job, RunEffects effects, Outcome& outcome) {
  for (RunEffect& effect : effects) carry_out_one(job, effect, outcome);
}

void Runs::carry_out_one(Job& job, RunEffect& effect, Outcome& outcome) {
  phase::Running& at = *job.running();
  const auto end = [&](Verdict verdict) {
    if (!outcome.verdict || verdict.divergence) outcome.verdict = std::move(verdict);
  };
  std::visit(Overloaded{
                 [&](IssueCommand& e) { issue(job, e.command); },
                 [&](TellStage& e) { send_to_stage(job, e.stage, std::move(e.message)); },
                 [&](SayEvent& e) { records_.add_event(job, std::move(e.event)); },
                 [&](RepeatedStep& e) { records_.add_repeated(job, e); },
                 [&](WholeSnapshot& e) { records_.add_snapshot(job, std::move(e)); },
                 [&](DirectCopyChanged&) { step_.stand_bys = true; },
                 [&](DirectCopiesFailed& e) {
                   step_.stand_bys = true;
                   book_.notice(job,
                                "copies of the state go through the broker until the next plan: " + e.why);
                 },
                 [&](UploadFailed& e) { records_.add_upload_failure(job, e); },
                 [&](TakenPrediction& e) {
                   records_.add_prediction(job, std::move(e.report));
                   outcome.came_forward = true;
                 },
                 [&](Compared& e) {
                   guard_codecs(step_, book_, job, e.comparison);
                   const Instant now = step_.now.monotonic;
                   if (at.moving) carry_out(job, at.run->request_stop(now, /*to_go_on=*/true), outcome);
                   carry_out(job, at.run->go_on(now), outcome);
                 },
                 [&](Divergence& e) { end({.kind = Verdict::Kind::Diverged, .divergence = std::move(e)}); },
                 [&](Disagreement& e) { end(verdict_on(job, pool_, e)); },
                 [&](WrongMean& e) { end(verdict_on(job, pool_, e)); },
                 [&](TooLateToLeaveOut& e) {
                   end({.kind = Verdict::Kind::Lost,
                        .what = "a replica was lost while all agreed, and " + at.crew.plan->name_of(e.stage) +
                                " had what it sent"});
                 },
                 [&](Finished& e) {
                   end({.kind = Verdict::Kind::Finished, .step = e.step});
                   records_.add_result(job, e.step);
                 },
                 [&](Stopped& e) { end({.kind = Verdict::Kind::Stopped, .step = e.step}); },
             },
             effect);
}

// ---- one by one

void Runs::issue(Job& job, const proto::Command& command) {
  step_.record(CommandIssued{job.number(), command});
  for (uint32_t s = 0; s < job.running()->crew.stages.size(); ++s) send_to_stage(job, s, command);
}

// A stage that has yet to resume is given what it missed when it does.
void Runs::send_to_stage(Job& job, uint32_t stage, proto::Message message) {
  const Crew& crew = job.running()->crew;
  if (crew.stages[stage].here && !crew.stages[stage].left_out)
    pool_.send(crew.plan->stages[stage].peer, std::move(message));
}

// ---- what a run has come to

void Runs::look_at(Job& job, uint64_t step_before, uint64_t repeats_before, Outcome& outcome) {
  const phase::Running& at = *job.running();
  step_.counters.repeats_dropped += at.run->repeats_dropped() - repeats_before;
  const uint64_t committed = at.run->committed_step();
  job.step = at.run->inner().made(committed);
  if (job.step > job.losses.at_step) job.losses.in_a_row = 0;
  if (committed >= job.losses.diverged_at) job.losses.diverged_at = 0;
  if (committed > step_before)
    for (const PlannedStage& stage : at.crew.plan->stages)
      if (Peer* peer = pool_.find(stage.peer)) pool_.did_step(*peer);
  if (job.losses.lost_at && (committed > step_before || outcome.came_forward)) {
    char text[64];
    std::snprintf(text, sizeof text, "going on after %.1f s",
                  seconds(step_.now.monotonic - *job.losses.lost_at));
    job.losses.lost_at.reset();
    book_.notice(job, text);
  }
  if (outcome.verdict) give_verdict(job, std::move(*outcome.verdict));
}

}  // namespace weft::broker
