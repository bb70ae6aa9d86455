#include "peer/backend/cuda/cuda_backend.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "peer/backend/cuda/coverage.h"
#include "peer/backend/cuda/graveyard.h"
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/moves.h"
#include "peer/backend/cuda/transfers.h"
#include "peer/backend/cuda/update.h"

namespace weft::peer {
namespace {

using namespace cuda;
using dag::Layout;
using dag::Tensor;
using dag::TensorSpec;

constexpr int64_t kAlignment = 256;
// What a desktop on the same card keeps free for its windows.
constexpr Bytes kLeftToDisplay{int64_t{1} << 30};

class Block final : public DeviceMemory {
 public:
  Block(Graveyard& graveyard, Device& device, std::byte* data, Bytes size, int64_t& used)
      : graveyard_(graveyard), device_(device), data_(data), size_(size), used_(used) {
    used_ += size_.value;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() override {
    used_ -= size_.value;
    graveyard_.add(Stream::Compute, [&device = device_, data = data_] { device.deallocate(data); });
  }
  Bytes size() const override { return size_; }
  std::byte* data() const override { return data_; }

 private:
  Graveyard& graveyard_;
  Device& device_;
  std::byte* data_;
  Bytes size_;
  int64_t& used_;
};

class DeviceTimer final : public Timer {
 public:
  DeviceTimer(std::shared_ptr<Device> device, std::shared_ptr<Event> begin, std::shared_ptr<Event> end)
      : device_(std::move(device)), begin_(std::move(begin)), end_(std::move(end)) {}
  Status stop() override { return device_->record(*end_, Stream::Compute); }
  Result<Duration> elapsed() override {
    WEFT_TRY_STATUS(device_->wait_for(*end_));
    return device_->between(*begin_, *end_);
  }
  bool is_over() const override {
    const auto over = device_->is_over(*end_);
    return !over || *over;  // elapsed() says at once what is wrong
  }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Event> begin_, end_;
};

// The first time a key is met its work is submitted as it comes, which lets libraries make themselves ready;
// the second time it is recorded.
class DeviceRecordings final : public Recordings {
 public:
  explicit DeviceRecordings(KernelHost& host) : host_(host) {}
  ~DeviceRecordings() override {
    for (auto& [key, entry] : entries_)
      if (entry.recording) host_.retire(std::move(entry.recording));
  }
  struct Entry {
    bool met = false;
    std::shared_ptr<Recording> recording;
  };
  Entry& of(const ReplayKey& key) { return entries_[key]; }

 private:
  KernelHost& host_;
  std::map<ReplayKey, Entry> entries_;
};

class CudaBackend final : public Backend, private KernelHost {
 public:
  CudaBackend(std::shared_ptr<Device> device, const CudaOptions& options)
      : device_(std::move(device)),
        graveyard_(*device_),
        transfers_(device_, {options.staging, options.pinned_uploads}) {}
  // Whoever waits on another thread holds the device itself.
  ~CudaBackend() override { (void)device_->synchronize(); }

  Status open() {
    WEFT_TRY_STATUS(transfers_.open());
    WEFT_TRY(context_memory_, allocate({sizeof(DeviceContext)}));
    return reserve_sums(kSumsBytes);
  }

  std::string_view name() const override { return "cuda"; }

  std::string numerics_fingerprint() const override {
    const DeviceProperties& p = device_->properties();
    return "cuda sm_" + std::to_string(p.compute_major) + std::to_string(p.compute_minor) + " " +
           std::to_string(p.multiprocessors) + " multiprocessors, " + p.name + ", " + p.libraries +
           (p.environment.empty() ? "" : ", " + p.environment);
  }

  BackendTraits traits() const override { return cuda_traits(); }

  Status check(const Precision& precision) const override {
    if (precision.compute == Arithmetic::F32 || precision.storage != dag::DType::F32 ||
        precision.wire != dag::DType::F32)
      return Backend::check(precision);
    const DeviceProperties& p = device_->properties();
    if (p.compute_major >= 8) return {};
    return fail(ErrorCode::Unsupported,
                "cuda backend: no arithmetic in " + std::string(to_string(precision.compute)) + " on " +
                    p.name + " (sm_" + std::to_string(p.compute_major) + std::to_string(p.compute_minor) +
                    "): that needs sm_80 or newer; say precision: fp32");
  }

  int64_t alignment() const override { return kAlignment; }
  Bytes storage_bytes(const TensorSpec& spec, Layout) const override { return spec.bytes(); }

  Result<std::unique_ptr<Memory>> allocate(Bytes size) override {
    WEFT_CHECK(size.value >= 0);
    WEFT_TRY_STATUS(admit(size, {used_}));
    graveyard_.reap();
    auto data = device_->allocate(size);
    if (!data && data.error().code == ErrorCode::ResourceExhausted) {
      WEFT_TRY_STATUS(graveyard_.empty());
      data = device_->allocate(size);
    }
    if (!data) return fail(data.error());
    return std::make_unique<Block>(graveyard_, *device_, *data, size, used_);
  }

  Result<MemoryUse> memory() const override {
    WEFT_TRY(const Bytes free, device_->free_memory());
    const int64_t kept = device_->properties().has_display ? kLeftToDisplay.value : 0;
    return MemoryUse{{used_}, {std::max<int64_t>(free.value - kept, 0)}, device_->properties().memory};
  }

  Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph, const GroupSignature& group) override {
    return make_group_kernel(graph, group, *device_, *this);
  }
  Status prepare() override { return device_->compile(); }

  Status upload(const Tensor& tensor, View target, Layout layout) override {
    WEFT_TRY_STATUS(need_plain(tensor.spec(), layout));
    return transfers_.upload(tensor, address(target));
  }
  Result<std::unique_ptr<Download>> begin_download(View source, const TensorSpec& spec, Layout layout,
                                                   const Encoding& encoding) override {
    WEFT_TRY_STATUS(need_dense(encoding));
    WEFT_TRY_STATUS(need_plain(spec, layout));
    return transfers_.begin_download(address(source), spec);
  }

  Status fill_zero(View target, const TensorSpec& spec) override {
    return device_->fill_zero(Stream::Compute, address(target), spec.bytes());
  }
  Status copy(View source, View target, const TensorSpec& spec) override {
    return device_->copy_within(Stream::Compute, address(source), address(target), spec.bytes());
  }
  Status accumulate(View from, View into, const TensorSpec& spec) override {
    WEFT_TRY_STATUS(need_f32(spec, "accumulate"));
    if (spec.element_count() == 0) return {};
    return submit_accumulate(*device_, {reinterpret_cast<const float*>(address(from)), spec.element_count()},
                             {reinterpret_cast<float*>(address(into)), spec.element_count()});
  }
  Result<std::unique_ptr<Download>> begin_sums_of_squares(std::span<const TensorView> sources) override {
    for (const TensorView& source : sources) WEFT_TRY_STATUS(need_f32(source.spec, "sums_of_squares"));
    const TensorSpec spec{dag::DType::F64, {static_cast<int64_t>(sources.size())}};
    const int64_t sums = align_up(spec.bytes().value, kAlignment);
    WEFT_TRY_STATUS(reserve_sums(sums + sums_scratch_bytes(sources)));
    std::byte* const memory = address({sums_memory_.get(), 0});
    WEFT_TRY_STATUS(submit_sums_of_squares(
        *device_, sources, {reinterpret_cast<double*>(memory), spec.element_count()}, memory + sums));
    return transfers_.begin_download(memory, spec);
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                std::span<const ParameterUpdate> parameters) override {
    for (const ParameterUpdate& parameter : parameters) WEFT_TRY_STATUS(need_f32(parameter.spec, "update"));
    return submit_update(*device_, optimizer, step, parameters);
  }

  std::unique_ptr<Recordings> make_recordings() override {
    KernelHost& host = *this;
    return std::make_unique<DeviceRecordings>(host);
  }
  Status submit(const ReplayKey& key, const StepContext& context,
                const std::function<Status(const StepContext&)>& work) override {
    graveyard_.reap();
    WEFT_TRY_STATUS(store_context(context));
    context_ = context;
    if (key.program == nullptr) return work(context_);
    DeviceRecordings::Entry& entry = static_cast<DeviceRecordings*>(key.program)->of(key);
    if (entry.recording) return device_->replay(*entry.recording);
    if (!std::exchange(entry.met, true)) return work(context_);
    WEFT_TRY_STATUS(device_->begin_recording());
    const Status worked = work(context_);
    auto recording = device_->end_recording();  // also of work that failed: it is not to be recorded further
    WEFT_TRY_STATUS(worked);
    if (!recording) return fail(recording.error());
    entry.recording = std::move(*recording);
    return device_->replay(*entry.recording);
  }

  Result<std::unique_ptr<Timer>> start_timer() override {
    WEFT_TRY(auto begin, device_->make_event(true));
    WEFT_TRY(auto end, device_->make_event(true));
    WEFT_TRY_STATUS(device_->record(*begin, Stream::Compute));
    return std::make_unique<DeviceTimer>(device_, std::move(begin), std::move(end));
  }
  Status synchronize() override {
    WEFT_TRY_STATUS(device_->synchronize());
    graveyard_.reap();
    return {};
  }

 private:
  // Enough for 8192 parameters of any size (update.h): nothing is taken once work has begun.
  static constexpr int64_t kSumsBytes = int64_t{1} << 20;

  static Status need_f32(const TensorSpec& spec, const char* what) {
    if (spec.dtype == dag::DType::F32) return {};
    return fail(ErrorCode::Unsupported,
                std::string("cuda backend: ") + what + " of " + dag::to_string(spec) +
                    "; only f32 is trained here, the reference backend takes other dtypes");
  }
  static Status need_plain(const TensorSpec& spec, Layout layout) {
    if (layout == Layout::Plain) return {};
    return fail(ErrorCode::Unsupported, "cuda backend: " + dag::to_string(spec) + " in a blocked layout");
  }

  // The memory before is let go; what still uses it is ahead in the same stream.
  Status reserve_sums(int64_t bytes) {
    if (sums_memory_ && bytes <= sums_memory_->size().value) return {};
    WEFT_TRY(sums_memory_, allocate({bytes}));
    return {};
  }

  DeviceContext* device_context() {
    return reinterpret_cast<DeviceContext*>(address({context_memory_.get(), 0}));
  }
  Status store_context(const StepContext& context) {
    return launch(*device_, k_store_context, {1, 32},
                  StoreContext{{context.seed, context.step, context.sample_position, context.microbatch_size},
                               {device_context(), 1}});
  }

  // KernelHost. What submit() runs finds its context in place, and so does each repetition.
  Result<const DeviceContext*> place(const StepContext& context) override {
    if (&context != &context_) WEFT_TRY_STATUS(store_context(context));
    return device_context();
  }
  void retire(std::shared_ptr<const void> thing) override {
    graveyard_.add(Stream::Compute, [thing = std::move(thing)] {});
  }

  std::shared_ptr<Device> device_;
  int64_t used_ = 0;
  Graveyard graveyard_;
  Transfers transfers_;
  StepContext context_;
  std::unique_ptr<Memory> context_memory_;  // at one place for good: recordings refer to it
  std::unique_ptr<Memory> sums_memory_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(std::shared_ptr<Device> device,
                                                   const CudaOptions& options) {
  auto backend = std::make_unique<CudaBackend>(std::move(device), options);
  WEFT_TRY_STATUS(backend->open());
  return backend;
}

}  // namespace weft::peer
