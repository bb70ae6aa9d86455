// Which GPU is meant, whether this build serves it, and all that decides its bits. Opens no context: a GPU
// that is not taken keeps its memory.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

// Errors, with what to do: Unsupported without a driver, with one that is too old, with a card before sm_75
// or beyond what this build knows; NotFound, with those that there are, for an index beyond them; Unavailable
// where the driver is not ready or the card kept for another process.
Result<DeviceProperties> find_cuda_device(int index);

// What cudaError says before there is a device. Pure. `driver`: as driver_version().
Error start_error(int error, std::string_view call, const std::string& driver);
// "580.65.06, which serves CUDA 13.0"; empty when there is none.
std::string driver_version();

// For which of them code for a card of `sm` (86: 8.6) can be had: code of the same generation for it or an
// older card runs as it is; else the driver translates an older one's PTX. Pure.
enum class CodeOrigin : uint8_t { Own, Translated, None };
CodeOrigin origin_of_code(int sm, std::span<const int> machine_code, std::span<const int> ptx);
// The newest that NVRTC can compile for which runs on a card of `sm`; 0: none. Pure.
int run_time_target(int sm, std::span<const int> supported);
// As NVRTC wants it: "sm_86". Errors: Unsupported.
Result<std::string> run_time_architecture(const DeviceProperties& properties);

// Of the variables "NAME=value" those by which CUDA's libraries compute or choose otherwise, in order, one
// line; no more than that of each. Pure.
std::string arithmetic_environment(std::span<const std::string_view> variables);

}  // namespace weft::peer::cuda
