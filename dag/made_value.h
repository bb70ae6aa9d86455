// Where the first value of an initializer comes from that no file has: numbers that whoever needs them makes,
// the same ones everywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "dag/tensor.h"

namespace weft::dag {

struct MadeValue {
  uint64_t seed = 0;
  double bound = 0;      // uniform between it and its negation
  double deviation = 0;  // in place of that: normal; with neither all are zero
  bool operator==(const MadeValue&) const = default;
};

// Drawn by seed, name and element. REQUIRES: an F32 spec.
Tensor make_value(const MadeValue& how, const TensorSpec& spec, std::string_view name);

}  // namespace weft::dag
