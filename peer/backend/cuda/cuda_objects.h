// What a CudaDevice hands out and keeps: events, calls of the host, code and recordings, each of which lets
// go of its handle only while the GPU is there. Internal to cuda_device.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "peer/backend/cuda/cuda_core.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

// The call by its name, and what came of it.
#define WEFT_CUDA(core, function, ...) (core).check(function(__VA_ARGS__), #function)

struct CudaEvent final : Event {
  explicit CudaEvent(std::shared_ptr<CudaCore> owner) : core(std::move(owner)) {}
  ~CudaEvent() override {
    if (handle != nullptr && core->enter_to_release()) (void)WEFT_CUDA(*core, cudaEventDestroy, handle);
  }
  Status open(bool timed) {
    // Who waits sleeps; a processor that spins is taken from the machine's owner.
    const unsigned flags = cudaEventBlockingSync | (timed ? 0u : cudaEventDisableTiming);
    return WEFT_CUDA(*core, cudaEventCreateWithFlags, &handle, flags);
  }
  std::shared_ptr<CudaCore> core;
  cudaEvent_t handle = nullptr;
};
inline cudaEvent_t handle_of(const Event& event) { return static_cast<const CudaEvent&>(event).handle; }

// A function that a stream calls. Runs on a thread of CUDA's, where no call of CUDA may be made: so it is
// only marked as done there, and let go, with what it holds, on the thread that drives the device.
struct HostCall {
  HostCall(std::function<Status()> called, std::shared_ptr<CudaCore> owner)
      : function(std::move(called)), core(std::move(owner)) {}
  std::function<Status()> function;
  std::shared_ptr<CudaCore> core;
  std::atomic<bool> done{false};

  Status call() const noexcept {
    try {
      return function();
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::ResourceExhausted,
                  core->name() + ": no memory on the host for a function of a stream");
    } catch (const std::exception& thrown) {
      return fail(ErrorCode::Internal, core->name() + ": a function of a stream: " + thrown.what());
    }
  }
};
inline void CUDART_CB run_host_call(void* data) {
  auto& call = *static_cast<HostCall*>(data);
  if (call.core->fault())
    if (const Status called = call.call(); !called) (void)call.core->set_fault(called.error());
  call.done.store(true, std::memory_order_release);
}
using HostCalls = std::deque<std::unique_ptr<HostCall>>;
// Whether CUDA still calls what a lost GPU was to call is not known: that stays, as the process will not.
inline void abandon(HostCalls& calls) {
  if (!calls.empty()) (void)new HostCalls(std::move(calls));
}

// Code on the GPU, for as long as a kernel of it or a recording with one is held.
struct LoadedCode {
  explicit LoadedCode(std::shared_ptr<CudaCore> owner) : core(std::move(owner)) {}
  ~LoadedCode() {
    if (handle != nullptr && core->enter_to_release()) (void)WEFT_CUDA(*core, cudaLibraryUnload, handle);
  }
  LoadedCode(const LoadedCode&) = delete;
  LoadedCode& operator=(const LoadedCode&) = delete;
  Status open(std::span<const char> code) {
    return WEFT_CUDA(*core, cudaLibraryLoadData, &handle, code.data(), nullptr, nullptr, 0, nullptr, nullptr,
                     0);
  }
  std::shared_ptr<CudaCore> core;
  cudaLibrary_t handle = nullptr;
};

struct CudaCompiledKernel final : CompiledKernel {
  explicit CudaCompiledKernel(KernelSource given) : source(std::move(given)) {}
  KernelSource source;
  std::shared_ptr<const LoadedCode> code;  // null before it is compiled
  cudaKernel_t handle = nullptr;
};

struct CudaRecording final : Recording {
  explicit CudaRecording(std::shared_ptr<CudaCore> owner) : core(std::move(owner)) {}
  ~CudaRecording() override {
    if (!core->enter_to_release())
      abandon(host_calls);
    else if (handle != nullptr)
      (void)WEFT_CUDA(*core, cudaGraphExecDestroy, handle);
  }
  std::shared_ptr<CudaCore> core;
  cudaGraphExec_t handle = nullptr;
  HostCalls host_calls;                           // what the graph calls
  std::vector<std::shared_ptr<const void>> kept;  // whose code it runs
};

}  // namespace weft::peer::cuda
