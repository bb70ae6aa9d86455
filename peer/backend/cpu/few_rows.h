// Products of few rows: of a network that makes one token after another, every product with a weight.
#pragma once

#include <optional>
#include <vector>

#include "peer/backend/cpu/matmul.h"
#include "peer/backend/cpu/stored.h"

namespace weft::peer::cpu {

// Where the matrices of each batch begin, in elements. As many of a as of b.
struct BatchOffsets {
  std::vector<int64_t> a, b;
};

// Whether make_few_rows has a kernel: few rows, each of a contiguous, and b contiguous one way or the other.
bool suits_few_rows(const Product& product);

// The bits of the blocked product whose sums are not cut into ranges, whatever the number of threads.
// `stored`: what b is made of, then of one batch; without it b are floats.
KernelResult make_few_rows(const KernelRequest& request, const Product& product, BatchOffsets offsets,
                           const ProductSlots& slots, std::optional<StoredOperand> stored = std::nullopt);

}  // namespace weft::peer::cpu
