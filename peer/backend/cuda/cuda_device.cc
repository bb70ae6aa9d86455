#include "peer/backend/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "peer/backend/cuda/cuda_build.h"
#include "peer/backend/cuda/cuda_core.h"
#include "peer/backend/cuda/cuda_libraries.h"
#include "peer/backend/cuda/cuda_objects.h"
#include "peer/backend/cuda/cuda_properties.h"
#include "peer/backend/cuda/nvrtc_compile.h"

namespace weft::peer::cuda {
namespace {

size_t size_of(Bytes bytes) { return static_cast<size_t>(bytes.value); }

// All that decides what a program of kernels becomes, and the programs.
std::string cache_key(const std::string& architecture, std::span<const KernelSource> sources) {
  int major = 0, minor = 0;
  (void)nvrtcVersion(&major, &minor);
  std::string key = "NVRTC " + std::to_string(major) + "." + std::to_string(minor) + " " + architecture +
                    " " + std::string(code_digest()) + "\n";
  for (const KernelSource& source : sources)
    key += source.name + " " + std::to_string(source.code.size()) + "\n" + source.code + "\n";
  return key;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceProperties properties, const CudaDeviceOptions& options)
      : properties_(std::move(properties)),
        index_(options.index),
        core_(std::make_shared<CudaCore>(options.index, properties_.name)),
        cache_(options.kernel_cache) {}
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override;
  Status open();

  const DeviceProperties& properties() const override { return properties_; }
  Result<Bytes> free_memory() override;
  Result<std::byte*> allocate(Bytes size) override;
  void deallocate(std::byte* memory) override;
  Result<std::byte*> allocate_pinned(Bytes size) override;
  void deallocate_pinned(std::byte* memory) override;

  Status launch(Stream stream, const Entry& kernel, const Grid& grid, const void* parameters) override;
  Status launch(Stream stream, const CompiledKernel& kernel, const Grid& grid,
                const void* parameters) override;
  Status copy_in(Stream stream, const std::byte* pinned, std::byte* to, Bytes size) override;
  Status copy_out(Stream stream, const std::byte* from, std::byte* pinned, Bytes size) override;
  Status copy_within(Stream stream, const std::byte* from, std::byte* to, Bytes size) override;
  Status fill_zero(Stream stream, std::byte* to, Bytes size) override;
  Status call_host(Stream stream, std::function<Status()> function) override;

  Result<std::shared_ptr<Event>> make_event(bool timed) override;
  Status record(Event& event, Stream stream) override;
  Status wait_in(Stream stream, const Event& event) override;
  Status wait_for(const Event& event) override;
  Result<bool> is_over(const Event& event) override;
  Result<Duration> between(const Event& begin, const Event& end) override;
  Status synchronize() override;

  Status begin_recording() override;
  Result<std::shared_ptr<Recording>> end_recording() override;
  Status replay(const Recording& recording) override;

  Result<std::shared_ptr<CompiledKernel>> add_source(KernelSource source) override;
  Status compile() override;

  Result<std::shared_ptr<LibraryOp>> make_product(const ProductSpec& spec) override;
  Result<std::shared_ptr<LibraryOp>> make_convolution(const ConvolutionSpec& spec) override;
  Status run(const LibraryOp& op, const std::byte* first, const std::byte* second, const std::byte* bias,
             std::byte* result, std::byte* workspace) override;

 private:
  using Kernels = std::vector<std::shared_ptr<CudaCompiledKernel>>;

  Status make_streams();
  cudaStream_t on(Stream stream) const { return streams_[static_cast<size_t>(stream)]; }
  Status launch_function(Stream stream, const void* function, const Grid& grid, const void* parameters);
  Status copy(Stream stream, const std::byte* from, std::byte* to, Bytes size, cudaMemcpyKind kind);
  void let_go_of_finished_calls();
  // What a library says went wrong may be that the GPU is lost.
  Error find_cause(Error of_library);

  Result<std::shared_ptr<const LoadedCode>> load(std::span<const char> code) const;
  Result<std::shared_ptr<const LoadedCode>> compiled(std::span<const KernelSource> sources) const;
  Status name_kernels(const Kernels& kernels, const std::shared_ptr<const LoadedCode>& code);

  const DeviceProperties properties_;
  const int index_;
  const std::shared_ptr<CudaCore> core_;
  const KernelCache cache_;
  std::string architecture_;  // for NVRTC
  std::array<cudaStream_t, kStreams> streams_{};
  std::optional<CudaLibraries> libraries_;
  HostCalls host_calls_;                      // submitted, in order of submission
  std::shared_ptr<CudaRecording> recording_;  // while one is made
  Kernels uncompiled_;
  std::map<std::string, std::weak_ptr<CudaCompiledKernel>> compiled_;  // by name
};

// Every call begins so: the GPU is the thread's, and not lost.
#define WEFT_ENTER() WEFT_TRY_STATUS(core_->enter())

// ---- begin and end ----

Status CudaDevice::open() {
  WEFT_TRY(architecture_, run_time_architecture(properties_));
  // A thread that waits for the whole GPU is to sleep as well.
  const cudaError_t taken =
      cudaInitDevice(index_, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid);
  if (taken != cudaSuccess) {
    (void)cudaGetLastError();
    return fail(start_error(taken, "cudaInitDevice", driver_version()).within(properties_.name));
  }
  WEFT_ENTER();
  WEFT_TRY_STATUS(make_streams());
  libraries_.emplace(on(Stream::Compute));
  return libraries_->open();
}

Status CudaDevice::make_streams() {
  // The least urgent that there is: a desktop on the same card goes first.
  int lowest = 0, highest = 0;
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaDeviceGetStreamPriorityRange, &lowest, &highest));
  for (cudaStream_t& stream : streams_)
    WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, lowest));
  return {};
}

CudaDevice::~CudaDevice() {
  const bool finished = core_->enter_to_release() && WEFT_CUDA(*core_, cudaDeviceSynchronize).has_value();
  if (!finished) abandon(host_calls_);
  libraries_.reset();
  for (const cudaStream_t stream : streams_)
    if (stream != nullptr && finished) (void)WEFT_CUDA(*core_, cudaStreamDestroy, stream);
}

// ---- memory ----

Result<Bytes> CudaDevice::free_memory() {
  WEFT_ENTER();
  size_t free = 0, total = 0;
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaMemGetInfo, &free, &total));
  return Bytes{static_cast<int64_t>(free)};
}

Result<std::byte*> CudaDevice::allocate(Bytes size) {
  WEFT_ENTER();
  void* memory = nullptr;
  const Status taken = WEFT_CUDA(*core_, cudaMalloc, &memory, size_of({std::max<int64_t>(size.value, 1)}));
  if (!taken) return fail(taken.error().within(std::to_string(size.value) + " bytes of device memory"));
  return static_cast<std::byte*>(memory);
}

void CudaDevice::deallocate(std::byte* memory) {
  if (core_->enter_to_release()) (void)WEFT_CUDA(*core_, cudaFree, memory);
}

Result<std::byte*> CudaDevice::allocate_pinned(Bytes size) {
  WEFT_ENTER();
  void* memory = nullptr;
  const Status taken = WEFT_CUDA(*core_, cudaHostAlloc, &memory, size_of({std::max<int64_t>(size.value, 1)}),
                                 cudaHostAllocDefault);
  if (!taken) return fail(taken.error().within(std::to_string(size.value) + " bytes of pinned memory"));
  return static_cast<std::byte*>(memory);
}

void CudaDevice::deallocate_pinned(std::byte* memory) {
  if (core_->enter_to_release()) (void)WEFT_CUDA(*core_, cudaFreeHost, memory);
}

// ---- work ----

Status CudaDevice::launch_function(Stream stream, const void* function, const Grid& grid,
                                   const void* parameters) {
  void* arguments[] = {const_cast<void*>(parameters)};
  return WEFT_CUDA(*core_, cudaLaunchKernel, function, dim3(grid.blocks, grid.blocks_y), dim3(grid.threads),
                   arguments, 0, on(stream));
}

Status CudaDevice::launch(Stream stream, const Entry& kernel, const Grid& grid, const void* parameters) {
  WEFT_ENTER();
  const Status launched = launch_function(stream, kernel.function, grid, parameters);
  if (!launched) return fail(launched.error().within(kernel.name));
  return {};
}

Status CudaDevice::launch(Stream stream, const CompiledKernel& kernel, const Grid& grid,
                          const void* parameters) {
  WEFT_ENTER();
  const auto& mine = static_cast<const CudaCompiledKernel&>(kernel);
  if (mine.handle == nullptr) WEFT_TRY_STATUS(compile());
  if (mine.handle == nullptr)
    return fail(ErrorCode::Internal,
                properties_.name + ": " + mine.source.name + " was refused by the compiler before");
  if (recording_) recording_->kept.push_back(mine.code);
  const Status launched =
      launch_function(stream, reinterpret_cast<const void*>(mine.handle), grid, parameters);
  if (!launched) return fail(launched.error().within(mine.source.name));
  return {};
}

Status CudaDevice::copy(Stream stream, const std::byte* from, std::byte* to, Bytes size,
                        cudaMemcpyKind kind) {
  WEFT_ENTER();
  if (size.value == 0) return {};
  return WEFT_CUDA(*core_, cudaMemcpyAsync, to, from, size_of(size), kind, on(stream));
}
Status CudaDevice::copy_in(Stream stream, const std::byte* pinned, std::byte* to, Bytes size) {
  return copy(stream, pinned, to, size, cudaMemcpyHostToDevice);
}
Status CudaDevice::copy_out(Stream stream, const std::byte* from, std::byte* pinned, Bytes size) {
  return copy(stream, from, pinned, size, cudaMemcpyDeviceToHost);
}
Status CudaDevice::copy_within(Stream stream, const std::byte* from, std::byte* to, Bytes size) {
  return copy(stream, from, to, size, cudaMemcpyDeviceToDevice);
}

Status CudaDevice::fill_zero(Stream stream, std::byte* to, Bytes size) {
  WEFT_ENTER();
  if (size.value == 0) return {};
  return WEFT_CUDA(*core_, cudaMemsetAsync, to, 0, size_of(size), on(stream));
}

Status CudaDevice::call_host(Stream stream, std::function<Status()> function) {
  WEFT_ENTER();
  let_go_of_finished_calls();
  HostCalls& calls = recording_ ? recording_->host_calls : host_calls_;
  calls.push_back(std::make_unique<HostCall>(std::move(function), core_));
  Status submitted = WEFT_CUDA(*core_, cudaLaunchHostFunc, on(stream), run_host_call, calls.back().get());
  if (!submitted) calls.pop_back();
  return submitted;
}

void CudaDevice::let_go_of_finished_calls() {
  std::erase_if(host_calls_, [](const auto& call) { return call->done.load(std::memory_order_acquire); });
}

// ---- events ----

Result<std::shared_ptr<Event>> CudaDevice::make_event(bool timed) {
  WEFT_ENTER();
  auto event = std::make_shared<CudaEvent>(core_);
  WEFT_TRY_STATUS(event->open(timed));
  return event;
}

Status CudaDevice::record(Event& event, Stream stream) {
  WEFT_ENTER();
  return WEFT_CUDA(*core_, cudaEventRecord, handle_of(event), on(stream));
}

Status CudaDevice::wait_in(Stream stream, const Event& event) {
  WEFT_ENTER();
  return WEFT_CUDA(*core_, cudaStreamWaitEvent, on(stream), handle_of(event), cudaEventWaitDefault);
}

Status CudaDevice::wait_for(const Event& event) {
  WEFT_ENTER();
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaEventSynchronize, handle_of(event)));
  return core_->fault();  // of a function before it
}

Result<bool> CudaDevice::is_over(const Event& event) {
  WEFT_ENTER();
  const cudaError_t answer = cudaEventQuery(handle_of(event));
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  WEFT_TRY_STATUS(core_->check(answer, "cudaEventQuery"));
  WEFT_TRY_STATUS(core_->fault());
  return true;
}

Result<Duration> CudaDevice::between(const Event& begin, const Event& end) {
  WEFT_ENTER();
  float milliseconds = 0;
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaEventElapsedTime, &milliseconds, handle_of(begin), handle_of(end)));
  return Duration(static_cast<int64_t>(1e6 * static_cast<double>(milliseconds)));
}

Status CudaDevice::synchronize() {
  WEFT_ENTER();
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaDeviceSynchronize));
  let_go_of_finished_calls();
  return core_->fault();
}

// ---- recordings ----

Status CudaDevice::begin_recording() {
  WEFT_ENTER();
  // Relaxed: what is not relaxed forbids allocation and the loading of code meanwhile, which the libraries do
  // when they meet a shape; none of it is of what is recorded.
  WEFT_TRY_STATUS(
      WEFT_CUDA(*core_, cudaStreamBeginCapture, on(Stream::Compute), cudaStreamCaptureModeRelaxed));
  recording_ = std::make_shared<CudaRecording>(core_);
  return {};
}

Result<std::shared_ptr<Recording>> CudaDevice::end_recording() {
  std::shared_ptr<CudaRecording> made = std::exchange(recording_, nullptr);
  WEFT_ENTER();
  cudaGraph_t graph = nullptr;
  WEFT_TRY_STATUS(WEFT_CUDA(*core_, cudaStreamEndCapture, on(Stream::Compute), &graph));
  const Status instantiated = WEFT_CUDA(*core_, cudaGraphInstantiate, &made->handle, graph, 0);
  const Status destroyed = WEFT_CUDA(*core_, cudaGraphDestroy, graph);
  WEFT_TRY_STATUS(instantiated);
  WEFT_TRY_STATUS(destroyed);
  return made;
}

Status CudaDevice::replay(const Recording& recording) {
  WEFT_ENTER();
  let_go_of_finished_calls();
  return WEFT_CUDA(*core_, cudaGraphLaunch, static_cast<const CudaRecording&>(recording).handle,
                   on(Stream::Compute));
}

// ---- sources ----

Result<std::shared_ptr<CompiledKernel>> CudaDevice::add_source(KernelSource source) {
  WEFT_ENTER();
  if (const auto found = compiled_.find(source.name); found != compiled_.end())
    if (auto kernel = found->second.lock()) return kernel;
  for (const auto& kernel : uncompiled_)
    if (kernel->source.name == source.name) return kernel;
  uncompiled_.push_back(std::make_shared<CudaCompiledKernel>(std::move(source)));
  return uncompiled_.back();
}

Status CudaDevice::compile() {
  WEFT_ENTER();
  const Kernels kernels = std::exchange(uncompiled_, {});
  if (kernels.empty()) return {};
  std::vector<KernelSource> sources;
  sources.reserve(kernels.size());
  for (const auto& kernel : kernels) sources.push_back(kernel->source);
  WEFT_TRY(const auto code, compiled(sources));
  return name_kernels(kernels, code);
}

Result<std::shared_ptr<const LoadedCode>> CudaDevice::compiled(std::span<const KernelSource> sources) const {
  const std::string key = cache_key(architecture_, sources);
  if (const auto kept = cache_.find(key)) {
    auto loaded = load(*kept);
    if (loaded || loaded.error().code == ErrorCode::DeviceLost) return loaded;  // else: compiled anew
  }
  WEFT_TRY(const std::vector<char> code, compile_to_cubin(sources, architecture_));
  cache_.keep(key, code);
  return load(code);
}

Result<std::shared_ptr<const LoadedCode>> CudaDevice::load(std::span<const char> code) const {
  auto loaded = std::make_shared<LoadedCode>(core_);
  WEFT_TRY_STATUS(loaded->open(code));
  return loaded;
}

Status CudaDevice::name_kernels(const Kernels& kernels, const std::shared_ptr<const LoadedCode>& code) {
  std::erase_if(compiled_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& kernel : kernels) {
    WEFT_TRY_STATUS(
        WEFT_CUDA(*core_, cudaLibraryGetKernel, &kernel->handle, code->handle, kernel->source.name.c_str()));
    kernel->code = code;
    compiled_[kernel->source.name] = kernel;
  }
  return {};
}

// ---- libraries ----

Result<std::shared_ptr<LibraryOp>> CudaDevice::make_product(const ProductSpec& spec) {
  WEFT_ENTER();
  auto made = libraries_->make_product(spec);
  if (!made) return fail(find_cause(made.error()));
  return made;
}

Result<std::shared_ptr<LibraryOp>> CudaDevice::make_convolution(const ConvolutionSpec& spec) {
  WEFT_ENTER();
  auto made = libraries_->make_convolution(spec);
  if (!made) return fail(find_cause(made.error()));
  return made;
}

Status CudaDevice::run(const LibraryOp& op, const std::byte* first, const std::byte* second,
                       const std::byte* bias, std::byte* result, std::byte* workspace) {
  WEFT_ENTER();
  const auto& mine = static_cast<const CudaLibraryOp&>(op);
  if (recording_) recording_->kept.push_back(mine.shared_from_this());
  const Status submitted = mine.run({first, second, bias, result, workspace});
  if (!submitted) return fail(find_cause(submitted.error()));
  return {};
}

Error CudaDevice::find_cause(Error of_library) {
  const ErrorCode code = of_library.code;
  if (code == ErrorCode::Unsupported || code == ErrorCode::InvalidArgument) return of_library;
  const Status said = core_->check(cudaPeekAtLastError(), of_library.message);
  if (!said && said.error().code == ErrorCode::DeviceLost) return said.error();
  size_t free = 0, total = 0;  // any question will do: a context that is corrupt answers none
  const Status answered = WEFT_CUDA(*core_, cudaMemGetInfo, &free, &total);
  if (!answered && answered.error().code == ErrorCode::DeviceLost)
    return core_->fault().error().within(of_library.message);
  if (code == ErrorCode::DeviceLost) return core_->set_fault(of_library).value();
  return of_library;
}

}  // namespace

Result<std::shared_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options) {
  WEFT_TRY(DeviceProperties properties, find_cuda_device(options.index));
  auto device = std::make_shared<CudaDevice>(std::move(properties), options);
  WEFT_TRY_STATUS(device->open());
  return device;
}

}  // namespace weft::peer::cuda
