// What a device must offer to run parts of a graph. The backend owns bytes: memory is opaque here and carries
// the device's own storage format (the reference backend keeps F32 values as doubles, a GPU keeps device
// pointers). Kernels are made once for a group of ops and run many times; runs are submitted in order to one
// stream and are complete after synchronize(). One thread drives a backend.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/backend_traits.h"
#include "dag/graph.h"
#include "dag/optimizer.h"

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
  // Views in the order of the signature. An absent optional operand is not in the signature.
  virtual Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
                     const StepContext& context) = 0;
  // For the profiler: which implementation this is ("onednn conv nChw8c", "reference").
  virtual std::string_view implementation() const = 0;
};

using dag::BackendTraits;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "reference", "cpu", "cuda"
  // Everything that decides bits: backend, library versions, instruction set, device kind. Equal
  // fingerprints, equal results.
  virtual std::string numerics_fingerprint() const = 0;
  virtual BackendTraits traits() const = 0;
  virtual int64_t alignment() const { return 64; }

  // Bytes that a value takes in this backend's storage.
  virtual Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout layout) const = 0;
  // ResourceExhausted when there is not that much.
  virtual Result<std::unique_ptr<Memory>> allocate(Bytes size) = 0;

  // Unsupported, naming op, dtype and shape, when there is no kernel.
  virtual Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph,
                                                      const GroupSignature& group) = 0;

  // Host <-> device, plain layout on the host side; `layout` is the device side's.
  virtual Status upload(const dag::Tensor& tensor, View target, dag::Layout layout) = 0;
  virtual Result<dag::Tensor> download(View source, const dag::TensorSpec& spec, dag::Layout layout) = 0;

  // Below, all values are plain float tensors of `spec`.
  virtual Status fill_zero(View target, const dag::TensorSpec& spec) = 0;
  virtual Status copy(View source, View target, const dag::TensorSpec& spec) = 0;
  // into += from
  virtual Status accumulate(View from, View into, const dag::TensorSpec& spec) = 0;
  // Sum of squares in double, elements in order within fixed-size blocks, blocks in order: independent of
  // threads.
  virtual Result<double> sum_of_squares(View source, const dag::TensorSpec& spec) = 0;
  // One optimizer step on one parameter, as PyTorch does it (dag/optimizer.h). `slots` as
  // dag::optimizer_slots.
  virtual Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step, View parameter,
                        View gradient, std::span<const View> slots, const dag::TensorSpec& spec) = 0;

  virtual Status synchronize() = 0;

  // A backend may bind the thread that drives it to a processor, and threads inherit that. A thread that does
  // something else calls this first, to run wherever the process may.
  virtual void release_calling_thread() const {}
};

}  // namespace weft::peer
