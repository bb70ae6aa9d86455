// What all parts of the real device share: which GPU it is, and whether it is lost. Every call of the CUDA
// runtime stands between enter() and check(), so that each failure is typed in one place.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"

namespace weft::peer::cuda {

// DeviceLost for what leaves a GPU, or this process's part of it, unusable.
ErrorCode code_of(cudaError_t error);
// "cudaMalloc: out of memory (cudaErrorMemoryAllocation)"
std::string describe(cudaError_t error, std::string_view call);

// Any thread. Outlives the device with whoever holds an event or a recording of it.
class CudaCore {
 public:
  CudaCore(int index, std::string name) : index_(index), name_(std::move(name)) {}
  CudaCore(const CudaCore&) = delete;
  CudaCore& operator=(const CudaCore&) = delete;

  const std::string& name() const { return name_; }

  // Makes this GPU the calling thread's. Errors: the fault, if there is one.
  Status enter();
  // The same for those that give back, whatever function has failed. False: the GPU is lost, and all on it.
  bool enter_to_release();
  // The outcome of `call`. A loss is a fault from then on.
  Status check(cudaError_t result, std::string_view call);

  // The first failure that nothing recovers from, which every call answers from then on.
  Status fault() const;
  // Error: the fault, which is an earlier one if there was one.
  tl::unexpected<Error> set_fault(Error error);

 private:
  Status bind();

  const int index_;
  const std::string name_;
  mutable Mutex mutex_;
  std::atomic<bool> faulty_{false};
  Error fault_ WEFT_GUARDED_BY(mutex_);  // does not change once faulty_ is set
};

}  // namespace weft::peer::cuda
