// What a device must offer to run parts of a graph. The backend owns bytes and time: what is asked of it is
// submitted, in order, and may be carried out after the call has returned; a later call sees what earlier
// ones did. Whoever needs a result on the host waits for it, at a Download, a Timer or synchronize(). A
// device that fails says so at the next of these calls or waits, and at all after it (DeviceLost: it is
// gone). Memory, kernels and recordings may be let go at any time: they last until the device has done what
// uses them.
//
// One thread drives a backend; Downloads and Timers are waited for on any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/backend_traits.h"
#include "dag/gradient_order.h"
#include "dag/graph.h"
#include "dag/optimizer.h"
#include "peer/backend/download.h"
#include "peer/backend/kernel.h"

namespace weft::peer {

using dag::BackendTraits;

// A plain tensor on the device.
struct TensorView {
  View view;
  dag::TensorSpec spec;
};

// A parameter and what its update reads and writes.
struct ParameterUpdate {
  dag::TensorSpec spec;  // of the parameter and the gradient
  View parameter, gradient;
  std::vector<View> slots;        // as dag::optimizer_slots, of the specs of dag/slots.h
  std::optional<size_t> group{};  // of OptimizerSpec::groups
};

struct MemoryUse {
  Bytes used;   // taken from this backend and not given back
  Bytes free;   // what it could still take, as far as the device knows
  Bytes total;  // of the device, whoever uses it
};

// What a backend has recorded of one program's submissions. Goes before the memory that they use.
class Recordings {
 public:
  virtual ~Recordings() = default;
};

// Names a submission. Equal keys submit the same kernels, copies and sums on the same memory in the same
// order; what may differ from one to the next is the contents of memory and of the context.
struct ReplayKey {
  Recordings* program = nullptr;  // of make_recordings(); nullptr: not to be recorded
  uint32_t segment = 0;
  uint32_t microbatch = 0;  // which arena: never a new arena under an old number
  dag::GradientTurn turn{};
  bool keeps_statistics = true;
  auto operator<=>(const ReplayKey&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "reference", "cpu", "cuda"
  // Everything that decides bits: backend, library versions, instruction set, device kind. Equal
  // fingerprints, equal results.
  virtual std::string numerics_fingerprint() const = 0;
  virtual BackendTraits traits() const = 0;
  // Unsupported, with the field, when kernels cannot compute, or values not be kept or sent, like that.
  // By default: all but float32 throughout.
  virtual Status check(const Precision& precision) const;

  virtual int64_t alignment() const { return 64; }
  // Bytes that a value takes in this backend's storage.
  virtual Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout layout) const = 0;
  // ResourceExhausted when there is not that much, or the limit leaves less.
  virtual Result<std::unique_ptr<Memory>> allocate(Bytes size) = 0;
  // What may be allocated at once; without it all that there is.
  void set_limit(Bytes limit) { limit_ = limit; }
  virtual Result<MemoryUse> memory() const = 0;

  // Unsupported, naming op, dtype and shape, when there is no kernel.
  virtual Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph,
                                                      const GroupSignature& group) = 0;

  // After the last make_kernel() of a graph and before the first run: what is cheaper to make ready for all
  // kernels at once than one by one. By default: nothing. Errors: as make_kernel().
  virtual Status prepare() { return {}; }

  // Host <-> device, plain layout on the host side; `layout` is the device side's. The tensor given to
  // upload() may be let go at once: the backend holds it for as long as it reads it.
  virtual Status upload(const dag::Tensor& tensor, View target, dag::Layout layout) = 0;
  // Errors: Unsupported for an encoding that this backend does not know.
  virtual Result<std::unique_ptr<Download>> begin_download(View source, const dag::TensorSpec& spec,
                                                           dag::Layout layout, const Encoding& encoding) = 0;
  // Waits for it.
  Result<dag::Tensor> download(View source, const dag::TensorSpec& spec, dag::Layout layout);

  // Below, all values are plain; of any dtype for zeroes and copies.
  virtual Status fill_zero(View target, const dag::TensorSpec& spec) = 0;
  virtual Status copy(View source, View target, const dag::TensorSpec& spec) = 0;
  // into += from; float tensors.
  virtual Status accumulate(View from, View into, const dag::TensorSpec& spec) = 0;
  // The sum of squares of each, in one f64 tensor of as many elements. Added in double, elements in order
  // within fixed-size blocks, blocks in order: independent of threads. Float tensors.
  virtual Result<std::unique_ptr<Download>> begin_sums_of_squares(std::span<const TensorView> sources) = 0;
  // Waits for them.
  Result<std::vector<double>> sums_of_squares(std::span<const TensorView> sources);
  // One optimizer step on all the parameters, as PyTorch does it (dag/optimizer.h).
  virtual Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                        std::span<const ParameterUpdate> parameters) = 0;

  // Work that is the same for each equal key, so that a device may record it once and repeat that without
  // calling `work` again. `work` runs kernels, copies, accumulates and fills with zero, and asks for nothing
  // else; it hands the context that it is given to the kernels. A backend that records keeps that context at
  // one place and sets it before each repetition. By default: `work` is called, now. Errors: what it says.
  virtual Status submit(const ReplayKey& key, const StepContext& context,
                        const std::function<Status(const StepContext&)>& work);
  // For the ReplayKeys of one program; nullptr from a backend that records nothing, which is the default.
  virtual std::unique_ptr<Recordings> make_recordings() { return nullptr; }

  // Begins behind what was submitted so far.
  virtual Result<std::unique_ptr<Timer>> start_timer() = 0;
  // Waits for all that was submitted.
  virtual Status synchronize() = 0;

  // A backend may bind the thread that drives it to a processor, and threads inherit that. A thread that does
  // something else calls this first, to run wherever the process may.
  virtual void release_calling_thread() const {}

 protected:
  // Of begin_download, for backends that know no other.
  Status need_dense(const Encoding& encoding) const;
  // Of allocate(), with what is taken already.
  Status admit(Bytes size, Bytes used) const;

 private:
  std::optional<Bytes> limit_;
};

}  // namespace weft::peer
