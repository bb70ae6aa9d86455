// A device that is as late as it may be: what is submitted is carried out when somebody waits for it, and
// work under a key that is known is repeated from a recording. Around a backend that computes at once, so
// that whoever relies on more than the contract of peer/backend/backend.h gets other numbers.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "peer/backend/backend.h"

namespace weft::test {

// What was submitted and not carried out, in order. Any thread carries it out.
class LateStream {
 public:
  using Work = std::function<Status()>;

  void submit(Work work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({++submitted_, std::move(work)});
  }
  uint64_t submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  bool is_done(uint64_t number) const {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() || waiting_.front().first > number;
  }
  // Everything up to `number`. The first error is every later wait's.
  Status wait(uint64_t number) {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && waiting_.front().first <= number) {
      const Work work = std::move(waiting_.front().second);
      waiting_.pop_front();
      if (status_) status_ = work();
    }
    return status_;
  }
  Status wait() { return wait(submitted()); }

 private:
  mutable std::mutex mutex_;
  std::deque<std::pair<uint64_t, Work>> waiting_;
  uint64_t submitted_ = 0;
  Status status_;
};

class LateMemory final : public peer::Memory {
 public:
  LateMemory(std::unique_ptr<peer::Memory> inner, std::shared_ptr<LateStream> stream)
      : inner_(std::move(inner)), stream_(std::move(stream)) {}
  ~LateMemory() override { (void)stream_->wait(); }
  Bytes size() const override { return inner_->size(); }
  static peer::View inner(peer::View view) {
    if (view.memory != nullptr) view.memory = static_cast<LateMemory*>(view.memory)->inner_.get();
    return view;
  }
  static std::vector<peer::View> inner(std::span<const peer::View> views) {
    std::vector<peer::View> result;
    for (const peer::View view : views) result.push_back(inner(view));
    return result;
  }

 private:
  std::unique_ptr<peer::Memory> inner_;
  std::shared_ptr<LateStream> stream_;
};

class LateDownload final : public peer::Download {
 public:
  LateDownload(std::shared_ptr<LateStream> stream, std::function<Result<dag::Tensor>()> read)
      : stream_(std::move(stream)) {
    stream_->submit([result = result_, read = std::move(read)]() -> Status {
      *result = read();
      return {};
    });
    number_ = stream_->submitted();
  }
  Result<dag::Tensor> take() override {
    WEFT_TRY_STATUS(stream_->wait(number_));
    return std::move(**result_);
  }

 private:
  std::shared_ptr<LateStream> stream_;
  std::shared_ptr<std::optional<Result<dag::Tensor>>> result_ =
      std::make_shared<std::optional<Result<dag::Tensor>>>();
  uint64_t number_ = 0;
};

// Counts what was submitted between its ends: a nanosecond each.
class LateTimer final : public peer::Timer {
 public:
  explicit LateTimer(std::shared_ptr<LateStream> stream)
      : stream_(std::move(stream)), begin_(stream_->submitted()) {}
  Status stop() override {
    end_ = stream_->submitted();
    return {};
  }
  Result<Duration> elapsed() override {
    WEFT_TRY_STATUS(stream_->wait(end_));
    return Duration(static_cast<int64_t>(end_ - begin_));
  }
  bool is_over() const override { return stream_->is_done(end_); }

 private:
  std::shared_ptr<LateStream> stream_;
  uint64_t begin_, end_ = 0;
};

class LateBackend final : public peer::Backend {
 public:
  using View = peer::View;

  explicit LateBackend(peer::Backend& device) : device_(device) {}
  ~LateBackend() override { (void)stream_->wait(); }

  uint64_t recorded() const { return recorded_; }
  uint64_t repeated() const { return repeated_; }

  std::string_view name() const override { return device_.name(); }
  std::string numerics_fingerprint() const override { return device_.numerics_fingerprint(); }
  peer::BackendTraits traits() const override { return device_.traits(); }
  int64_t alignment() const override { return device_.alignment(); }
  Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout layout) const override {
    return device_.storage_bytes(spec, layout);
  }
  Result<peer::MemoryUse> memory() const override { return device_.memory(); }
  Result<std::unique_ptr<peer::Memory>> allocate(Bytes size) override {
    WEFT_TRY(auto inner, device_.allocate(size));
    return std::make_unique<LateMemory>(std::move(inner), stream_);
  }
  Result<std::unique_ptr<peer::Kernel>> make_kernel(const dag::Graph& graph,
                                                    const peer::GroupSignature& group) override {
    WEFT_TRY(auto inner, device_.make_kernel(graph, group));
    return std::make_unique<LateKernel>(*this, std::move(inner));
  }

  Status upload(const dag::Tensor& tensor, View target, dag::Layout layout) override {
    EXPECT_EQ(recording_, nullptr) << "an upload cannot be repeated";
    stream_->submit([this, tensor, target = LateMemory::inner(target), layout] {
      return device_.upload(tensor, target, layout);
    });
    return {};
  }
  Result<std::unique_ptr<peer::Download>> begin_download(View source, const dag::TensorSpec& spec,
                                                         dag::Layout layout,
                                                         const peer::Encoding& encoding) override {
    WEFT_TRY_STATUS(need_dense(encoding));
    return read([this, source = LateMemory::inner(source), spec, layout] {
      return device_.download(source, spec, layout);
    });
  }
  Status fill_zero(View target, const dag::TensorSpec& spec) override {
    return add([this, target = LateMemory::inner(target), spec] { return device_.fill_zero(target, spec); });
  }
  Status copy(View source, View target, const dag::TensorSpec& spec) override {
    return add([this, source = LateMemory::inner(source), target = LateMemory::inner(target), spec] {
      return device_.copy(source, target, spec);
    });
  }
  Status accumulate(View from, View into, const dag::TensorSpec& spec) override {
    return add([this, from = LateMemory::inner(from), into = LateMemory::inner(into), spec] {
      return device_.accumulate(from, into, spec);
    });
  }
  Result<std::unique_ptr<peer::Download>> begin_sums_of_squares(
      std::span<const peer::TensorView> sources) override {
    std::vector<peer::TensorView> inner(sources.begin(), sources.end());
    for (peer::TensorView& source : inner) source.view = LateMemory::inner(source.view);
    return read([this, inner]() -> Result<dag::Tensor> {
      WEFT_TRY(const auto sums, device_.begin_sums_of_squares(inner));
      return sums->take();
    });
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                std::span<const peer::ParameterUpdate> parameters) override {
    EXPECT_EQ(recording_, nullptr) << "an update cannot be repeated";
    std::vector<peer::ParameterUpdate> inner(parameters.begin(), parameters.end());
    for (peer::ParameterUpdate& update : inner) {
      update.parameter = LateMemory::inner(update.parameter);
      update.gradient = LateMemory::inner(update.gradient);
      update.slots = LateMemory::inner(std::span<const View>(update.slots));
    }
    stream_->submit([this, optimizer, step, inner] { return device_.update(optimizer, step, inner); });
    return {};
  }

  Status submit(const peer::ReplayKey& key, const peer::StepContext& context,
                const std::function<Status(const peer::StepContext&)>& work) override {
    auto* recordings = static_cast<LateRecordings*>(key.program);
    auto made = recordings == nullptr ? nullptr : recordings->by_key[key];
    if (made) {
      ++repeated_;
    } else {
      made = std::make_shared<Recording>();
      recording_ = made.get();
      const Status status = work(made->context);
      recording_ = nullptr;
      WEFT_TRY_STATUS(status);
      if (recordings != nullptr) {
        recordings->by_key[key] = made;
        ++recorded_;
      }
    }
    stream_->submit([made, context]() -> Status {
      made->context = context;
      for (const LateStream::Work& step : made->work) WEFT_TRY_STATUS(step());
      return {};
    });
    return {};
  }
  std::unique_ptr<peer::Recordings> make_recordings() override { return std::make_unique<LateRecordings>(); }

  Result<std::unique_ptr<peer::Timer>> start_timer() override { return std::make_unique<LateTimer>(stream_); }
  Status synchronize() override { return stream_->wait(); }

 private:
  struct Recording {
    peer::StepContext context;
    std::vector<LateStream::Work> work;
  };
  struct LateRecordings final : peer::Recordings {
    std::map<peer::ReplayKey, std::shared_ptr<Recording>> by_key;
  };
  class LateKernel final : public peer::Kernel {
   public:
    LateKernel(LateBackend& backend, std::unique_ptr<peer::Kernel> inner)
        : backend_(backend), inner_(std::move(inner)) {}
    Bytes workspace_bytes() const override { return inner_->workspace_bytes(); }
    int in_place_input(size_t output) const override { return inner_->in_place_input(output); }
    Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
               const peer::StepContext& context) override {
      return backend_.add([inner = inner_, in = LateMemory::inner(inputs), out = LateMemory::inner(outputs),
                           scratch = LateMemory::inner(workspace),
                           &context] { return inner->run(in, out, scratch, context); });
    }
    std::string_view implementation() const override { return inner_->implementation(); }

   private:
    LateBackend& backend_;
    std::shared_ptr<peer::Kernel> inner_;  // shared with what waits to run it
  };

  Status add(LateStream::Work work) {
    if (recording_ != nullptr)
      recording_->work.push_back(std::move(work));
    else
      stream_->submit(std::move(work));
    return {};
  }
  Result<std::unique_ptr<peer::Download>> read(std::function<Result<dag::Tensor>()> source) {
    EXPECT_EQ(recording_, nullptr) << "a download cannot be repeated";
    return std::make_unique<LateDownload>(stream_, std::move(source));
  }

  peer::Backend& device_;
  std::shared_ptr<LateStream> stream_ = std::make_shared<LateStream>();
  Recording* recording_ = nullptr;  // what work() goes into
  uint64_t recorded_ = 0, repeated_ = 0;
};

}  // namespace weft::test
