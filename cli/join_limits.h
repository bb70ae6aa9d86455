// What an owner may offer: no more than the machine has.
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "cli/device.h"

namespace weft::cli {

struct Machine {
  int processors = 0;  // 0: unknown
  Bytes memory{};      // in all; 0: unknown
};
Machine this_machine();

// InvalidArgument: more threads or memory than there are. Of a GPU's own memory its driver knows.
Status check_offer(const Device& device, const OfferedMemory& offered, const Machine& machine);

}  // namespace weft::cli
