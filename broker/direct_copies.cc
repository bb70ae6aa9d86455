// Copies of a run's state that the broker has not: a stage has its own, and who stands by for it has fetched
// it there. Who has what when a peer is lost, and from whom those who need it then get it.
#include <algorithm>

#include "broker/broker.h"
#include "broker/job_sink.h"

namespace weft::broker {

// Whether others can reach it to fetch what it has.
bool Broker::may_give(const Peer& peer) {
  return peer.connection && peer.minor >= proto::kProtocolMinorOfDirectCopies &&
         !peer.device.addresses.empty();
}

void Broker::drop_direct_copies(Job& job) {
  Sink sink(*this, job);
  job.run->drop_direct(now_.monotonic, sink);
}

// The run has lost somebody: the newest copy of which each part is still with somebody is what it goes back
// to. A peer whose stage failed still has its part.
void Broker::find_holders(Job& job) {
  const auto holders_of = [&](uint32_t stage, uint64_t step) {
    std::vector<PeerId> holders;
    const PeerId& own = job.plan->stages[stage].peer;
    for (const auto& [id, peer] : peers_) {
      if (!peer.connection || peer.device_lost) continue;
      const auto standing = peer.standing.find(job.submitted.job);
      const bool stands_by =
          !peer.serving && standing != peer.standing.end() && standing->second.holds(stage, step);
      if (id == own || stands_by) holders.push_back(id);
    }
    return holders;
  };
  auto newest =
      job.run->newest_copy([&](uint32_t stage, uint64_t step) { return !holders_of(stage, step).empty(); });
  const CheckpointCommitted* point = recovery_point(job);
  if (newest && (point == nullptr || newest->step > point->step)) {
    log("info copy_is_with_peers job=" + std::to_string(job.submitted.job) +
        " step=" + std::to_string(newest->step));
    if (!job.round_is_direct) job.round_at_broker = std::move(job.round);
    job.round = std::move(newest);
    job.round_is_direct = true;
  }
  job.holders.clear();
  if (!job.round || !job.round_is_direct) return;
  for (uint32_t s = 0; s < job.plan->stages.size(); ++s) {
    const std::vector<PeerId> holders = holders_of(s, job.round->step);
    std::set<std::string> names;
    for (const auto& tensor : job.plan->stages[s].assignment->tensors) names.insert(tensor.key.name);
    for (const auto& tensor : job.round->tensors)
      if (names.contains(tensor.key.name))
        for (const PeerId& holder : holders) job.holders[tensor.sha256].insert(holder);
  }
}

// Whether a part of the round is with nobody any more: then the round is none.
bool Broker::lose_holders(Job& job) {
  if (!job.round || !job.round_is_direct) return false;
  for (auto& [sha256, holders] : job.holders)
    std::erase_if(holders,
                  [&](const PeerId& id) { return !peers_.at(id).connection || peers_.at(id).device_lost; });
  if (std::all_of(job.round->tensors.begin(), job.round->tensors.end(), [&](const auto& tensor) {
        const auto at = job.holders.find(tensor.sha256);
        return at != job.holders.end() && !at->second.empty();
      }))
    return false;
  drop_recovery_point(job);
  return true;
}

// Writes into each assignment from whom it gets what its peer has not, and what its peer keeps for others.
// False: somebody cannot get what it needs.
bool Broker::find_sources(const Job& job, std::vector<proto::AssignStage>& stages) const {
  if (!job.round || !job.round_is_direct) return true;
  std::map<PeerId, std::vector<Digest>> lends;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Peer& taker = peers_.at(job.plan->stages[s].peer);
    std::map<PeerId, proto::BlobSource> sources;
    std::set<Digest> fetched;  // one that several tensors name is fetched once
    for (uint32_t t = 0; t < stages[s].tensors.size(); ++t) {
      const Digest& sha256 = stages[s].tensors[t].sha256;
      const auto held = job.holders.find(sha256);
      if (held == job.holders.end() || held->second.contains(taker.id)) continue;
      const auto giver = std::find_if(held->second.begin(), held->second.end(),
                                      [&](const PeerId& id) { return may_give(peers_.at(id)); });
      if (giver == held->second.end() || taker.minor < proto::kProtocolMinorOfDirectCopies) return false;
      sources.try_emplace(*giver, source_of(peers_.at(*giver))).first->second.tensors.push_back(t);
      if (fetched.insert(sha256).second) lends[*giver].push_back(sha256);
    }
    for (auto& [id, source] : sources) stages[s].sources.push_back(std::move(source));
  }
  for (size_t s = 0; s < stages.size(); ++s)
    if (const auto lent = lends.find(job.plan->stages[s].peer); lent != lends.end())
      stages[s].lends = lent->second;
  return true;
}

proto::BlobSource Broker::source_of(const Peer& peer) {
  return {.peer = peer.id, .addresses = peer.device.addresses, .region = peer.device.region, .tensors = {}};
}

void Broker::on_standing_by(Peer& peer, const proto::StandingBy& message) {
  const auto at = peer.standing.find(message.run);
  if (at == peer.standing.end()) return;
  Standing& standing = at->second;
  const bool is_old = peer.minor < proto::kProtocolMinorOfDirectCopies;  // it does not say of which list
  if (is_old ? message.step > standing.step : message.list != standing.list) return;
  if (!message.failure) standing.complete = message.step;
  Job& job = jobs_.at(message.run);
  if (!job.run || is_old) return;
  Sink sink(*this, job);
  if (message.failure) {
    log("warning stand_by_failed job=" + std::to_string(message.run) + " peer=" + peer.name + " reason=\"" +
        message.failure->message + "\"");
    if (standing.is_direct)
      job.run->give_up_direct(now_.monotonic,
                              {message.failure->code, "peer " + peer.name + ": " + message.failure->message},
                              sink);
    return;
  }
  if (!standing.is_direct) return;
  const std::vector<uint32_t> stages = standing.stages;
  for (const uint32_t stage : stages) job.run->on_fetched(now_.monotonic, stage, message.step, sink);
}

}  // namespace weft::broker
