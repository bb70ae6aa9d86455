#include "peer/backend/cuda/cuda_properties.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "peer/backend/cuda/cuda_build.h"
#include "peer/backend/cuda/cuda_core.h"

namespace weft::peer::cuda {
namespace {

constexpr int kOldest = 75;
constexpr std::string_view kNeeds =
    "weft's CUDA backend is built with CUDA 13, which needs NVIDIA's driver 580 or newer";

std::string version(int number) {  // CUDA's and NVRTC's way: 13020
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string capability(const cudaDeviceProp& card) {
  return "sm_" + std::to_string(card.major) + std::to_string(card.minor);
}
int sm_of(int major, int minor) { return 10 * major + minor; }

Status started(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return {};
  (void)cudaGetLastError();
  return fail(start_error(result, call, driver_version()));
}

Result<std::vector<cudaDeviceProp>> all_cards() {
  if (driver_version().empty())
    return fail(start_error(cudaErrorInsufficientDriver, "cudaDriverGetVersion", ""));
  int count = 0;
  WEFT_TRY_STATUS(started(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  std::vector<cudaDeviceProp> cards(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    WEFT_TRY_STATUS(
        started(cudaGetDeviceProperties(&cards[static_cast<size_t>(i)], i), "cudaGetDeviceProperties"));
  return cards;
}

std::string list_of(std::span<const cudaDeviceProp> cards) {
  if (cards.empty()) return "there is none";
  std::string list = "there " + std::string(cards.size() == 1 ? "is " : "are ");
  for (size_t i = 0; i < cards.size(); ++i)
    list += std::string(i == 0 ? "" : ", ") + "cuda:" + std::to_string(i) + " (" + cards[i].name + ", " +
            capability(cards[i]) + ", " + std::to_string(cards[i].totalGlobalMem >> 20) + " MiB)";
  return list;
}

Status check_served(const cudaDeviceProp& card) {
  const int sm = sm_of(card.major, card.minor);
  if (sm < kOldest)
    return fail(ErrorCode::Unsupported, std::string(card.name) + " is " + capability(card) +
                                            ": the CUDA backend needs sm_75 (Turing) or newer");
  if (origin_of_code(sm, machine_code_built_in(), ptx_built_in()) == CodeOrigin::None)
    return fail(ErrorCode::Unsupported, std::string(card.name) + " is " + capability(card) +
                                            ": this build of the CUDA backend has no code for it");
  return {};
}

// Of all that the bits come from. Not the driver, which runs machine code as it finds it; but where it
// translates PTX it is a compiler like the others.
Result<std::string> libraries_of(const cudaDeviceProp& card) {
  int runtime = 0, nvrtc_major = 0, nvrtc_minor = 0;
  WEFT_TRY_STATUS(started(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  if (nvrtcVersion(&nvrtc_major, &nvrtc_minor) != NVRTC_SUCCESS)
    return fail(ErrorCode::Internal, "nvrtcVersion: NVRTC does not say which it is");
  std::string text = "CUDA " + version(runtime) + ", cuBLASLt " + std::to_string(cublasLtGetVersion()) +
                     ", cuDNN " + std::to_string(cudnnGetVersion()) + ", NVRTC " +
                     std::to_string(nvrtc_major) + "." + std::to_string(nvrtc_minor) + ", kernels " +
                     std::string(code_digest());
  if (origin_of_code(sm_of(card.major, card.minor), machine_code_built_in(), ptx_built_in()) ==
      CodeOrigin::Translated)
    text += ", translated by driver " + driver_version();
  return text;
}

std::string environment_now() {
  std::vector<std::string_view> variables;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) variables.emplace_back(*at);
  return arithmetic_environment(variables);
}

// Of the cards' libraries' variables those that change no bit: what is written where, what is loaded when.
bool only_logs(std::string_view name) {
  constexpr std::string_view kLogs[] = {"CUBLAS_LOG", "CUBLASLT_LOG", "CUBLASLT_NVTX", "CUDNN_LOG"};
  return std::any_of(std::begin(kLogs), std::end(kLogs),
                     [&](std::string_view log) { return name.starts_with(log); });
}
bool decides_bits(std::string_view name) {
  constexpr std::string_view kNames[] = {"NVIDIA_TF32_OVERRIDE", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT",
                                         "CUDA_FORCE_JIT", "CUDA_DISABLE_JIT"};
  constexpr std::string_view kFamilies[] = {"CUBLAS_", "CUBLASLT_", "CUDNN_"};
  if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
  return !only_logs(name) && std::any_of(std::begin(kFamilies), std::end(kFamilies),
                                         [&](std::string_view family) { return name.starts_with(family); });
}

}  // namespace

std::string driver_version() {
  int number = 0;
  if (cudaDriverGetVersion(&number) != cudaSuccess || number == 0) return {};
  std::string release;  // of the kernel's module; not where the host is another system (WSL)
  std::ifstream("/sys/module/nvidia/version") >> release;
  return (release.empty() ? "one" : release) + ", which serves CUDA " + version(number);
}

Error start_error(int error, std::string_view call, const std::string& driver) {
  const auto code = static_cast<cudaError_t>(error);
  const std::string said = describe(code, call);
  switch (code) {
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorCallRequiresNewerDriver:
      if (driver.empty())
        return {
            ErrorCode::Unsupported,
            "no CUDA driver: libcuda.so.1 is not there or does not start (a container needs --gpus all); " +
                std::string(kNeeds)};
      return {ErrorCode::Unsupported, "the CUDA driver is too old or does not fit: it is " + driver + "; " +
                                          std::string(kNeeds) + " (" + said + ")"};
    case cudaErrorNoDevice:
      return {ErrorCode::Unsupported, "no CUDA device: the driver is " + driver +
                                          " and finds no GPU that it serves; " + std::string(kNeeds) +
                                          " (CUDA_VISIBLE_DEVICES hides those it does not name)"};
    case cudaErrorDevicesUnavailable:
      return {ErrorCode::Unavailable, "the GPU is busy, or kept for another process: " + said};
    case cudaErrorMemoryAllocation:
      return {ErrorCode::ResourceExhausted, "the GPU has no memory left to begin with: " + said};
    default:
      return {code_of(code) == ErrorCode::DeviceLost ? ErrorCode::Unavailable : code_of(code),
              "CUDA does not start, with driver " + driver + ": " + said};
  }
}

CodeOrigin origin_of_code(int sm, std::span<const int> machine_code, std::span<const int> ptx) {
  if (run_time_target(sm, machine_code) != 0) return CodeOrigin::Own;
  const bool older = std::any_of(ptx.begin(), ptx.end(), [&](int from) { return from <= sm; });
  return older ? CodeOrigin::Translated : CodeOrigin::None;
}

int run_time_target(int sm, std::span<const int> supported) {
  int best = 0;
  for (const int target : supported)
    if (target / 10 == sm / 10 && target <= sm) best = std::max(best, target);
  return best;
}

Result<std::string> run_time_architecture(const DeviceProperties& properties) {
  int count = 0;
  if (nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count < 1)
    return fail(ErrorCode::Internal, "nvrtcGetNumSupportedArchs: NVRTC does not say for what it compiles");
  std::vector<int> supported(static_cast<size_t>(count));
  if (nvrtcGetSupportedArchs(supported.data()) != NVRTC_SUCCESS)
    return fail(ErrorCode::Internal, "nvrtcGetSupportedArchs: NVRTC does not say for what it compiles");
  const int sm = sm_of(properties.compute_major, properties.compute_minor);
  const int target = run_time_target(sm, supported);
  if (target == 0)
    return fail(ErrorCode::Unsupported, properties.name + " is sm_" + std::to_string(sm) +
                                            ": NVRTC here cannot compile for it; a newer weft may");
  return "sm_" + std::to_string(target);
}

std::string arithmetic_environment(std::span<const std::string_view> variables) {
  constexpr size_t kLengthMax = 128;  // of one: it goes into the name of a device class
  std::vector<std::string> found;
  for (const std::string_view variable : variables) {
    if (!decides_bits(variable.substr(0, variable.find('=')))) continue;
    std::string text(variable.substr(0, kLengthMax));
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; }, '_');
    found.push_back(std::move(text));
  }
  std::sort(found.begin(), found.end());
  std::string line;
  for (const std::string& text : found) line += (line.empty() ? "" : " ") + text;
  return line;
}

Result<DeviceProperties> find_cuda_device(int index) {
  WEFT_TRY(const std::vector<cudaDeviceProp> cards, all_cards());
  if (index < 0 || static_cast<size_t>(index) >= cards.size())
    return fail(ErrorCode::NotFound, "no device cuda:" + std::to_string(index) + ": " + list_of(cards));
  const cudaDeviceProp& card = cards[static_cast<size_t>(index)];
  WEFT_TRY_STATUS(check_served(card));
  int run_time_limit = 0;  // of kernels: what the driver sets on a card that shows a desktop
  WEFT_TRY_STATUS(started(cudaDeviceGetAttribute(&run_time_limit, cudaDevAttrKernelExecTimeout, index),
                          "cudaDeviceGetAttribute"));
  WEFT_TRY(std::string libraries, libraries_of(card));
  return DeviceProperties{.name = card.name,
                          .compute_major = card.major,
                          .compute_minor = card.minor,
                          .multiprocessors = card.multiProcessorCount,
                          .memory = {static_cast<int64_t>(card.totalGlobalMem)},
                          .has_display = run_time_limit != 0,
                          .libraries = std::move(libraries),
                          .environment = environment_now()};
}

}  // namespace weft::peer::cuda
