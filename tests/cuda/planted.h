// Kernels with a fault each, as one makes them: what the shim is there to find.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

// y = for each block of 64, x reversed, and then summed over each warp, unless a fault comes between.
struct Planted {
  enum Fault : int {
    kNone,
    kMissingBarrier,        // between writing and reading shared memory
    kBarrierNotForAll,      // one thread returned before
    kDivergentBarrier,      // two places in the code
    kGoneBeforeExchange,    // one lane returned
    kDivergentExchange,     // two places
    kUnwrittenShared,       // half of it was never written
    kBeyondShared,          // index 64 of 64
    kBeyondGlobal,          // one behind the array
    kNegativeGlobal,        // one before it
    kWriteWhileRead,        // no barrier before the tile is written again
    kTwoWriters,            // of one element
    kExchangeInPartOfWarp,  // a mask of some lanes
  };
  Array<const float> x;
  Array<float> y;
  Fault fault;
};
extern const EntryOf<Planted> k_planted;

}  // namespace weft::peer::cuda
