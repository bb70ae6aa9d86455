#include "broker/availability.h"

#include <algorithm>
#include <span>

#include "broker/place/pace.h"
#include "broker/place/placement.h"

namespace weft::broker {

namespace {

std::string describe_lack(const proto::DeviceReport& device, dag::Arithmetic wanted) {
  std::string text = "has no arithmetic in " + std::string(to_string(wanted)) + ", only in ";
  for (size_t i = 0; i < device.arithmetic.size(); ++i)
    text += (i == 0 ? "" : " and ") + std::string(to_string(device.arithmetic[i]));
  return text;
}

// A device does the tasks of two jobs in turn; how much either has is not known beforehand. Whoever is idle
// is the better choice.
constexpr double kTimesShared = 2;

// What stages of other jobs leave of the device; without a limit it has none afterwards, either.
proto::DeviceReport left_of(const Peer& peer, proto::JobNumber job) {
  proto::DeviceReport left = peer.device;
  const bool is_limited = left.memory.value > 0, is_apart = left.host_memory.value > 0;
  for (const auto& [number, stage] : peer.stages) {
    if (number == job || !stage.memory || !is_limited) continue;
    (is_apart ? left.host_memory : left.memory).value -= stage.memory->copies;
    left.memory.value -= stage.memory->programs;
  }
  return left;
}

bool is_without(const proto::DeviceReport& left, const proto::DeviceReport& device) {
  return (device.memory.value > 0 && left.memory.value <= 0) ||
         (device.host_memory.value > 0 && left.host_memory.value <= 0);
}

// By another job's stage, or by its own.
std::optional<proto::JobNumber> taken_by(const Peer& peer, const Job& job, bool own) {
  size_t others = 0;
  for (const auto& [number, stage] : peer.stages) {
    if (number == job.number()) {
      if (!own) return number;
      continue;
    }
    if (++others >= peer.device.stages || stage.serves == job.serves() || !stage.memory) return number;
  }
  if (others > 0 && is_without(left_of(peer, job.number()), peer.device)) return peer.stages.begin()->first;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Availability::why_not(const Peer& peer, const Job& job, bool own) const {
  if (peer.other_version) return "speaks another version";
  if (!peer.connection) return "is away";
  if (job.excludes(peer.name)) return "is excluded by the job";
  if (!job.may_send(peer))
    return "cannot read compressed tensors: its weft (" + peer.software + ") is too old";
  if (!job.can_skip(peer))
    return "cannot skip steps that diverge: its weft (" + peer.software + ") is too old";
  if (!job.is_new_enough(peer))
    return "cannot do what the job asks for: its weft (" + peer.software + ") is too old";
  if (!job.knows_ops(peer))
    return "does not know all ops of the job's graph: its weft (" + peer.software + ") is too old";
  if (!job.suits(peer)) return describe_lack(peer.device, job.submitted.submission->arithmetic);
  if (job.losses.excluded.contains(peer.id)) return "failed this job before";
  if (job.losses.rests(peer.id)) return "held this job's other replicas up, and rests for a while";
  if (peer.device_lost) return "has lost its device";
  if (peer.draining) return "is leaving";
  if (const auto other = taken_by(peer, job, own)) return "works on job " + std::to_string(*other);
  if (!peer.works_on(job.number()) && pool_.is_left_out(peer))
    return "is left out for a while: it failed stage after stage";
  return std::nullopt;
}

// The peers that a waiting job does not get, by name.
std::string Availability::describe_others(const Job& job) const {
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

namespace {
// In which the peer had a part, if what the job goes on from has what it learnt there and it holds that
// still.
std::optional<uint32_t> replica_held(const Job& job, const PeerId& peer) {
  const PlannedRun* plan = job.crew() != nullptr ? job.crew()->plan.get() : job.previous.plan.get();
  const CheckpointCommitted* point = job.points.newest();
  if (plan == nullptr || !plan->local_steps || point == nullptr || !point->local) return std::nullopt;
  const auto at = std::find_if(plan->stages.begin(), plan->stages.end(),
                               [&](const PlannedStage& stage) { return stage.peer == peer; });
  if (at == plan->stages.end()) return std::nullopt;
  const uint32_t replica = at->assignment->seat.replica;
  const replicas::Inherited& inherited = point->local->inherited;
  const auto& left_out = inherited.left_out;
  const bool is_heir =
      !inherited.sets.empty() && (replica >= inherited.sets.size() || inherited.sets[replica] != replica);
  if (is_heir || std::find(left_out.begin(), left_out.end(), replica) != left_out.end()) return std::nullopt;
  const auto& holders = job.points.holders;
  const bool holds = std::any_of(holders.begin(), holders.end(),
                                 [&](const auto& blob) { return blob.second.contains(peer); });
  return job.points.is_direct() && !holds ? std::nullopt : std::optional(replica);
}
}  // namespace

std::vector<Candidate> Availability::of(const Job& job, bool own) const {
  std::vector<Candidate> free;
  const std::map<std::string, double> usual = pool_.usual_times();
  for (const auto& [id, peer] : pool_.peers())
    if (!why_not(peer, job, own)) {
      const bool is_shared = peer.stages.size() > (peer.works_on(job.number()) ? 1 : 0);
      free.push_back({id, peer.name, left_of(peer, job.number()), replica_held(job, id)});
      slow_down(free.back().device.rates, Pool::times_of(peer, usual) * (is_shared ? kTimesShared : 1));
    }
  return free;
}

// Those that may take a stage of a run that goes on: nobody's bits change for its speed. A run that is to
// grow with whoever comes is planned with them as it was at first: where bits need not be equal, for enough
// speed.
std::vector<Candidate> Availability::to_move(const Job& job) const {
  std::vector<Candidate> all = of(job, /*own=*/true);
  const PlannedRun& plan = *job.crew()->plan;
  const bool may_mix = plan.replicas_max > 0 && !plan.equal_bits_required;
  if (!may_mix && plan.equal_bits && job.bits.are_equal)
    std::erase_if(
        all, [&](const Candidate& candidate) { return candidate.device.fingerprint != plan.fingerprint; });
  return all;
}

// Which of the candidates, by index, takes each stage of the plan; `by_pace`: those with whom a step takes
// least, else whether it can be done at all.
std::optional<std::vector<uint32_t>> Availability::place_previous(const Job& job, const PlannedRun& plan,
                                                                  const std::vector<int64_t>& memory,
                                                                  const std::vector<Candidate>& candidates,
                                                                  bool by_pace) const {
  std::vector<StageToPlace> stages;
  stages.reserve(plan.stages.size());
  for (size_t s = 0; s < plan.stages.size(); ++s)
    stages.push_back(
        {plan.stages[s].peer, memory[s], class_of(plan, s), plan.stages[s].pinned, plan.stages[s].owner});
  std::vector<Applicant> applicants;
  for (const Candidate& candidate : candidates) {
    Applicant applicant{.peer = candidate.peer,
                        .device_class = candidate.device.device_class(),
                        .memory = candidate.device.memory.value,
                        .owner = owner_of(candidate)};
    if (const Standing* standing = stand_bys_.find(candidate.peer, job.number());
        standing != nullptr && standing->complete)
      for (const uint32_t stage : standing->stages) applicant.standing_by[stage] = *standing->complete;
    applicants.push_back(std::move(applicant));
  }
  if (!by_pace) return place_again(stages, applicants, plan.equal_bits_required);
  const Pace pace(plan, candidates, probes_.cluster_of(candidates));
  return place_again(stages, applicants, plan.equal_bits_required,
                     [&](std::span<const uint32_t> placed) { return pace.step_seconds(placed); });
}

// Whether the stages of a job could go on if this peer were not there. REQUIRES: it has a crew.
bool Availability::can_do_without(const Job& job, const PeerId& peer) const {
  std::vector<Candidate> others = of(job, /*own=*/true);
  std::erase_if(others, [&](const Candidate& candidate) { return candidate.peer == peer; });
  const Crew& crew = *job.crew();
  return place_previous(job, *crew.plan, crew.memory(), others, /*by_pace=*/false).has_value();
}

}  // namespace weft::broker
