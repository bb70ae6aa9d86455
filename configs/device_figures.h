// Internal to configs: what a device can do, as the catalogue and cluster files say it.
#pragma once

#include <optional>
#include <string>

#include "base/units.h"
#include "configs/reader.h"

namespace weft::configs {

struct DeviceFigures {
  double peak_fp32_flops = 0;                              // a second, without tensor cores
  std::optional<double> peak_tf32_flops, peak_bf16_flops;  // with them: dense, sums in fp32
  Bytes memory;
  double memory_bandwidth = 0;  // bytes a second
};

// `peak_flops`, `memory` and `memory_bandwidth` of the map at `path`. With `known` figures each may be left
// out, and what is given goes over them.
DeviceFigures read_figures(MapReader& reader, const std::string& path, Problems& problems,
                           const std::optional<DeviceFigures>& known);

}  // namespace weft::configs
