// A decoder with caches against one that computes the whole window, bit for bit.
#pragma once

#include <memory>
#include <vector>

#include "dag/incremental/incremental.h"
#include "peer/backend/backend.h"
#include "serve/decoder.h"
#include "tests/incremental/net.h"

namespace weft::incremental::testing {

Result<std::shared_ptr<const dag::Incremental>> derive(const Model& model,
                                                       int64_t folded_elements_max = int64_t{1} << 30);

struct Effort {
  std::vector<int64_t> chunks{1, 7, 64};  // tokens a pass
  int64_t sequences = 8;                  // that are packed together
  int passes = 40;                        // of them
};
// Each row of logits has the bits of the whole window's: in chunks, packed in an order from the seed, after
// cuts, and where what follows is something else.
void expect_equal_bits(const Model& model, peer::Backend& backend, uint64_t seed, const Effort& effort = {});

}  // namespace weft::incremental::testing
