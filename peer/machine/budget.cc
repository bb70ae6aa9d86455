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

int64_t Peer::State::programs_bytes() const {
  if (!stage || !stage->runner) return 0;
  const int64_t microbatches = stage->assignment->microbatches_in_flight;
  return stage->runner->persistent.value + microbatches * stage->runner->microbatch.value;
}

// At least the one that is being made; so many as fit beside the programs.
size_t Peer::State::copies_max() const {
  const auto room = room_on_host();
  if (!room || !stage || stage->state_bytes == 0) return options.bounds.snapshots;
  return std::clamp<int64_t>(*room / stage->state_bytes, 1, static_cast<int64_t>(options.bounds.snapshots));
}

// Once the executors say what they take.
std::optional<Error> Peer::State::exceeds_offer() const {
  const auto offer = offered(), room = room_on_host();
  const int64_t programs = programs_bytes();
  if (!offer || (programs <= *offer && stage->state_bytes <= *room)) return std::nullopt;
  return Error{ErrorCode::ResourceExhausted,
               "the stage takes " + std::to_string(programs >> 20) + " MiB and a copy of its state " +
                   std::to_string(stage->state_bytes >> 20) + " MiB; this peer offers " +
                   std::to_string(*offer >> 20) + " MiB"};
}

}  // namespace weft::peer
