// Frames between two processes of one machine: u64 length (as the machine has it), then the bytes. Not for
// the network.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace weft::broker {

// One end of a socket pair, which stays the caller's. One thread.
class FramePipe {
 public:
  explicit FramePipe(int descriptor) : descriptor_(descriptor) {}

  // Until then a call may take; nothing: as long as it takes.
  void set_deadline(std::optional<Instant> deadline) { deadline_ = deadline; }

  // Errors: Timeout; Unavailable, the other end is gone.
  Status send(std::span<const std::byte> bytes);
  // The next frame, of at most `size_max` bytes: OutOfRange else, before memory is taken for it.
  Result<std::vector<std::byte>> receive(size_t size_max);

 private:
  Status wait_for(short events) const;
  Status read(std::span<std::byte> out);

  int descriptor_;
  std::optional<Instant> deadline_;
};

Instant monotonic_now();

}  // namespace weft::broker
