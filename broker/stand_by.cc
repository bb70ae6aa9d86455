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

// Who holds what is dealt out anew whenever it may have changed; told is only what differs.
void Broker::update_stand_bys() {
  stand_bys_dirty_ = false;
  std::map<PeerId, int64_t> free;
  for (const auto& [id, peer] : peers_)
    if (peer.connection && !peer.serving && !peer.draining) free[id] = peer.device.memory.value;
  std::map<PeerId, std::set<proto::JobNumber>> wanted;
  for (auto& [number, job] : jobs_) {
    const CheckpointCommitted* point = recovery_point(job);
    if (!job.run || !job.run->training() || point == nullptr) continue;
    std::vector<PeerId> ids;
    std::vector<Holder> holders;
    for (const auto& [id, left] : free) {
      const Peer& peer = peers_.at(id);
      if (job.excluded.contains(id) || job.excludes(peer.name) || !job.may_send(peer)) continue;
      ids.push_back(id);
      holders.push_back(
          {peer.device.memory.value, left, peer.device.fingerprint, owner_of({id, peer.name, peer.device})});
    }
    if (ids.empty()) continue;
    std::vector<StageToHold> stages;
    const std::vector<int64_t> memory = memory_of(job);
    for (uint32_t s = 0; s < job.plan->stages.size(); ++s)
      stages.push_back(
          {job.stage_bytes[s], memory[s], class_of(*job.plan, s).fingerprint, job.plan->stages[s].owner});
    const auto dealt = deal_stages(stages, holders, job.plan->equal_bits_required);
    for (size_t h = 0; h < ids.size(); ++h) {
      if (dealt[h].empty()) continue;
      for (const uint32_t s : dealt[h]) free[ids[h]] -= stages[s].bytes;
      wanted[ids[h]].insert(number);
      tell_stand_by(peers_.at(ids[h]), job, dealt[h]);
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

void Broker::tell_stand_by(Peer& peer, Job& job, const std::vector<uint32_t>& stages) {
  const CheckpointCommitted& point = *recovery_point(job);
  Standing& standing = peer.standing[job.submitted.job];
  if (standing.step == point.step && standing.stages == stages) return;
  // Tensors that it holds of an earlier step are still worth something: most of the way is done.
  if (standing.stages != stages) standing.complete.reset();
  standing.step = point.step;
  standing.stages = stages;
  proto::StandBy message{.run = job.submitted.job, .step = point.step, .rate = options_.replication_rate};
  for (const uint32_t s : stages)
    for (auto& tensor : tensors_of(point, *job.plan->stages[s].assignment))
      message.tensors.push_back(std::move(tensor));
  send_to_peer(peer.id, std::move(message));
}

void Broker::keep_transient() {
  transient_dirty_ = false;
  KeepTransient keep;
  for (const auto& [number, job] : jobs_) {
    if (job.state >= proto::JobState::Finished) continue;
    if (job.round)
      for (const auto& tensor : job.round->tensors) keep.blobs.insert(tensor.sha256);
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
