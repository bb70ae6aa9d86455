// What a peer offers of its memory, and what of that a stage, its copies and what is stood by for may take.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

std::optional<int64_t> Peer::State::offered() const {
  const auto& device = options.session.hello.device;
  if (!device || device->memory.value <= 0) return std::nullopt;
  return device->memory.value;
}

// What the host has for copies and blobs: an offer of its own, or what the programs leave.
std::optional<int64_t> Peer::State::room_on_host() const {
  const auto offer = offered();
  if (!offer) return std::nullopt;
  const int64_t apart = options.session.hello.device->host_memory.value;
  return apart > 0 ? apart - runners_on_host() : *offer - programs_bytes();
}

bool Peer::State::shares_offer() const {
  return offered() && options.session.hello.device->host_memory.value <= 0;
}

// What lies on the host whatever the device is has room there, if its offer is apart.
int64_t Peer::State::programs_bytes() const {
  int64_t bytes = parked ? persistent_bytes_of(parked->size) : 0;
  for (const auto& [number, stage] : stages)
    if (stage.runner)
      bytes += persistent_bytes_of(*stage.runner) +
               int64_t{stage.assignment->microbatches_in_flight} * stage.runner->microbatch.value;
  return bytes;
}

int64_t Peer::State::persistent_bytes_of(const RunnerSize& size) const {
  const auto& device = options.session.hello.device;
  const bool is_apart = device && device->host_memory.value > 0;
  return size.persistent.value + (is_apart ? 0 : size.on_host.value);
}

int64_t Peer::State::runners_on_host() const {
  int64_t bytes = parked ? parked->size.on_host.value : 0;
  for (const auto& [number, stage] : stages)
    if (stage.runner) bytes += stage.runner->on_host.value;
  return bytes;
}

// Beside the programs and the copies of other stages; at least the one that is being made.
size_t Peer::State::copies_that_fit(const HeldStage& stage) const {
  auto room = room_on_host();
  if (!room || stage.state_bytes == 0) return options.bounds.copies_fit;
  for (const auto& [number, other] : stages)
    if (&other != &stage) *room -= static_cast<int64_t>(copies_held(other)) * other.state_bytes;
  const auto fit = static_cast<size_t>(std::max<int64_t>(*room / stage.state_bytes, 1));
  return std::min(fit, options.bounds.copies_fit);
}

size_t Peer::State::copies_max(const HeldStage& stage) const {
  return std::min(copies_that_fit(stage), options.bounds.snapshots);
}

// Those that are being made, are on their way to the broker or wait for who fetches them, and those that the
// stage keeps beside them.
size_t Peer::State::copies_held(const HeldStage& stage) const {
  const size_t going = stage.uploads.snapshots() + stage.machine.snapshots_ahead();
  const auto kept = snapshots.find(stage.run());
  return kept == snapshots.end() ? going : going + kept->second.count_beside(stage.uploads.snapshot_steps());
}

bool Peer::State::has_room_for_copy(const HeldStage& stage) const {
  return stage.uploads.snapshots() + stage.machine.snapshots_ahead() < copies_max(stage) &&
         copies_held(stage) < copies_that_fit(stage);
}

// What the stage keeps goes first, for others have that too; then what others have yet to fetch. What is on
// its way to the broker stays, and the copy waits. When kept ones may go is told with commands that may come
// after this copy's.
void Peer::State::make_room_for_copy(HeldStage& stage) {
  Snapshots& kept = snapshots_of(stage.run());
  while (!has_room_for_copy(stage)) {
    const bool let_go =
        copies_held(stage) >= copies_that_fit(stage) && kept.let_go(stage.uploads.snapshot_steps());
    if (!let_go && !stage.uploads.drop_direct()) return;
  }
}

// Once the executors say what they take.
std::optional<Error> Peer::State::exceeds_offer(const HeldStage& stage) const {
  const auto offer = offered(), room = room_on_host();
  const int64_t programs = programs_bytes();
  int64_t copies = 0;
  for (const auto& [number, other] : stages) copies += other.state_bytes;
  if (!offer || (programs <= *offer && copies <= *room)) return std::nullopt;
  if (*room < 0 && !shares_offer())
    return Error{ErrorCode::ResourceExhausted,
                 "the rows that the stage keeps take " + std::to_string(runners_on_host() >> 20) +
                     " MiB; this peer offers " +
                     std::to_string(options.session.hello.device->host_memory.value >> 20) +
                     " MiB on its host"};
  const std::string beside = shares_offer()
                                 ? std::string()
                                 : " and, for copies, " + std::to_string(*room >> 20) + " MiB on its host";
  const std::string with = stages.size() > 1 ? " with the others here" : "";
  return Error{ErrorCode::ResourceExhausted,
               "the stage" + with + " takes " + std::to_string(programs >> 20) +
                   " MiB and a copy of its state " + std::to_string(stage.state_bytes >> 20) +
                   " MiB; this peer offers " + std::to_string(*offer >> 20) + " MiB" + beside};
}

std::optional<Error> Peer::State::tensors_exceed_offer(const HeldStage& stage) const {
  const auto offer = offered();
  if (!offer) return std::nullopt;
  const uint64_t apart =
      static_cast<uint64_t>(std::max<int64_t>(options.session.hello.device->host_memory.value, 0));
  uint64_t size = 0;
  for (const WantedBlob& blob : stage.tensors.blobs) size += blob.size;
  if (size + static_cast<uint64_t>(programs_bytes()) <= static_cast<uint64_t>(*offer) + apart)
    return std::nullopt;
  return Error{ErrorCode::ResourceExhausted, "the stage's tensors are " + std::to_string(size >> 20) +
                                                 " MiB, and this peer offers " +
                                                 std::to_string(*offer >> 20) + " MiB"};
}

}  // namespace weft::peer
