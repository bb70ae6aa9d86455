// The link emulator: a token bucket and a delay for each direction, in this process, beneath TLS. No
// privilege is needed, and what is drawn at random comes from the seed.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace weft::net {

struct ShapeDirection {
  double bytes_per_second = 0;  // 0: not limited
  Duration delay{};             // one way
  Duration jitter{};            // uniform in [0, jitter), added to the delay; order is kept
  double loss = 0;  // of a segment of 1448 bytes; a lost one comes a round trip later, as TCP's repair does
};

// Of one connection, seen from this side.
struct Shape {
  ShapeDirection send{}, receive{};
  uint64_t seed = 0;
};

}  // namespace weft::net
