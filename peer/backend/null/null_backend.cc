#include "peer/backend/null/null_backend.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
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

class NullKernel final : public Kernel {
 public:
  NullKernel(double seconds, double& pending) : seconds_(seconds), pending_(pending) {}
  Status run(std::span<const View>, std::span<const View>, View, const StepContext&) override {
    pending_ += seconds_;
    return {};
  }
  std::string_view implementation() const override { return "null"; }

 private:
  double seconds_;
  double& pending_;
};

class NullBackend final : public Backend {
 public:
  explicit NullBackend(NullOptions options) : options_(std::move(options)) {
    WEFT_CHECK(options_.wait != nullptr);
  }

  std::string_view name() const override { return "null"; }
  std::string numerics_fingerprint() const override { return "null:" + options_.type; }
  BackendTraits traits() const override { return options_.traits; }

  Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout) const override { return spec.bytes(); }

  Result<std::unique_ptr<Memory>> allocate(Bytes size) override {
    WEFT_CHECK(size.value >= 0);
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

  Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph, const GroupSignature& group) override {
    const plan::GroupCost cost = plan::cost_of_group(graph, group.ops, group.inputs, group.outputs);
    return std::make_unique<NullKernel>(plan::seconds_of(cost, options_.rates), pending_);
  }

  Status upload(const dag::Tensor&, View, dag::Layout) override { return {}; }
  Result<dag::Tensor> download(View, const dag::TensorSpec& spec, dag::Layout) override {
    WEFT_TRY_STATUS(synchronize());
    return dag::Tensor(spec);
  }
  Status fill_zero(View, const dag::TensorSpec&) override { return {}; }
  Status copy(View, View, const dag::TensorSpec& spec) override {
    pending_ += 2.0 * static_cast<double>(spec.bytes().value) / options_.rates.memory_bytes_per_second;
    return {};
  }
  Status accumulate(View, View, const dag::TensorSpec& spec) override {
    pending_ += plan::accumulate_seconds(spec.bytes(), options_.rates);
    return {};
  }
  Result<double> sum_of_squares(View, const dag::TensorSpec& spec) override {
    pending_ += static_cast<double>(spec.bytes().value) / options_.rates.memory_bytes_per_second;
    WEFT_TRY_STATUS(synchronize());
    return 0.0;
  }
  Status update(const dag::OptimizerSpec&, const dag::UpdateStep&, View, View, std::span<const View> slots,
                const dag::TensorSpec& spec) override {
    pending_ += plan::update_seconds(spec.bytes(), static_cast<uint32_t>(slots.size()), options_.rates);
    return {};
  }

  Status synchronize() override {
    const double seconds = pending_;
    pending_ = 0;
    if (seconds > 0) options_.wait(Duration(static_cast<int64_t>(std::min(seconds, 1e6) * 1e9)));
    return {};
  }

 private:
  NullOptions options_;
  std::shared_ptr<int64_t> used_ = std::make_shared<int64_t>(0);
  double pending_ = 0;  // seconds submitted and not waited for; kernels refer to it
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(NullOptions options) {
  return std::make_unique<NullBackend>(std::move(options));
}

}  // namespace weft::peer
