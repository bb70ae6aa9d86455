// A device that is lost, or hangs, at a call of choice: around a backend that works. Every call that a device
// would have a part in is counted, also those of its kernels, downloads and timers.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "peer/backend/backend.h"

namespace weft::test {

// Shared by all that came from the device; any thread.
class DeviceCalls {
 public:
  // From call `lost_at` on every one fails, as that of a device that is gone does. Call `hangs_at` returns
  // only after release(). Counted from 1; nothing: none does.
  struct Faults {
    std::optional<uint64_t> lost_at, hangs_at;
  };
  // `on_hang` is told, on the thread of the call, before it waits.
  explicit DeviceCalls(Faults faults, std::function<void()> on_hang = {})
      : faults_(faults), on_hang_(std::move(on_hang)) {}

  Status next() {
    std::unique_lock lock(mutex_);
    const uint64_t number = ++count_;
    if (faults_.hangs_at == number) {
      is_hanging_ = true;
      if (on_hang_) on_hang_();
      released_.wait(lock, [this] { return is_released_; });
    }
    if (faults_.lost_at && number >= *faults_.lost_at)
      return fail(ErrorCode::DeviceLost, "the device fell off the bus");
    return {};
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    released_.notify_all();
  }
  bool is_hanging() const {
    const std::lock_guard lock(mutex_);
    return is_hanging_;
  }
  uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  const Faults faults_;
  const std::function<void()> on_hang_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  uint64_t count_ = 0;
  bool is_hanging_ = false, is_released_ = false;
};

class FailingBackend : public peer::Backend {
 public:
  using View = peer::View;
  using Calls = std::shared_ptr<DeviceCalls>;

  FailingBackend(std::unique_ptr<peer::Backend> device, Calls calls)
      : device_(std::move(device)), calls_(std::move(calls)) {}

  std::string_view name() const override { return device_->name(); }
  std::string numerics_fingerprint() const override { return device_->numerics_fingerprint(); }
  peer::BackendTraits traits() const override { return device_->traits(); }
  int64_t alignment() const override { return device_->alignment(); }
  Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout layout) const override {
    return device_->storage_bytes(spec, layout);
  }
  Result<peer::MemoryUse> memory() const override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->memory();
  }
  Result<std::unique_ptr<peer::Memory>> allocate(Bytes size) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->allocate(size);
  }
  Result<std::unique_ptr<peer::Kernel>> make_kernel(const dag::Graph& graph,
                                                    const peer::GroupSignature& group) override {
    WEFT_TRY_STATUS(calls_->next());
    WEFT_TRY(auto kernel, device_->make_kernel(graph, group));
    return std::make_unique<FailingKernel>(std::move(kernel), calls_);
  }
  Status prepare() override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->prepare();
  }
  Status upload(const dag::Tensor& tensor, View target, dag::Layout layout) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->upload(tensor, target, layout);
  }
  Result<std::unique_ptr<peer::Download>> begin_download(View source, const dag::TensorSpec& spec,
                                                         dag::Layout layout,
                                                         const peer::Encoding& encoding) override {
    WEFT_TRY_STATUS(calls_->next());
    return failing(device_->begin_download(source, spec, layout, encoding));
  }
  Status fill_zero(View target, const dag::TensorSpec& spec) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->fill_zero(target, spec);
  }
  Status copy(View source, View target, const dag::TensorSpec& spec) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->copy(source, target, spec);
  }
  Status accumulate(View from, View into, const dag::TensorSpec& spec) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->accumulate(from, into, spec);
  }
  Result<std::unique_ptr<peer::Download>> begin_sums_of_squares(
      std::span<const peer::TensorView> sources) override {
    WEFT_TRY_STATUS(calls_->next());
    return failing(device_->begin_sums_of_squares(sources));
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                std::span<const peer::ParameterUpdate> parameters) override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->update(optimizer, step, parameters);
  }
  Result<std::unique_ptr<peer::Timer>> start_timer() override {
    WEFT_TRY_STATUS(calls_->next());
    WEFT_TRY(auto timer, device_->start_timer());
    return std::make_unique<FailingTimer>(std::move(timer), calls_);
  }
  Status synchronize() override {
    WEFT_TRY_STATUS(calls_->next());
    return device_->synchronize();
  }

 private:
  class FailingKernel final : public peer::Kernel {
   public:
    FailingKernel(std::unique_ptr<peer::Kernel> kernel, Calls calls)
        : kernel_(std::move(kernel)), calls_(std::move(calls)) {}
    Bytes workspace_bytes() const override { return kernel_->workspace_bytes(); }
    int in_place_input(size_t output) const override { return kernel_->in_place_input(output); }
    Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
               const peer::StepContext& context) override {
      WEFT_TRY_STATUS(calls_->next());
      return kernel_->run(inputs, outputs, workspace, context);
    }
    std::string_view implementation() const override { return kernel_->implementation(); }

   private:
    std::unique_ptr<peer::Kernel> kernel_;
    Calls calls_;
  };
  class FailingDownload final : public peer::Download {
   public:
    FailingDownload(std::unique_ptr<peer::Download> download, Calls calls)
        : download_(std::move(download)), calls_(std::move(calls)) {}
    Result<dag::Tensor> take() override {
      WEFT_TRY_STATUS(calls_->next());
      return download_->take();
    }

   private:
    std::unique_ptr<peer::Download> download_;
    Calls calls_;
  };
  // Never over: whoever wants to know has to wait for it.
  class FailingTimer final : public peer::Timer {
   public:
    FailingTimer(std::unique_ptr<peer::Timer> timer, Calls calls)
        : timer_(std::move(timer)), calls_(std::move(calls)) {}
    Status stop() override {
      WEFT_TRY_STATUS(calls_->next());
      return timer_->stop();
    }
    Result<Duration> elapsed() override {
      WEFT_TRY_STATUS(calls_->next());
      return timer_->elapsed();
    }
    bool is_over() const override { return false; }

   private:
    std::unique_ptr<peer::Timer> timer_;
    Calls calls_;
  };

  Result<std::unique_ptr<peer::Download>> failing(Result<std::unique_ptr<peer::Download>> download) {
    if (!download) return download;
    return std::make_unique<FailingDownload>(std::move(*download), calls_);
  }

  std::unique_ptr<peer::Backend> device_;
  Calls calls_;
};

}  // namespace weft::test
