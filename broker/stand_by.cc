// Peers of the pool hold the tensors of stages that they may have to take; and which of the blobs that need
// not survive the broker are still spoken of.
#include <algorithm>

#include "broker/broker.h"
#include "broker/candidates.h"

namespace weft::broker {

// Of the recovery point those of one stage, and what no snapshot holds because it never changes.
static std::vector<proto::TensorReference> tensors_of(const CheckpointCommitted& point,
                                                      const proto::AssignStage& stage) {
  std::set<std::string> names, saved;
  for (const auto& tensor : stage.tensors) names.insert(tensor.key.name);
  std::vector<proto::TensorReference> tensors;
  for (const auto& tensor : point.tensors) {
    if (!names.contains(tensor.key.name)) continue;
    tensors.push_back(tensor);
    saved.insert(tensor.key.name);
  }
  for (const auto& tensor : stage.tensors)
    if (!saved.contains(tensor.key.name)) tensors.push_back(tensor);
  return tensors;
}

// Of one spare, straight from their peers: each sends at the rate, and all come over its one line and through
// its one thread. With more the broker is the better way (bench/recovery.sh).
static constexpr size_t kStagesFetchedMax = 2;

// The peers that may stand by for the job.
std::vector<Holder> Broker::holders_for(const Job& job, const std::map<PeerId, int64_t>& free,
                                        std::vector<PeerId>& ids) const {
  std::vector<Holder> holders;
  for (const auto& [id, left] : free) {
    const Peer& peer = peers_.at(id);
    if (job.excluded.contains(id) || job.excludes(peer.name) || !job.suits(peer)) continue;
    ids.push_back(id);
    holders.push_back(
        {peer.device.memory.value, left, peer.device.fingerprint, owner_of({id, peer.name, peer.device})});
  }
  return holders;
}

// Who holds what is dealt out anew whenever it may have changed; told is only what differs.
void Broker::update_stand_bys() {
  stand_bys_dirty_ = false;
  std::map<PeerId, int64_t> free;
  for (const auto& [id, peer] : peers_)
    if (peer.connection && !peer.serving && !peer.draining) free[id] = peer.device.memory.value;
  std::map<PeerId, std::set<proto::JobNumber>> wanted;
  for (auto& [number, job] : jobs_) {
    job.copies_go_direct = false;
    if (!job.run || !job.run->training()) continue;
    std::vector<PeerId> ids;
    const std::vector<Holder> holders = holders_for(job, free, ids);
    if (ids.empty()) {
      drop_direct_copies(job);
      continue;
    }
    std::vector<StageToHold> stages;
    const std::vector<int64_t> memory = memory_of(job);
    for (uint32_t s = 0; s < job.plan->stages.size(); ++s)
      stages.push_back(
          {job.stage_bytes[s], memory[s], class_of(*job.plan, s).fingerprint, job.plan->stages[s].owner});
    const DealtStages dealt = deal_stages(stages, holders, job.plan->equal_bits_required);
    std::map<uint32_t, PeerId> first;
    for (uint32_t s = 0; s < stages.size(); ++s)
      if (dealt.first[s]) first[s] = ids[*dealt.first[s]];
    std::map<PeerId, size_t> held_by;
    for (const auto& [stage, id] : first) ++held_by[id];
    job.copies_go_direct = options_.copies_go_direct && first.size() == stages.size() &&
                           std::all_of(held_by.begin(), held_by.end(),
                                       [](const auto& held) { return held.second <= kStagesFetchedMax; }) &&
                           std::all_of(first.begin(), first.end(), [&](const auto& entry) {
                             return may_give(peers_.at(job.plan->stages[entry.first].peer)) &&
                                    peers_.at(entry.second).minor >= proto::kProtocolMinorOfDirectCopies;
                           });
    if (!job.copies_go_direct) drop_direct_copies(job);
    if (!job.run) continue;
    const auto copy = job.run->copy_to_fetch();
    const Point point{copy ? &*copy : recovery_point(job), copy || job.round_is_direct};
    if (point.snapshot == nullptr) continue;
    for (size_t h = 0; h < ids.size(); ++h) {
      std::vector<uint32_t> held = dealt.by_holder[h];
      // A direct copy leaves its stage once.
      if (point.is_direct) std::erase_if(held, [&](uint32_t s) { return first.at(s) != ids[h]; });
      if (held.empty()) continue;
      for (const uint32_t s : held) free[ids[h]] -= stages[s].bytes;
      wanted[ids[h]].insert(number);
      tell_stand_by(peers_.at(ids[h]), job, held, point);
    }
  }
  // Of a run that is between two plans the peers of the pool keep what they hold.
  for (auto& [key, pool_peer] : peers_) {
    const PeerId& id = key;
    Peer& peer = pool_peer;
    std::erase_if(peer.standing, [&](const auto& entry) {
      const auto job = jobs_.find(entry.first);
      const bool between = !job->second.run && job->second.state < proto::JobState::Finished;
      if (wanted[id].contains(entry.first)) return false;
      if (between && (!peer.serving || peer.serving == entry.first)) return false;
      if (!peer.serving) send_to_peer(id, proto::StandBy{.run = entry.first});
      return true;
    });
  }
}

void Broker::tell_stand_by(Peer& peer, Job& job, const std::vector<uint32_t>& stages, const Point& point) {
  const uint64_t step = point.snapshot->step;
  if (point.is_direct && (peer.minor < proto::kProtocolMinorOfDirectCopies ||
                          std::any_of(stages.begin(), stages.end(), [&](uint32_t s) {
                            return !may_give(peers_.at(job.plan->stages[s].peer));
                          })))
    return;
  Standing& standing = peer.standing[job.submitted.job];
  if (standing.step == step && standing.stages == stages) return;
  // Tensors that it holds of an earlier step are still worth something: most of the way is done.
  if (standing.stages != stages) standing.complete.reset();
  standing.step = step;
  standing.stages = stages;
  standing.list = ++lists_;
  standing.is_direct = point.is_direct;
  proto::StandBy message{.run = job.submitted.job,
                         .step = step,
                         .tensors = {},
                         .rate = options_.replication_rate,
                         .sources = {},
                         .list = standing.list};
  std::set<Digest> in_point;
  for (const auto& tensor : point.snapshot->tensors) in_point.insert(tensor.sha256);
  for (const uint32_t s : stages) {
    proto::BlobSource source = source_of(peers_.at(job.plan->stages[s].peer));
    for (auto& tensor : tensors_of(*point.snapshot, *job.plan->stages[s].assignment)) {
      if (point.is_direct && in_point.contains(tensor.sha256))
        source.tensors.push_back(static_cast<uint32_t>(message.tensors.size()));
      message.tensors.push_back(std::move(tensor));
    }
    if (!source.tensors.empty()) message.sources.push_back(std::move(source));
  }
  send_to_peer(peer.id, std::move(message));
}

void Broker::keep_transient() {
  transient_dirty_ = false;
  KeepTransient keep;
  for (const auto& [number, job] : jobs_) {
    if (job.state >= proto::JobState::Finished) continue;
    if (job.round && !job.round_is_direct)
      for (const auto& tensor : job.round->tensors) keep.blobs.insert(tensor.sha256);
    if (job.round_at_broker)
      for (const auto& tensor : job.round_at_broker->tensors) keep.blobs.insert(tensor.sha256);
    keep.blobs.insert(job.round_before.begin(), job.round_before.end());
    if (!job.run) continue;
    job.run->add_reported(keep.blobs);
    const double rate =
        std::min(options_.replication_rate == 0 ? 1e18 : 1.0 * options_.replication_rate, 12.5e6);
    const double upload = static_cast<double>(largest_state_bytes(*job.plan)) / rate;
    keep.young =
        std::max(keep.young, std::chrono::duration_cast<Duration>(std::chrono::duration<double>(4 * upload)));
  }
  keep.young += std::chrono::seconds(5);
  out_->effects.push_back(std::move(keep));
}

}  // namespace weft::broker
