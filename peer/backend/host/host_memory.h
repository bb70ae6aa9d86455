// The memory of this machine, for the backends that compute in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"
#include "base/units.h"
#include "peer/backend/backend.h"

namespace weft::peer {

// Memory that this process may still take: what the machine has available, or less where a control group (v2
// or v1) limits it. Unavailable when the system does not say. `root` stands for / in tests.
Result<Bytes> free_memory(const std::filesystem::path& root = "/");

// What this process has freed goes back to the machine now: a C library keeps it for the next to ask, which
// a peer that promised to take so much cannot wait for. Takes milliseconds; for after large blocks.
void return_freed_memory();

// Nobody reads these bytes again, and they hold anything afterwards: the whole pages among them go back to
// the machine before the block that they are of is freed.
void give_up_contents(std::span<const std::byte> bytes);

// What a backend that took `used` says of itself. Errors: of free_memory.
Result<MemoryUse> host_memory_use(Bytes used);

}  // namespace weft::peer
