// The seam between the backend and a GPU: streams, events, memory, kernels and the two libraries, nothing
// more. Two stand behind it: CudaDevice (the CUDA runtime) and the tests' HostDevice, whose kernels run on a
// shim and whose streams run as late or as early as events allow. All that decides (what runs where, what
// waits for what, what may be reused when) is above it and the same for both.
//
// One thread submits. Waiting for an event, asking whether one is over and giving pinned memory back is
// anybody's. A device that is lost answers everything with DeviceLost from then on. Compiled kernels, library
// ops and recordings are let go when nothing that was submitted uses them any more (KernelHost::retire).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "peer/backend/cuda/kernels/launch.h"
#include "peer/backend/cuda/library_ops.h"

namespace weft::peer::cuda {

enum class Stream : uint8_t { Compute, CopyIn, CopyOut };
inline constexpr int kStreams = 3;

struct DeviceProperties {
  std::string name;  // "NVIDIA GeForce RTX 3080"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  Bytes memory;
  bool has_display = false;
  std::string libraries;    // names and versions of whatever decides bits, one line
  std::string environment;  // variables that change the libraries' arithmetic, as they are set; usually empty
};

// A place in a stream: record() puts it behind what was submitted there so far.
class Event {
 public:
  virtual ~Event() = default;
};

// A kernel that is compiled while the program runs.
class CompiledKernel {
 public:
  virtual ~CompiledKernel() = default;
};
struct KernelSource {
  std::string
      name;  // of the function, extern "C" in `code`; of a digest of the code, so that equal names are equal
  std::string code;  // CUDA C++, for NVRTC; may include the files of kernels/
  size_t parameter_bytes = 0;
};

// A product or convolution whose algorithm has been chosen, for good: equal operands, equal bits.
class LibraryOp {
 public:
  virtual ~LibraryOp() = default;
  virtual Bytes workspace_bytes() const = 0;
  virtual std::string implementation() const = 0;
};

// What a stream was told while it was captured.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceProperties& properties() const = 0;
  virtual Result<Bytes> free_memory() = 0;

  // Device memory at multiples of 256. REQUIRES of deallocate(): nothing that was submitted uses it any more.
  virtual Result<std::byte*> allocate(Bytes size) = 0;
  virtual void deallocate(std::byte* memory) = 0;
  // Memory of the host that copies reach without its help. Any thread gives it back.
  virtual Result<std::byte*> allocate_pinned(Bytes size) = 0;
  virtual void deallocate_pinned(std::byte* memory) = 0;

  // Submitted, carried out in each stream's order. `parameters` are copied at once.
  virtual Status launch(Stream stream, const Entry& kernel, const Grid& grid, const void* parameters) = 0;
  virtual Status launch(Stream stream, const CompiledKernel& kernel, const Grid& grid,
                        const void* parameters) = 0;
  virtual Status copy_in(Stream stream, const std::byte* pinned, std::byte* to, Bytes size) = 0;
  virtual Status copy_out(Stream stream, const std::byte* from, std::byte* pinned, Bytes size) = 0;
  virtual Status copy_within(Stream stream, const std::byte* from, std::byte* to, Bytes size) = 0;
  virtual Status fill_zero(Stream stream, std::byte* to, Bytes size) = 0;
  // A function of the host between what stands before and behind it; must not call the device. A failure is
  // the device's from then on: whoever waits hears it.
  virtual Status call_host(Stream stream, std::function<Status()> function) = 0;

  virtual Result<std::shared_ptr<Event>> make_event(bool timed) = 0;
  virtual Status record(Event& event, Stream stream) = 0;
  // Whatever is submitted to `stream` from now on waits for the event as it was last recorded.
  virtual Status wait_in(Stream stream, const Event& event) = 0;
  virtual Status wait_for(const Event& event) = 0;                             // the caller waits
  virtual Result<bool> is_over(const Event& event) = 0;                        // never waits
  virtual Result<Duration> between(const Event& begin, const Event& end) = 0;  // both timed and over
  virtual Status synchronize() = 0;                                            // everything

  // Between the two, what Compute is told is not carried out but noted. REQUIRES: meanwhile nothing else is
  // submitted, and no call but launch, copy_within, copy_in, copy_out, fill_zero, call_host and run is made.
  virtual Status begin_recording() = 0;
  virtual Result<std::shared_ptr<Recording>> end_recording() = 0;
  virtual Status replay(const Recording& recording) = 0;  // on Compute

  // Noted; compiled, with all others that were noted, by compile() or the first launch, or taken from the
  // cache on disk.
  virtual Result<std::shared_ptr<CompiledKernel>> add_source(KernelSource source) = 0;
  virtual Status compile() = 0;

  // Unsupported, with the shape, where no deterministic algorithm is to be had. Run on Compute; `bias` may be
  // null without one. Operands and results are F32; for arithmetic BF16 operands are BF16, and a
  // convolution's result, too (no library has one that writes F32), its sums in float32 all the same.
  virtual Result<std::shared_ptr<LibraryOp>> make_product(const ProductSpec& spec) = 0;
  virtual Result<std::shared_ptr<LibraryOp>> make_convolution(const ConvolutionSpec& spec) = 0;
  // In the order of library_ops.h: a, b, c; the two operands and the result of the direction.
  virtual Status run(const LibraryOp& op, const std::byte* first, const std::byte* second,
                     const std::byte* bias, std::byte* result, std::byte* workspace) = 0;
};

template <typename Parameters>
Status launch(Device& device, const EntryOf<Parameters>& kernel, const Grid& grid,
              const Parameters& parameters) {
  return device.launch(Stream::Compute, kernel, grid, &parameters);
}

}  // namespace weft::peer::cuda
