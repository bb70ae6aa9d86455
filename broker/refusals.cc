// Differences of replicas that others refuse to add up (replicas/norm_guard.h).
#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "broker/recovery.h"

namespace weft::broker {

namespace {

constexpr uint32_t kRefusalsMax = 3;  // of one peer's, until it gets no part in the job any more
constexpr size_t kAccusedMax = 3;     // peers that one refuses and nobody else; or that made the same samples

std::string said_of(const proto::DifferenceRefused& refused, const std::string& names) {
  const std::string whose =
      "what replica " + std::to_string(refused.replica + 1) + " (" + names + ") would have all learn ";
  if (refused.ratio <= 0) return whose + "is not finite";
  char times[48];
  std::snprintf(times, sizeof times, "is %.3g times as large as usual", refused.ratio);
  return whose + times;
}

// Nobody else has refused anything of so many that this one did: then it is not they who are at fault.
bool stands_alone(const Job& job, const PeerId& accuser) {
  const auto alone = std::count_if(
      job.losses.refusals.begin(), job.losses.refusals.end(),
      [&](const auto& of) { return of.second.by.size() == 1 && of.second.by.contains(accuser); });
  return static_cast<size_t>(alone) >= kAccusedMax;
}

// What a replica made of samples that are dealt again, for that of others was refused before: then it is not
// they, but what they are to learn from. Two strangers' words are not enough to end a job.
bool is_of_the_data(const Job& job, const PlannedRun& plan, const InnerSteps& inner, uint64_t step) {
  std::set<PeerId> accusers;
  for (const auto& [accused, refusals] : job.losses.refusals)
    accusers.insert(refusals.by.begin(), refusals.by.end());
  return accusers.size() >= kAccusedMax && !plan.local_steps->given_again.empty() &&
         job.losses.refusals.size() >= kAccusedMax &&
         step == inner.next_whole(plan.stages.front().assignment->after_step + 1);
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
  if (refused.step <= at->run->committed_step()) return {};
  const bool is_known = at->run->absence().has_replica(refused.replica);
  std::vector<PeerId> accused;
  std::string names;
  for (const PlannedStage& other : plan.stages) {
    if (inner.replica_of(other.assignment->seat) != refused.replica) continue;
    const Peer* who = pool_.find(other.peer);
    accused.push_back(other.peer);
    names += (names.empty() ? "" : ", ") + (who != nullptr ? who->name : to_string(other.peer));
  }
  bool is_out = false;
  for (const PeerId& one : accused) {
    Job::Refusals& refusals = job.losses.refusals[one];
    refusals.by.insert(peer.id);
    if (!is_known) is_out = ++refusals.times >= kRefusalsMax || is_out;
  }
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
  if (is_out) {
    job.losses.excluded.insert(accused.begin(), accused.end());
    what += ", for the third time: it gets no part in this job any more";
  }
  if (!leave_out(job, pool_.at(accused.front()), what)) recover(job, what);
  return {};
}

}  // namespace weft::broker
