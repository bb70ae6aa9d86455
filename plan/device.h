// What a planner knows of a device: how fast, how much memory.
#pragma once

#include <string>

#include "base/units.h"

namespace weft::plan {

// What a device does when it does nothing else. All positive.
struct Rates {
  double matmul_flops_per_second = 1e9;
  double convolution_flops_per_second = 1e9;
  double memory_bytes_per_second = 1e9;  // of ops that only move data: bytes read and written
  double kernel_seconds = 0;             // what launching one kernel costs
  bool operator==(const Rates&) const = default;
};

}  // namespace weft::plan
