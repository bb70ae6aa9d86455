// The backend for processors: oneDNN for convolution and matrix products, vector loops of our own for the
// rest, the reference's arithmetic for what is rare. Values are kept at their ONNX element size; F32 graphs
// are fast, the other float dtypes go through the reference.
//
// Results have the same bits for any number of threads: work is cut into pieces by shape alone, each computed
// by one thread, and partial sums are combined in a fixed order.
#pragma once

#include <memory>

#include "base/result.h"
#include "peer/backend/backend.h"

namespace weft::peer {

struct CpuOptions {
  int threads = 0;  // 0: one for each processor that this process may use
  // Binds thread i to the i-th of those processors, the driving thread included. Not for several backends
  // that compute at once on one machine: they would share the first processors.
  bool pin = true;
  // Takes the backend's own convolutions even where oneDNN has a fast one: for tests and benches.
  bool own_convolutions = false;
};

// Errors: InvalidArgument for a number of threads out of range; Internal when oneDNN does not start.
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace weft::peer
