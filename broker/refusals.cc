// Differences of replicas that others refuse to add up (replicas/norm_guard.h).
#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "broker/recovery.h"

namespace weft::broker {

namespace {

constexpr ptrdiff_t kRefusalsMax = 3;  // of one peer's, until it gets no part in the job any more
constexpr size_t kAccusedMax = 3;  // peers that one refuses and nobody else; or that made the same samples
constexpr size_t kKeptMax = 1000;  // refusals that are remembered

std::string said_of(const proto::DifferenceRefused& refused, const std::string& names) {
  const std::string whose =
      "what replica " + std::to_string(refused.replica + 1) + " (" + names + ") would have all learn ";
  if (refused.ratio <= 0) return whose + "is not finite";
  char times[48];
  std::snprintf(times, sizeof times, "is %.3g times as large as usual", refused.ratio);
  return whose + times;
}

std::set<PeerId> accusers_of(const Job& job, const PeerId& accused) {
  std::set<PeerId> accusers;
  for (const Job::Refusal& refusal : job.losses.refusals)
    if (refusal.accused.contains(accused)) accusers.insert(refusal.by.begin(), refusal.by.end());
  return accusers;
}

// Of so many at least something was refused: of a replica in several stages one may have lied for all, and
// one that lies has others beside it each time.
size_t accused_in(const std::vector<const Job::Refusal*>& refusals) {
  std::set<PeerId> seen;
  size_t count = 0;
  for (const Job::Refusal* refusal : refusals) {
    const bool is_another = std::none_of(refusal->accused.begin(), refusal->accused.end(),
                                         [&](const PeerId& peer) { return seen.contains(peer); });
    if (!is_another) continue;
    ++count;
    seen.insert(refusal->accused.begin(), refusal->accused.end());
  }
  return count;
}

// Nobody else has refused anything of so many that this one did: then it is not they who are at fault.
bool stands_alone(const Job& job, const PeerId& accuser) {
  std::vector<const Job::Refusal*> alone;
  for (const Job::Refusal& refusal : job.losses.refusals)
    if (std::all_of(refusal.accused.begin(), refusal.accused.end(),
                    [&](const PeerId& peer) { return accusers_of(job, peer) == std::set<PeerId>{accuser}; }))
      alone.push_back(&refusal);
  return accused_in(alone) >= kAccusedMax;
}

// What a replica made of samples that are dealt again, for that of others was refused before: then it is not
// they, but what they are to learn from. Two strangers' words are not enough to end a job.
bool is_of_the_data(const Job& job, const PlannedRun& plan, const InnerSteps& inner, uint64_t step) {
  std::set<PeerId> accusers;
  std::vector<const Job::Refusal*> all;
  for (const Job::Refusal& refusal : job.losses.refusals) {
    accusers.insert(refusal.by.begin(), refusal.by.end());
    all.push_back(&refusal);
  }
  return accusers.size() >= kAccusedMax && !plan.local_steps->given_again.empty() &&
         accused_in(all) >= kAccusedMax &&
         step == inner.next_end(plan.stages.front().assignment->after_step + 1);
}

// Those of them who get no part in the job any more. Who says so of a replica that is left out already only
// agrees with whoever said it first.
std::set<PeerId> note_refusal(Job& job, const std::set<PeerId>& accused, const PeerId& by, bool is_known) {
  auto& refusals = job.losses.refusals;
  const auto before = std::find_if(refusals.rbegin(), refusals.rend(),
                                   [&](const auto& refusal) { return refusal.accused == accused; });
  if (is_known) {
    if (before != refusals.rend()) before->by.insert(by);
    return {};
  }
  if (refusals.size() >= kKeptMax) refusals.erase(refusals.begin());
  refusals.push_back({accused, {by}});
  std::set<PeerId> out;
  for (const PeerId& peer : accused)
    if (std::count_if(refusals.begin(), refusals.end(),
                      [&](const auto& refusal) { return refusal.accused.contains(peer); }) >= kRefusalsMax)
      out.insert(peer);
  return out;
}

}  // namespace

// The others agree without that replica. Whoever computes it gets another chance, or two: a machine may have
// computed wrong once.
Status Recovery::on_difference_refused(Job& job, uint32_t stage, const Peer& peer,
                                       const proto::DifferenceRefused& refused) {
  const phase::Running* at = job.running();
  if (at == nullptr || at->over) return {};
  const PlannedRun& plan = *at->crew.plan;
  const InnerSteps& inner = at->run->inner();
  if (!inner.are_local() || refused.replica >= inner.replicas() ||
      refused.replica == inner.replica_of(plan.stages[stage].assignment->seat))
    return fail(ErrorCode::InvalidArgument, "it refuses what no other replica sends");
  if (inner.is_agreed(refused.step, at->run->committed_step())) return {};
  const bool is_known = at->run->absence().has_replica(refused.replica);
  std::set<PeerId> accused;
  std::string names;
  for (const PlannedStage& other : plan.stages) {
    if (inner.replica_of(other.assignment->seat) != refused.replica) continue;
    const Peer* who = pool_.find(other.peer);
    accused.insert(other.peer);
    names += (names.empty() ? "" : ", ") + (who != nullptr ? who->name : to_string(other.peer));
  }
  const std::set<PeerId> out = note_refusal(job, accused, peer.id, is_known);
  if (is_known) return {};  // another one has said so first
  step_.log("warning difference_refused job=" + job.text() + " by=" + peer.name +
            " replica=" + std::to_string(refused.replica + 1) + " peers=\"" + names + "\"");
  if (stands_alone(job, peer.id)) {
    job.losses.excluded.insert(peer.id);
    recover(job, "peer " + peer.name + " alone refuses what " + std::to_string(kAccusedMax) + " others sent");
    return {};
  }
  std::string what = said_of(refused, names);
  if (is_of_the_data(job, plan, inner, refused.step)) {
    phases_.end(job, proto::JobState::Failed,
                what +
                    ", and so was what others made of the same samples: the model diverges there; "
                    "clip_norm bounds what a step may change");
    return {};
  }
  if (!out.empty()) {
    job.losses.excluded.insert(out.begin(), out.end());
    what += ", for the third time: it gets no part in this job any more";
  }
  if (!leave_out(job, pool_.at(*accused.begin()), what)) recover(job, what);
  return {};
}

}  // namespace weft::broker
