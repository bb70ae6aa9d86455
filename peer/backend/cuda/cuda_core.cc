#include "peer/backend/cuda/cuda_core.h"

namespace weft::peer::cuda {

ErrorCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::ResourceExhausted;
    // A kernel did what none may, and the context is corrupt: CUDA says so with each call from then on.
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorLaunchFailure:
    case cudaErrorPriorLaunchFailure:
    case cudaErrorLaunchTimeout:
    // The hardware: memory, links, containment, a card that is gone from the bus.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    // The driver, or the process that stands for it, let go of us.
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorInitializationError:
    case cudaErrorCudartUnloading:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
      return ErrorCode::DeviceLost;
    // Code for another kind of card, or a driver that cannot translate it.
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
    case cudaErrorInvalidKernelImage:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorNotSupported:
      return ErrorCode::Unsupported;
    default:
      return ErrorCode::Internal;
  }
}

std::string describe(cudaError_t error, std::string_view call) {
  return std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

Status CudaCore::bind() {
  // A thread that never named a device would open the first one for itself, memory and all.
  thread_local int bound = -1;
  if (bound == index_) return {};
  WEFT_TRY_STATUS(check(cudaSetDevice(index_), "cudaSetDevice"));
  bound = index_;
  return {};
}

Status CudaCore::enter() {
  if (faulty_.load(std::memory_order_acquire)) return fault();
  return bind();
}

bool CudaCore::enter_to_release() {
  const Status known = fault();
  return (known || known.error().code != ErrorCode::DeviceLost) && bind();
}

Status CudaCore::check(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return {};
  (void)cudaGetLastError();  // said here; the libraries are not to find it and take it for theirs
  const ErrorCode code = code_of(result);
  const Error error{code, name_ + ": " + describe(result, call)};
  if (code == ErrorCode::DeviceLost) return set_fault(error);
  return fail(error);
}

Status CudaCore::fault() const {
  if (!faulty_.load(std::memory_order_acquire)) return {};
  const MutexLock lock(mutex_);
  return fail(fault_);
}

tl::unexpected<Error> CudaCore::set_fault(Error error) {
  const MutexLock lock(mutex_);
  if (!faulty_.load(std::memory_order_relaxed)) {
    fault_ = std::move(error);
    faulty_.store(true, std::memory_order_release);
  }
  return fail(fault_);
}

}  // namespace weft::peer::cuda
