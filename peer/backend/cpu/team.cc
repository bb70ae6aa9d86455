#include "peer/backend/cpu/team.h"

#include <sched.h>

#include <cstdlib>
#include <vector>

namespace weft::peer::cpu {
namespace {

// The processors of this process as it started, before any thread was pinned.
const std::vector<int>& allowed_processors() {
  static const std::vector<int> kProcessors = [] {
    std::vector<int> list;
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) list.push_back(cpu);
      }
    }
#endif
    if (list.empty()) list.resize(static_cast<size_t>(std::max(1, omp_get_num_procs())), 0);
    return list;
  }();
  return kProcessors;
}

}  // namespace

Team::Team(int threads, bool pin) {
  const int processors = static_cast<int>(allowed_processors().size());
  size_ = threads > 0 ? threads : processors;
  // Only a team that takes every processor is pinned, one thread to each. A smaller one would bind itself,
  // and every other such process, to the first processors; who has set OpenMP's own binding means it.
  pin_ = pin && size_ == processors && std::getenv("OMP_PROC_BIND") == nullptr;
}

void Team::release_calling_thread() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : allowed_processors()) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
#endif
}

void Team::pin_once() const {
#ifdef __linux__
  // Of the driving thread: how many threads of its team have been pinned.
  static thread_local int pinned = 0;
  if (pinned >= size_) return;
#pragma omp parallel num_threads(size_)
  {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(allowed_processors()[static_cast<size_t>(omp_get_thread_num())], &set);
    sched_setaffinity(0, sizeof(set), &set);  // refused: then the system places the thread
  }
  pinned = size_;
#endif
}

float* thread_scratch(int64_t elements) {
  static thread_local std::vector<float> buffer;
  const size_t needed = static_cast<size_t>(elements) + 16;
  if (buffer.size() < needed) buffer.resize(needed);
  const auto at = reinterpret_cast<uintptr_t>(buffer.data());
  const size_t skipped = (64 - at % 64) % 64 / sizeof(float);
  return buffer.data() + skipped;
}

}  // namespace weft::peer::cpu
