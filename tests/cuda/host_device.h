// A Device without a GPU: kernels run on the shim, library calls are plain loops, and the streams are as late
// or as early as events allow, so that whoever relies on more than peer/backend/cuda/device.h promises gets
// other numbers: what is waited for by nobody has not happened, memory begins and ends as NaNs, and staging
// that is reused too early is read too late. It can be lost, or hang, at any call.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "peer/backend/cuda/device.h"

namespace weft::test {

struct HostDeviceOptions {
  enum class Pace : uint8_t {
    Early,   // everything at once
    Late,    // nothing before somebody waits for it
    Random,  // by the seed
  };
  Pace pace = Pace::Random;
  uint64_t seed = 1;
  Bytes memory{int64_t{4} << 30};
  bool has_display = false;
  uint64_t lose_at = 0;      // the call, from 1, at which the device is found lost; 0: never
  uint64_t hang_at = 0;      // the call that does not return before let_go()
  std::string lose_when{};   // likewise, at the first call when there is such a file
  std::string hang_while{};  // while there is such a file no call returns
  std::string works_when{};  // before there is such a file kernels compute nothing: for measuring
  // Faults of a backend above, planted to see that tests find them.
  bool ignores_waits = false;  // wait_in() is forgotten
};

class HostDevice final : public peer::cuda::Device {
 public:
  using Stream = peer::cuda::Stream;
  explicit HostDevice(HostDeviceOptions options);
  ~HostDevice() override;

  uint64_t calls() const { return calls_; }
  void let_go();  // whoever hangs finds the device lost. Any thread
  void wait_until_hangs() const;
  int64_t device_bytes() const { return device_bytes_; }
  uint64_t allocations() const { return allocations_; }  // of device memory, so far

  const peer::cuda::DeviceProperties& properties() const override { return properties_; }
  Result<Bytes> free_memory() override;
  Result<std::byte*> allocate(Bytes size) override;
  void deallocate(std::byte* memory) override;
  Result<std::byte*> allocate_pinned(Bytes size) override;
  void deallocate_pinned(std::byte* memory) override;
  Status launch(Stream stream, const peer::cuda::Entry& kernel, const peer::cuda::Grid& grid,
                const void* parameters) override;
  Status launch(Stream stream, const peer::cuda::CompiledKernel& kernel, const peer::cuda::Grid& grid,
                const void* parameters) override;
  Status copy_in(Stream stream, const std::byte* pinned, std::byte* to, Bytes size) override;
  Status copy_out(Stream stream, const std::byte* from, std::byte* pinned, Bytes size) override;
  Status copy_within(Stream stream, const std::byte* from, std::byte* to, Bytes size) override;
  Status fill_zero(Stream stream, std::byte* to, Bytes size) override;
  Status call_host(Stream stream, std::function<Status()> function) override;
  Result<std::shared_ptr<peer::cuda::Event>> make_event(bool timed) override;
  Status record(peer::cuda::Event& event, Stream stream) override;
  Status wait_in(Stream stream, const peer::cuda::Event& event) override;
  Status wait_for(const peer::cuda::Event& event) override;
  Result<bool> is_over(const peer::cuda::Event& event) override;
  Result<Duration> between(const peer::cuda::Event& begin, const peer::cuda::Event& end) override;
  Status synchronize() override;
  Status begin_recording() override;
  Result<std::shared_ptr<peer::cuda::Recording>> end_recording() override;
  Status replay(const peer::cuda::Recording& recording) override;
  Result<std::shared_ptr<peer::cuda::CompiledKernel>> add_source(peer::cuda::KernelSource source) override;
  Status compile() override;
  Result<std::shared_ptr<peer::cuda::LibraryOp>> make_product(const peer::cuda::ProductSpec& spec) override;
  Result<std::shared_ptr<peer::cuda::LibraryOp>> make_convolution(
      const peer::cuda::ConvolutionSpec& spec) override;
  Status run(const peer::cuda::LibraryOp& op, const std::byte* first, const std::byte* second,
             const std::byte* bias, std::byte* result, std::byte* workspace) override;

 private:
  using Work = std::function<Status()>;
  struct HostEvent;
  struct HostRecording;
  struct HostCompiled;
  struct Item {
    Work work;           // or
    int waits_for = -1;  // a stream, up to
    uint64_t until = 0;
  };
  struct Queue {
    std::deque<Item> waiting;
    uint64_t submitted = 0, done = 0;
  };

  Status enter();  // one more call. REQUIRES: mutex_ is held
  bool works();
  Status submit(Stream stream, Work work);
  void pace();
  void advance(int stream, uint64_t until);
  std::byte* take(Bytes size, bool pinned);
  void give(std::byte* memory);
  Queue& queue(Stream stream) { return queues_[static_cast<size_t>(stream)]; }

  const HostDeviceOptions options_;
  peer::cuda::DeviceProperties properties_;
  mutable std::mutex mutex_;
  mutable std::condition_variable let_go_;
  bool hangs_ = false, gone_ = false, works_ = false;
  Rng rng_;
  uint64_t calls_ = 0, launches_ = 0, allocations_ = 0;
  int64_t device_bytes_ = 0;
  Status status_;  // the first failure, which is all later calls'
  Queue queues_[peer::cuda::kStreams];
  std::shared_ptr<HostRecording> recording_;
  struct Block {
    std::byte* memory;
    int64_t size;
    bool pinned;
  };
  std::map<std::byte*, Block> blocks_;
  std::multimap<int64_t, std::byte*> spare_;  // by size: never given back, so that late work finds NaNs
  std::vector<std::shared_ptr<HostCompiled>> uncompiled_;
};

}  // namespace weft::test
