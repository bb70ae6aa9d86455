#include "tests/cuda/host_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "peer/backend/cuda/shim/shim.h"
#include "tests/cuda/host_library.h"

namespace weft::test {

using namespace peer::cuda;

namespace {
constexpr int64_t kGuard = 256;  // bytes behind each block, to see whether somebody wrote there
constexpr int kPoison = 0xff;    // a float NaN
constexpr int kCanary = 0xc3;

bool is_there(const std::string& file) { return !file.empty() && ::access(file.c_str(), F_OK) == 0; }

tl::unexpected<Error> lost(const std::string& why) {
  return fail(ErrorCode::DeviceLost, "host device: " + why);
}
}  // namespace

struct HostDevice::HostEvent final : Event {
  int stream = -1;
  uint64_t until = 0;
  std::shared_ptr<Instant> at = std::make_shared<Instant>();
};
struct HostDevice::HostRecording final : Recording {
  std::vector<Work> works;
};
struct HostDevice::HostCompiled final : CompiledKernel {
  KernelSource source;
  const Entry* entry = nullptr;
};

HostDevice::HostDevice(HostDeviceOptions options) : options_(options), rng_(options.seed, 0) {
  properties_ = {.name = "host device",
                 .compute_major = 9,
                 .compute_minor = 0,
                 .multiprocessors = 1,
                 .memory = options.memory,
                 .has_display = options.has_display,
                 .libraries = "shim",
                 .environment = ""};
}

HostDevice::~HostDevice() {
  for (auto& [memory, block] : blocks_) std::free(memory);
  for (auto& [size, memory] : spare_) std::free(memory);
}

// ---- calls ----

Status HostDevice::enter() {
  ++calls_;
  const bool now = calls_ == options_.lose_at || is_there(options_.lose_when);
  if (now && status_) status_ = lost("lost at call " + std::to_string(calls_));
  return status_;
}

bool HostDevice::works() {
  works_ = works_ || options_.works_when.empty() || is_there(options_.works_when);
  return works_;
}

void HostDevice::wait_until_hangs() const {
  std::unique_lock lock(mutex_);
  let_go_.wait(lock, [this] { return hangs_; });
}
void HostDevice::let_go() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  let_go_.notify_all();
}

#define ENTER()                                                                                \
  std::unique_lock lock(mutex_);                                                               \
  while (is_there(options_.hang_while)) let_go_.wait_for(lock, std::chrono::milliseconds(20)); \
  if (calls_ + 1 == options_.hang_at) {                                                        \
    ++calls_;                                                                                  \
    hangs_ = true;                                                                             \
    let_go_.notify_all();                                                                      \
    let_go_.wait(lock, [this] { return gone_; });                                              \
    if (status_) status_ = lost("came back from a call that hung");                            \
  }                                                                                            \
  if (const Status entered = enter(); !entered) return fail(entered.error())

Status HostDevice::submit(Stream stream, Work work) {
  if (recording_) {
    WEFT_CHECK_MSG(stream == Stream::Compute, "only the compute stream is recorded");
    recording_->works.push_back(std::move(work));
    return {};
  }
  ++queue(stream).submitted;
  queue(stream).waiting.push_back({std::move(work)});
  pace();
  return status_;
}

void HostDevice::pace() {
  if (options_.pace == HostDeviceOptions::Pace::Late) return;
  for (int s = 0; s < kStreams; ++s) {
    Queue& q = queues_[s];
    const uint64_t open = q.submitted - q.done;
    const uint64_t now = options_.pace == HostDeviceOptions::Pace::Early ? open
                         : rng_.below(4) == 0                            ? rng_.below(open + 1)
                                                                         : 0;
    advance(s, q.done + now);
  }
}

void HostDevice::advance(int stream, uint64_t until) {
  Queue& q = queues_[stream];
  while (q.done < until) {
    WEFT_CHECK(!q.waiting.empty());
    const Item item = std::move(q.waiting.front());
    if (item.waits_for >= 0) advance(item.waits_for, item.until);
    q.waiting.pop_front();
    ++q.done;
    if (!item.work || !status_) continue;
    if (const Status worked = item.work(); !worked && status_) status_ = worked;
  }
}

// ---- memory ----

Result<Bytes> HostDevice::free_memory() {
  ENTER();
  return Bytes{options_.memory.value - device_bytes_};
}

std::byte* HostDevice::take(Bytes size, bool pinned) {
  const int64_t rounded = (std::max<int64_t>(size.value, 1) + 255) / 256 * 256;
  std::byte* memory = nullptr;
  if (const auto found = spare_.find(rounded); found != spare_.end()) {
    memory = found->second;
    spare_.erase(found);
  } else {
    memory = static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(rounded + kGuard)));
    if (memory == nullptr) throw std::bad_alloc();
  }
  std::memset(memory, kPoison, static_cast<size_t>(rounded));
  std::memset(memory + rounded, kCanary, kGuard);
  blocks_[memory] = {memory, rounded, pinned};
  if (!pinned) device_bytes_ += rounded;
  return memory;
}

void HostDevice::give(std::byte* memory) {
  const auto found = blocks_.find(memory);
  WEFT_CHECK_MSG(found != blocks_.end(), "memory given back that was not taken");
  const Block block = found->second;
  const bool whole = std::all_of(memory + block.size, memory + block.size + kGuard,
                                 [](std::byte b) { return b == std::byte{kCanary}; });
  if (!whole && status_)
    status_ = fail(ErrorCode::Internal, "host device: written behind the end of a block");
  if (!block.pinned) device_bytes_ -= block.size;
  std::memset(memory, kPoison, static_cast<size_t>(block.size));
  spare_.emplace(block.size, memory);
  blocks_.erase(found);
}

Result<std::byte*> HostDevice::allocate(Bytes size) {
  ENTER();
  if (device_bytes_ + size.value > options_.memory.value)
    return fail(ErrorCode::ResourceExhausted,
                "host device: " + std::to_string(size.value) + " bytes are not free");
  ++allocations_;
  return take(size, false);
}
void HostDevice::deallocate(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  give(memory);
}
Result<std::byte*> HostDevice::allocate_pinned(Bytes size) {
  ENTER();
  return take(size, true);
}
void HostDevice::deallocate_pinned(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  give(memory);
}

// ---- work ----

Status HostDevice::launch(Stream stream, const Entry& kernel, const Grid& grid, const void* parameters) {
  ENTER();
  if (!works()) return {};
  std::vector<std::byte> copied(kernel.parameter_bytes);
  std::memcpy(copied.data(), parameters, kernel.parameter_bytes);
  const uint64_t seed = options_.seed + ++launches_;
  return submit(stream, [kernel, grid, copied = std::move(copied), seed]() -> Status {
    const std::string fault = shim::run_grid(kernel, grid, copied.data(), seed);
    if (!fault.empty()) return fail(ErrorCode::Internal, "host device: " + fault);
    return {};
  });
}
Status HostDevice::launch(Stream stream, const CompiledKernel& kernel, const Grid& grid,
                          const void* parameters) {
  const auto& compiled = static_cast<const HostCompiled&>(kernel);
  if (compiled.entry == nullptr) WEFT_TRY_STATUS(compile());
  if (compiled.entry == nullptr) return status_;  // nothing works yet
  return launch(stream, *compiled.entry, grid, parameters);
}
Status HostDevice::copy_in(Stream stream, const std::byte* pinned, std::byte* to, Bytes size) {
  return copy_within(stream, pinned, to, size);
}
Status HostDevice::copy_out(Stream stream, const std::byte* from, std::byte* pinned, Bytes size) {
  return copy_within(stream, from, pinned, size);
}
Status HostDevice::copy_within(Stream stream, const std::byte* from, std::byte* to, Bytes size) {
  ENTER();
  return submit(stream, [from, to, size]() -> Status {
    std::memmove(to, from, static_cast<size_t>(size.value));
    return {};
  });
}
Status HostDevice::fill_zero(Stream stream, std::byte* to, Bytes size) {
  ENTER();
  return submit(stream, [to, size]() -> Status {
    std::memset(to, 0, static_cast<size_t>(size.value));
    return {};
  });
}
Status HostDevice::call_host(Stream stream, std::function<Status()> function) {
  ENTER();
  return submit(stream, std::move(function));
}

// ---- events ----

Result<std::shared_ptr<Event>> HostDevice::make_event(bool) {
  ENTER();
  return std::make_shared<HostEvent>();
}
Status HostDevice::record(Event& event, Stream stream) {
  ENTER();
  WEFT_CHECK_MSG(!recording_, "an event is recorded while a stream is");
  auto& mine = static_cast<HostEvent&>(event);
  mine.stream = static_cast<int>(stream);
  mine.until = queue(stream).submitted + 1;
  mine.at = std::make_shared<Instant>();
  return submit(stream, [at = mine.at]() -> Status {
    *at = Instant(std::chrono::steady_clock::now().time_since_epoch());
    return {};
  });
}
Status HostDevice::wait_in(Stream stream, const Event& event) {
  ENTER();
  const auto& theirs = static_cast<const HostEvent&>(event);
  if (theirs.stream < 0 || options_.ignores_waits) return {};
  ++queue(stream).submitted;
  queue(stream).waiting.push_back({{}, theirs.stream, theirs.until});
  pace();
  return status_;
}
Status HostDevice::wait_for(const Event& event) {
  ENTER();
  const auto& theirs = static_cast<const HostEvent&>(event);
  if (theirs.stream >= 0) advance(theirs.stream, theirs.until);
  return status_;
}
Result<bool> HostDevice::is_over(const Event& event) {
  ENTER();
  const auto& theirs = static_cast<const HostEvent&>(event);
  return theirs.stream < 0 || queues_[theirs.stream].done >= theirs.until;
}
Result<Duration> HostDevice::between(const Event& begin, const Event& end) {
  ENTER();
  return Duration(*static_cast<const HostEvent&>(end).at - *static_cast<const HostEvent&>(begin).at);
}
Status HostDevice::synchronize() {
  ENTER();
  for (int s = 0; s < kStreams; ++s) advance(s, queues_[s].submitted);
  return status_;
}

// ---- recordings ----

Status HostDevice::begin_recording() {
  ENTER();
  WEFT_CHECK(!recording_);
  recording_ = std::make_shared<HostRecording>();
  return {};
}
Result<std::shared_ptr<Recording>> HostDevice::end_recording() {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Recording> made = std::move(recording_);
  recording_ = nullptr;
  if (const Status entered = enter(); !entered) return fail(entered.error());
  return made;
}
Status HostDevice::replay(const Recording& recording) {
  ENTER();
  for (const Work& work : static_cast<const HostRecording&>(recording).works)
    WEFT_TRY_STATUS(submit(Stream::Compute, work));
  return {};
}

// ---- sources ----

Result<std::shared_ptr<CompiledKernel>> HostDevice::add_source(KernelSource source) {
  ENTER();
  auto kernel = std::make_shared<HostCompiled>();
  kernel->source = std::move(source);
  uncompiled_.push_back(kernel);
  return kernel;
}

Status HostDevice::compile() {
  ENTER();
  if (!works()) return {};
  std::erase_if(uncompiled_, [](const auto& kernel) { return kernel.use_count() == 1; });
  std::vector<KernelSource> sources;
  for (const auto& kernel : uncompiled_) sources.push_back(kernel->source);
  WEFT_TRY(const std::vector<const Entry*> entries, compile_for_shim(sources));
  for (size_t i = 0; i < entries.size(); ++i) uncompiled_[i]->entry = entries[i];
  uncompiled_.clear();
  return {};
}

// ---- libraries ----

Result<std::shared_ptr<LibraryOp>> HostDevice::make_product(const ProductSpec& spec) {
  ENTER();
  return host_product(spec);
}
Result<std::shared_ptr<LibraryOp>> HostDevice::make_convolution(const ConvolutionSpec& spec) {
  ENTER();
  return host_convolution(spec);
}
Status HostDevice::run(const LibraryOp& op, const std::byte* first, const std::byte* second,
                       const std::byte* bias, std::byte* result, std::byte* workspace) {
  ENTER();
  if (!works()) return {};
  const auto work = static_cast<const HostLibraryOp&>(op).work;
  const int64_t workspace_bytes = op.workspace_bytes().value;
  return submit(Stream::Compute, [=]() -> Status {
    if (workspace_bytes > 0) std::memset(workspace, kPoison, static_cast<size_t>(workspace_bytes));
    work(first, second, bias, result);
    return {};
  });
}

}  // namespace weft::test
