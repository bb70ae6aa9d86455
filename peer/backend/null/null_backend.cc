#include "peer/backend/null/null_backend.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
#include "base/mutex.h"
#include "plan/cost.h"

namespace weft::peer {
namespace {

// Zero pages, which nobody touches: they take address space, not memory.
class NullMemory final : public Memory {
 public:
  NullMemory(void* data, Bytes size, std::shared_ptr<int64_t> used)
      : data_(data), size_(size), used_(std::move(used)) {
    *used_ += size_.value;
  }
  NullMemory(const NullMemory&) = delete;
  NullMemory& operator=(const NullMemory&) = delete;
  ~NullMemory() override {
    ::munmap(data_, mapped_bytes(size_));
    *used_ -= size_.value;
  }
  Bytes size() const override { return size_; }
  static size_t mapped_bytes(Bytes size) { return static_cast<size_t>(std::max<int64_t>(size.value, 1)); }

 private:
  void* data_;
  Bytes size_;
  std::shared_ptr<int64_t> used_;
};

// The device's clock: seconds of work from the start. What was submitted is carried out as somebody waits for
// it.
class NullClock {
 public:
  explicit NullClock(std::function<void(Duration)> wait) : wait_(std::move(wait)) {}

  // The driving thread's.
  void submit(double seconds) { submitted_ += seconds; }
  double submitted() const { return submitted_; }

  // Any thread: until what was submitted up to `until` is done. Work is done in order, so that whoever waits
  // for later work waits behind who waits for earlier.
  void wait(double until) {
    const MutexLock lock(mutex_);
    if (until <= done_) return;
    wait_(duration(until - done_));
    done_ = until;
  }
  bool is_past(double until) {  // who holds the lock waits
    if (!mutex_.try_lock()) return false;
    const bool is = until <= done_;
    mutex_.unlock();
    return is;
  }
  static Duration duration(double seconds) {
    return Duration(static_cast<int64_t>(std::min(seconds, 1e6) * 1e9));
  }

 private:
  std::function<void(Duration)> wait_;
  double submitted_ = 0;
  Mutex mutex_;
  double done_ WEFT_GUARDED_BY(mutex_) = 0;
};

class NullDownload final : public Download {
 public:
  NullDownload(std::shared_ptr<NullClock> clock, dag::TensorSpec spec)
      : clock_(std::move(clock)), until_(clock_->submitted()), spec_(std::move(spec)) {}
  Result<dag::Tensor> take() override {
    clock_->wait(until_);
    return dag::Tensor(spec_);
  }

 private:
  std::shared_ptr<NullClock> clock_;
  double until_;
  dag::TensorSpec spec_;
};

class NullTimer final : public Timer {
 public:
  explicit NullTimer(std::shared_ptr<NullClock> clock)
      : clock_(std::move(clock)), begin_(clock_->submitted()), end_(begin_) {}
  Status stop() override {
    end_ = clock_->submitted();
    return {};
  }
  Result<Duration> elapsed() override {
    clock_->wait(end_);
    return NullClock::duration(end_ - begin_);
  }
  bool is_over() const override { return clock_->is_past(end_); }

 private:
  std::shared_ptr<NullClock> clock_;
  double begin_, end_;
};

class NullKernel final : public Kernel {
 public:
  NullKernel(double seconds, std::shared_ptr<NullClock> clock)
      : seconds_(seconds), clock_(std::move(clock)) {}
  Status run(std::span<const View>, std::span<const View>, View, const StepContext&) override {
    clock_->submit(seconds_);
    return {};
  }
  std::string_view implementation() const override { return "null"; }

 private:
  double seconds_;
  std::shared_ptr<NullClock> clock_;
};

class NullBackend final : public Backend {
 public:
  explicit NullBackend(NullOptions options) : options_(std::move(options)) {
    WEFT_CHECK(options_.wait != nullptr);
    clock_ = std::make_shared<NullClock>(options_.wait);
  }

  std::string_view name() const override { return "null"; }
  std::string numerics_fingerprint() const override { return "null:" + options_.type; }
  BackendTraits traits() const override { return options_.traits; }

  Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout) const override { return spec.bytes(); }

  Result<std::unique_ptr<Memory>> allocate(Bytes size) override {
    WEFT_CHECK(size.value >= 0);
    WEFT_TRY_STATUS(admit(size, {*used_}));
    const bool fits = size.value <= options_.memory.value - *used_;
    void* data = fits ? ::mmap(nullptr, NullMemory::mapped_bytes(size), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                      : MAP_FAILED;
    if (data == MAP_FAILED)
      return fail(ErrorCode::ResourceExhausted, "the null device '" + options_.type + "' has " +
                                                    std::to_string(options_.memory.value - *used_) +
                                                    " bytes left, not " + std::to_string(size.value) +
                                                    ": try smaller microbatches or more stages");
    return std::make_unique<NullMemory>(data, size, used_);
  }

  Result<MemoryUse> memory() const override {
    return MemoryUse{{*used_}, {options_.memory.value - *used_}, options_.memory};
  }

  Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph, const GroupSignature& group) override {
    const plan::GroupCost cost = plan::cost_of_group(graph, group.ops, group.inputs, group.outputs);
    return std::make_unique<NullKernel>(plan::seconds_of(cost, options_.rates), clock_);
  }

  Status upload(const dag::Tensor&, View, dag::Layout) override { return {}; }
  Result<std::unique_ptr<Download>> begin_download(View, const dag::TensorSpec& spec, dag::Layout,
                                                   const Encoding& encoding) override {
    WEFT_TRY_STATUS(need_dense(encoding));
    return std::make_unique<NullDownload>(clock_, spec);
  }
  Status fill_zero(View, const dag::TensorSpec&) override { return {}; }
  Status copy(View, View, const dag::TensorSpec& spec) override {
    clock_->submit(passes(2, spec));
    return {};
  }
  Status accumulate(View, View, const dag::TensorSpec& spec) override {
    clock_->submit(plan::accumulate_seconds(spec.bytes(), options_.rates));
    return {};
  }
  Result<std::unique_ptr<Download>> begin_sums_of_squares(std::span<const TensorView> sources) override {
    for (const TensorView& source : sources) clock_->submit(passes(1, source.spec));
    return std::make_unique<NullDownload>(
        clock_, dag::TensorSpec{dag::DType::F64, {static_cast<int64_t>(sources.size())}});
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep&,
                std::span<const ParameterUpdate> parameters) override {
    const dag::BesideParameter beside = dag::beside_parameter(optimizer);
    for (const ParameterUpdate& parameter : parameters)
      clock_->submit(plan::update_seconds(parameter.spec.bytes(), beside, options_.rates));
    return {};
  }

  Result<std::unique_ptr<Timer>> start_timer() override { return std::make_unique<NullTimer>(clock_); }
  Status synchronize() override {
    clock_->wait(clock_->submitted());
    return {};
  }

 private:
  // Reading or writing it so many times.
  double passes(int count, const dag::TensorSpec& spec) const {
    return count * static_cast<double>(spec.bytes().value) / options_.rates.memory_bytes_per_second;
  }

  NullOptions options_;
  std::shared_ptr<int64_t> used_ = std::make_shared<int64_t>(0);
  std::shared_ptr<NullClock> clock_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(NullOptions options) {
  return std::make_unique<NullBackend>(std::move(options));
}

}  // namespace weft::peer
