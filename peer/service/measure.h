// What a peer finds out about its own device before it offers it: how fast, and how much memory is free.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "base/units.h"
#include "peer/backend/backend.h"
#include "plan/device.h"

namespace weft::peer {

// Times a matrix product, a convolution, an addition and a kernel without work on the backend, about a second
// in all; the faster ones of several runs, warm. Blocks; call it on the thread that drives the backend, while
// nothing else runs there. Errors: the backend's own. Not for a null backend: its rates are given.
Result<plan::Rates> measure_rates(Backend& backend);

// Memory that this process may still take: what the machine has available, or less where a control group (v2
// or v1) limits it. Unavailable when the system does not say. `root` stands for / in tests.
Result<Bytes> free_memory(const std::filesystem::path& root = "/");

}  // namespace weft::peer
