#include "tests/cuda/fake_runtime.h"

#include <cublasLt.h>
#include <cudnn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace {

using Work = std::function<void()>;

struct Stream {
  bool captures = false;
  std::vector<Work> captured;
};
struct Event {
  uint64_t recorded = 0, reached = 0;
};
struct Graph {
  std::vector<Work> works;
};

// One thread does everything in the order of submission, which is a schedule that the streams allow.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      held_ = false;
    }
    changed_.notify_all();
    thread_.join();
  }
  void submit(Work work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    changed_.notify_all();
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void wait(const std::function<bool()>& over) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, over);
  }
  void wait_for_all() {
    wait([this] { return works_.empty() && !busy_; });
  }
  bool ask(const std::function<bool()>& question) {
    const std::lock_guard lock(mutex_);
    return question();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return (!works_.empty() && !held_) || ends_; });
      if (ends_) return;
      const Work work = std::move(works_.front());
      works_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  bool ends_ = false, held_ = false, busy_ = false;
  std::thread thread_;
};

struct State {
  weft::test::fake::Machine machine;
  std::mutex mutex;
  std::map<std::string, cudaError_t> failing;
  std::map<std::string, int> calls;
  cudaError_t sticky = cudaSuccess;
  std::string sticky_at;
  int alive = 0;
  unsigned event_flags = 0;
  std::vector<int> priorities;
  std::vector<std::shared_ptr<void>> made;  // all that there ever was: of a lost device nobody gives back
  Worker worker;
};
std::unique_ptr<State> state;
thread_local cudaError_t last = cudaSuccess;
thread_local int device = -1;

cudaError_t begin(const char* function) {
  const std::lock_guard lock(state->mutex);
  ++state->calls[function];
  if (state->sticky_at.empty() && state->sticky != cudaSuccess) return last = state->sticky;
  const auto found = state->failing.find(function);
  if (found == state->failing.end()) return cudaSuccess;
  last = found->second;
  state->failing.erase(found);
  if (state->sticky_at == function) {
    state->sticky_at.clear();
    state->sticky = last;
  }
  return last;
}
// Calls that need a device do nothing good on a thread that has not named one.
cudaError_t begin_on_device(const char* function) {
  if (const cudaError_t error = begin(function); error != cudaSuccess) return error;
  return device < 0 ? last = cudaErrorInvalidResourceHandle : cudaSuccess;
}
template <typename T>
T* keep(std::shared_ptr<T> object) {
  const std::lock_guard lock(state->mutex);
  ++state->alive;
  state->made.push_back(object);
  return object.get();
}
void give_back() {
  const std::lock_guard lock(state->mutex);
  --state->alive;
}
Stream& of(cudaStream_t stream) { return *reinterpret_cast<Stream*>(stream); }
Event& of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }
void submit(cudaStream_t stream, Work work) {
  if (of(stream).captures)
    of(stream).captured.push_back(std::move(work));
  else
    state->worker.submit(std::move(work));
}

}  // namespace

namespace weft::test::fake {

void reset(Machine machine) {
  state = std::make_unique<State>();
  state->machine = std::move(machine);
  last = cudaSuccess;
}
void fail(const std::string& function, cudaError_t answer, bool sticky) {
  const std::lock_guard lock(state->mutex);
  state->failing[function] = answer;
  if (sticky) state->sticky_at = function;
}
int calls(const std::string& function) {
  const std::lock_guard lock(state->mutex);
  return state->calls[function];
}
int alive() {
  const std::lock_guard lock(state->mutex);
  return state->alive;
}
unsigned last_event_flags() { return state->event_flags; }
std::vector<int> stream_priorities() { return state->priorities; }
void hold() { state->worker.hold(true); }
void let_go() { state->worker.hold(false); }

}  // namespace weft::test::fake

#define BEGIN(function) \
  if (const cudaError_t error = begin(#function); error != cudaSuccess) return error
#define BEGIN_ON_DEVICE(function) \
  if (const cudaError_t error = begin_on_device(#function); error != cudaSuccess) return error

extern "C" {

// ---- errors, versions, devices ----

cudaError_t cudaGetLastError() {
  return std::exchange(last, state->sticky_at.empty() ? state->sticky : cudaSuccess);
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorString(cudaError_t) { return "as the fake runtime was told"; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOfAKind";
}
size_t cublasLtGetVersion() { return 130100; }
size_t cudnnGetVersion() { return 91900; }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = state->machine.driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* cards) {
  BEGIN(cudaGetDeviceCount);
  *cards = static_cast<int>(state->machine.cards.size());
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  BEGIN(cudaGetDeviceProperties);
  const auto& card = state->machine.cards[static_cast<size_t>(index)];
  std::memset(properties, 0, sizeof(*properties));
  card.name.copy(properties->name, sizeof(properties->name) - 1);
  properties->major = card.major;
  properties->minor = card.minor;
  properties->multiProcessorCount = 68;
  properties->totalGlobalMem = size_t{10} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  BEGIN(cudaDeviceGetAttribute);
  *value = attribute == cudaDevAttrKernelExecTimeout ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) {
  BEGIN(cudaInitDevice);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  BEGIN(cudaSetDevice);
  device = index;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  BEGIN_ON_DEVICE(cudaDeviceSynchronize);
  state->worker.wait_for_all();
  return cudaSuccess;
}

// ---- streams and events ----

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  BEGIN_ON_DEVICE(cudaDeviceGetStreamPriorityRange);
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  BEGIN_ON_DEVICE(cudaStreamCreateWithPriority);
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *stream = reinterpret_cast<cudaStream_t>(keep(std::make_shared<Stream>()));
  state->priorities.push_back(priority);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  BEGIN_ON_DEVICE(cudaStreamDestroy);
  give_back();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BEGIN_ON_DEVICE(cudaEventCreateWithFlags);
  *event = reinterpret_cast<cudaEvent_t>(keep(std::make_shared<Event>()));
  state->event_flags = flags;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  BEGIN_ON_DEVICE(cudaEventDestroy);
  give_back();
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BEGIN_ON_DEVICE(cudaEventRecord);
  const uint64_t number = ++of(event).recorded;
  submit(stream, [&worker = state->worker, event, number] {
    worker.ask([&] { return (of(event).reached = number) != 0; });
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  BEGIN_ON_DEVICE(cudaStreamWaitEvent);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEGIN_ON_DEVICE(cudaEventQuery);
  const bool over = state->worker.ask([event] { return of(event).reached == of(event).recorded; });
  return over ? cudaSuccess : last = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEGIN_ON_DEVICE(cudaEventSynchronize);
  state->worker.wait([event] { return of(event).reached == of(event).recorded; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  BEGIN_ON_DEVICE(cudaEventElapsedTime);
  *milliseconds = 1.5f;
  return cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  BEGIN_ON_DEVICE(cudaMemGetInfo);
  *free = size_t{9} << 30;
  *total = size_t{10} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t size) {
  BEGIN_ON_DEVICE(cudaMalloc);
  *memory = keep(std::shared_ptr<void>(std::malloc(size), std::free));
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  BEGIN_ON_DEVICE(cudaFree);
  if (memory != nullptr) give_back();
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned) { return cudaMalloc(memory, size); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  BEGIN_ON_DEVICE(cudaMemcpyAsync);
  submit(stream, [=] { std::memcpy(to, from, size); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  BEGIN_ON_DEVICE(cudaMemsetAsync);
  submit(stream, [=] { std::memset(to, value, size); });
  return cudaSuccess;
}

// ---- work ----

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  BEGIN_ON_DEVICE(cudaLaunchKernel);
  const auto& kernel = *static_cast<const weft::test::fake::Kernel*>(function);
  const auto* bytes = static_cast<const std::byte*>(arguments[0]);
  submit(stream, [&kernel, copied = std::vector<std::byte>(bytes, bytes + kernel.parameter_bytes)] {
    kernel.run(copied.data());
  });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  BEGIN_ON_DEVICE(cudaLaunchHostFunc);
  submit(stream, [=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  BEGIN_ON_DEVICE(cudaStreamBeginCapture);
  of(stream).captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  of(stream).captures = false;
  auto works = std::exchange(of(stream).captured, {});
  BEGIN_ON_DEVICE(cudaStreamEndCapture);
  *graph = reinterpret_cast<cudaGraph_t>(keep(std::make_shared<Graph>(Graph{std::move(works)})));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  BEGIN_ON_DEVICE(cudaGraphInstantiate);
  *made = reinterpret_cast<cudaGraphExec_t>(keep(std::make_shared<Graph>(*reinterpret_cast<Graph*>(graph))));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
  BEGIN_ON_DEVICE(cudaGraphDestroy);
  give_back();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  BEGIN_ON_DEVICE(cudaGraphLaunch);
  for (const Work& work : reinterpret_cast<Graph*>(graph)->works) submit(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  BEGIN_ON_DEVICE(cudaGraphExecDestroy);
  give_back();
  return cudaSuccess;
}

// ---- code ----

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  BEGIN_ON_DEVICE(cudaLibraryLoadData);
  *library = reinterpret_cast<cudaLibrary_t>(keep(std::make_shared<char>()));
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  BEGIN_ON_DEVICE(cudaLibraryUnload);
  give_back();
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char*) {
  BEGIN_ON_DEVICE(cudaLibraryGetKernel);
  *kernel =
      reinterpret_cast<cudaKernel_t>(const_cast<weft::test::fake::Kernel*>(state->machine.kernel_of_code));
  return cudaSuccess;
}

}  // extern "C"
