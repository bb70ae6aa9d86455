// The k largest magnitudes of a tensor.
#pragma once

#include "compress/kinds.h"

namespace weft::compress {

// Ascending indices and the bits of the floats there.
struct Selected {
  std::span<uint32_t> index, bits;
};

size_t select_scratch_bytes(size_t count, size_t k);

// Exactly k; of equals, those of lowest index. An infinity or NaN counts as larger than every number, so that
// if x holds one, one is selected. The result lies in `scratch`. REQUIRES: 0 < k <= x.size().
Selected select_largest(std::span<const float> x, size_t k, Arena& scratch);

}  // namespace weft::compress
