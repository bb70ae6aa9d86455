// Whether all stages of a job are to run on devices of one numerics fingerprint (SPEC, Equal bits).
#pragma once

#include <cstdint>

namespace weft::plan {

enum class EqualBits : uint8_t {
  Require,  // such devices, or none
  Prefer,   // such devices where they are enough; what they cost in speed is not weighed yet
  Ignore,   // whatever is fastest
};

}  // namespace weft::plan
