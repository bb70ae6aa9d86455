// The threads that kernels share with oneDNN: OpenMP's, a fixed number of them. What a piece of work computes
// never depends on which thread runs it or on how many there are; only who does which piece does.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "peer/backend/cpu/subnormals.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace weft::peer::cpu {

// The beginning and the end of a parallel region, for TSan: OpenMP's threads wait by futexes, which it does
// not see. In other builds there is nothing of it.
class Region {
 public:
#if defined(__SANITIZE_THREAD__)
  Region() { __tsan_release(&begun_); }
  ~Region() { __tsan_acquire(&ended_); }
  // Held by each thread of the region, over all that it does there.
  class Part {
   public:
    explicit Part(Region& region) : region_(region) { __tsan_acquire(&region_.begun_); }
    ~Part() { __tsan_release(&region_.ended_); }

   private:
    Region& region_;
  };

 private:
  char begun_ = 0, ended_ = 0;
#else
  struct Part {
    explicit Part(Region&) {}
  };
#endif
};

class Team {
 public:
  // threads <= 0: one for each processor that this process may use.
  Team(int threads, bool pin);

  int size() const { return size_; }

  // Held by the driving thread while it makes or runs kernels: sets the number of threads that oneDNN takes,
  // pins them once, and flushes subnormals.
  class Entered {
   public:
    explicit Entered(const Team& team) {
      omp_set_num_threads(team.size_);
      if (team.pin_) team.pin_once();
    }

   private:
    FlushSubnormals flush_;
  };

  // Lets the calling thread, which inherited a pin, run on every processor of the process again.
  static void release_calling_thread();

  // Calls f(begin, end) on contiguous ranges that make up [0, count), cut at multiples of `grain`: at most
  // one a thread. For work whose elements do not depend on each other.
  template <typename F>
  void ranges(int64_t count, int64_t grain, const F& f) const {
    const int64_t units = (count + grain - 1) / grain;
    const int threads = static_cast<int>(std::min<int64_t>(size_, units));
    if (threads <= 1) {
      if (count > 0) f(int64_t{0}, count);
      return;
    }
    Region region;
#pragma omp parallel num_threads(threads)
    {
      const Region::Part part(region);
      const FlushSubnormals flush;
      const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
      const int64_t begin = units * thread / team * grain;
      const int64_t end = std::min(count, units * (thread + 1) / team * grain);
      if (begin < end) f(begin, end);
    }
  }

  // Calls f(i) for i in [0, count), each by one thread; oneDNN calls inside f run on that thread alone.
  template <typename F>
  void pieces(int64_t count, const F& f) const {
    const int threads = static_cast<int>(std::min<int64_t>(size_, count));
    if (threads <= 1) {
      omp_set_num_threads(1);
      for (int64_t i = 0; i < count; ++i) f(i);
      omp_set_num_threads(size_);
      return;
    }
    Region region;
#pragma omp parallel num_threads(threads)
    {
      const Region::Part part(region);
      const FlushSubnormals flush;
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < count; ++i) f(i);
    }
  }

 private:
  void pin_once() const;
  int size_ = 1;
  bool pin_ = false;
};

// Scratch of the calling thread, aligned to a cache line; what is in it survives until the thread's next
// call.
float* thread_scratch(int64_t elements);

}  // namespace weft::peer::cpu
