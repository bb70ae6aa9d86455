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
  return apart > 0 ? apart : *offer - programs_bytes();
}

bool Peer::State::shares_offer() const {
  return offered() && options.session.hello.device->host_memory.value <= 0;
}

int64_t Peer::State::programs_bytes() const {
  if (!stage || !stage->runner) return 0;
  const int64_t microbatches = stage->assignment->microbatches_in_flight;
  return stage->runner->persistent.value + microbatches * stage->runner->microbatch.value;
}

// Beside the programs; at least the one that is being made.
size_t Peer::State::copies_that_fit() const {
  const auto room = room_on_host();
  if (!room || !stage || stage->state_bytes == 0) return options.bounds.copies_fit;
  const auto fit = static_cast<size_t>(std::max<int64_t>(*room / stage->state_bytes, 1));
  return std::min(fit, options.bounds.copies_fit);
}

size_t Peer::State::copies_max() const { return std::min(copies_that_fit(), options.bounds.snapshots); }

// Those that are being made, are on their way to the broker or wait for who fetches them, and those that the
// stage keeps beside them.
size_t Peer::State::copies_held() const {
  return uploads.snapshots() + stage->machine.snapshots_ahead() +
         snapshots.count_beside(uploads.snapshot_steps());
}

bool Peer::State::has_room_for_copy() const {
  return uploads.snapshots() + stage->machine.snapshots_ahead() < copies_max() &&
         copies_held() < copies_that_fit();
}

// What the stage keeps goes first, for others have that too; then what others have yet to fetch. What is on
// its way to the broker stays, and the copy waits. When kept ones may go is told with commands that may come
// after this copy's.
void Peer::State::make_room_for_copy() {
  while (!has_room_for_copy()) {
    const bool let_go = copies_held() >= copies_that_fit() && snapshots.let_go(uploads.snapshot_steps());
    if (!let_go && !uploads.drop_direct()) return;
  }
}

// Once the executors say what they take.
std::optional<Error> Peer::State::exceeds_offer() const {
  const auto offer = offered(), room = room_on_host();
  const int64_t programs = programs_bytes();
  if (!offer || (programs <= *offer && stage->state_bytes <= *room)) return std::nullopt;
  const std::string beside = shares_offer()
                                 ? std::string()
                                 : " and, for copies, " + std::to_string(*room >> 20) + " MiB on its host";
  return Error{ErrorCode::ResourceExhausted,
               "the stage takes " + std::to_string(programs >> 20) + " MiB and a copy of its state " +
                   std::to_string(stage->state_bytes >> 20) + " MiB; this peer offers " +
                   std::to_string(*offer >> 20) + " MiB" + beside};
}

std::optional<Error> Peer::State::tensors_exceed_offer() const {
  const auto offer = offered();
  if (!offer) return std::nullopt;
  const uint64_t apart =
      static_cast<uint64_t>(std::max<int64_t>(options.session.hello.device->host_memory.value, 0));
  uint64_t size = 0;
  for (const WantedBlob& blob : stage->tensors.blobs) size += blob.size;
  if (size <= static_cast<uint64_t>(*offer) + apart) return std::nullopt;
  return Error{ErrorCode::ResourceExhausted, "the stage's tensors are " + std::to_string(size >> 20) +
                                                 " MiB, and this peer offers " +
                                                 std::to_string(*offer >> 20) + " MiB"};
}

}  // namespace weft::peer
