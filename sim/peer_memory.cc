#include "sim/peer_memory.h"

#include <algorithm>

namespace weft::sim {

std::optional<int64_t> PeerBlobs::size(const Digest& blob) const {
  const auto at = sizes_.find(blob);
  return at == sizes_.end() ? std::nullopt : std::optional(at->second);
}

bool PeerBlobs::end_fetch(const Digest& blob, uint64_t fetch) {
  const auto at = fetching_.find(blob);
  if (at == fetching_.end() || at->second != fetch) return false;
  fetching_.erase(at);
  return true;
}

void PeerBlobs::clear() {
  sizes_.clear();
  fetching_.clear();
}

void Microbatches::put(const Key& key, uint32_t receive, const TensorPacket& packet, bool keeps_old) {
  Arrived& arrived = tensors_[key][receive];
  if (keeps_old && arrived.value != 0) return;
  arrived = {packet.value, packet.header};
}

void Microbatches::add_again(const TensorPacket& packet) {
  const auto microbatch = tensors_.find(key_of(packet.header));
  if (microbatch == tensors_.end()) return;
  for (auto& [receive, arrived] : microbatch->second)
    if (arrived.header == packet.header) arrived.value = mix(arrived.value, packet.value);
}

std::map<uint32_t, Microbatches::Arrived>* Microbatches::tensors(const Key& key) {
  const auto at = tensors_.find(key);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::optional<uint64_t> Microbatches::data(const Key& key) const {
  const auto at = data_.find(key);
  return at == data_.end() ? std::nullopt : std::optional(at->second);
}

void Microbatches::drop(const Key& key) {
  tensors_.erase(key);
  data_.erase(key);
}

void Microbatches::clear() {
  tensors_.clear();
  data_.clear();
}

void AgreedTensors::put(const TensorPacket& packet) {
  const proto::TensorHeader& header = packet.header;
  if (header.program == proto::ProgramKind::Sum) {
    sums_[{header.step, header.direction}].push_back(
        {header.edge, header.replica, packet.value, packet.square, header.microbatch});
    return;
  }
  auto& shares = tensors_[{header.step, header.direction}];
  std::erase_if(shares, [&](const HashShare& earlier) {  // of another attempt
    return earlier.number == header.edge && earlier.replica == header.replica;
  });
  shares.push_back({header.edge, header.replica, packet.value, packet.square, header.microbatch});
}

std::vector<HashShare> AgreedTensors::take(const proto::AssignStage& assignment, const peer::Task& task) {
  if (task.kind == peer::TaskKind::Reduce || task.kind == peer::TaskKind::Gather) {
    const auto direction =
        task.kind == peer::TaskKind::Reduce ? proto::Direction::Forward : proto::Direction::Backward;
    auto sums = sums_.extract({task.key.step, direction});
    return sums ? std::move(sums.mapped()) : std::vector<HashShare>();
  }
  const proto::LocalTerms& local = *assignment.local;
  const uint64_t before = round_of(local.steps, task.key.step).steps_before;
  const auto differences = tensors_.find({before, proto::Direction::Forward});
  std::vector<HashShare> taken;
  const auto means = tensors_.find({before, proto::Direction::Backward});
  if (task.kind == peer::TaskKind::Weigh) return means == tensors_.end() ? taken : means->second;
  if (task.kind == peer::TaskKind::Agree) {
    if (differences != tensors_.end()) tensors_.erase(differences);
    if (means == tensors_.end()) return taken;
    taken = std::move(means->second);
    tensors_.erase(means);
    return taken;
  }
  if (differences == tensors_.end()) return taken;
  std::erase_if(differences->second, [&](const HashShare& share) {
    const auto tensor = std::find_if(local.tensors.begin(), local.tensors.end(),
                                     [&](const auto& one) { return one.number == share.number; });
    const uint32_t owner = task.left_out ? task.left_out->owner_of(tensor->owner) : tensor->owner;
    if (owner != assignment.seat.replica || share.attempt != task.attempt()) return false;
    taken.push_back(share);
    return true;
  });
  return taken;
}

void LinkTimings::note(const plan::Seat& from, int64_t bytes, double bytes_per_second) {
  proto::LinkUse& timed = since_[from];
  timed.seat = from;
  timed.bytes_timed += static_cast<uint64_t>(bytes);
  timed.seconds_timed += static_cast<double>(bytes) / bytes_per_second;
  timed.fastest_bytes_per_second = std::max(timed.fastest_bytes_per_second, bytes_per_second);
}

void LinkTimings::tell(proto::StepReport& report) {
  for (auto& [seat, timed] : std::exchange(since_, {})) {
    const auto use = std::find_if(report.links.begin(), report.links.end(),
                                  [seat = seat](const proto::LinkUse& link) { return link.seat == seat; });
    if (use == report.links.end()) {
      report.links.push_back(timed);
      continue;
    }
    use->bytes_timed = timed.bytes_timed;
    use->seconds_timed = timed.seconds_timed;
    use->fastest_bytes_per_second = timed.fastest_bytes_per_second;
  }
}

}  // namespace weft::sim
