// What runs on a device: kernels, made once for a group of ops and run many times on views of its memory.
// Memory is opaque here and carries the device's own storage format (the reference backend keeps F32 values
// as doubles, a GPU keeps device pointers).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/graph.h"
#include "peer/backend/precision.h"

namespace weft::peer {

// What a kernel may know of where it is in the run.
struct StepContext {
  uint64_t seed = 0;
  uint64_t step = 0;            // 1-based
  int64_t sample_position = 0;  // position in the batch of this microbatch's first sample
  int64_t microbatch_size = 1;  // samples in this microbatch
};

// A block of device memory; freed with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Bytes size() const = 0;
};

// To the next multiple of an alignment.
constexpr int64_t align_up(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Part of a block. Offsets are multiples of Backend::alignment().
struct View {
  Memory* memory = nullptr;
  int64_t offset = 0;  // bytes
};

// The outside of a group of ops: what it reads from and writes to memory, in a fixed order.
struct GroupSignature {
  std::vector<dag::OpId> ops;         // topological order
  std::vector<dag::ValueId> inputs;   // produced outside, first use first
  std::vector<dag::ValueId> outputs;  // produced inside and needed outside (or every output of a lone op)
  Precision precision{};              // asked of the kernel
  // A row's result has the bits that it has when the row is computed alone, and trailing terms that are zero
  // do not change it. Asked of the kernel by programs that only go forward; the cuda backend ignores it so
  // far.
  bool rows_alone = false;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Scratch memory that run() needs; contents need not survive.
  virtual Bytes workspace_bytes() const { return {0}; }
  // The input whose buffer output `i` may take over when that input is not needed afterwards; -1: none.
  virtual int in_place_input(size_t output) const {
    (void)output;
    return -1;
  }
  // Views in the order of the signature. An absent optional operand is not in the signature. Submits the
  // work: it may be carried out later, and more than once (Backend::submit). `context` is what the backend
  // gave to the submitted work: it stays where it is, and holds what counts for the run that is carried out.
  virtual Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
                     const StepContext& context) = 0;
  // For the profiler: which implementation this is ("onednn conv nChw8c", "reference").
  virtual std::string_view implementation() const = 0;
};

}  // namespace weft::peer
