// Numbers below 1.2e-38 count as zero while kernels run. Processors take them a hundred times slower than
// others, and training makes them by itself: probabilities of a saturated softmax, slots of parameters whose
// gradients have died out. What they would add to a sum of ordinary numbers is nothing.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace weft::peer::cpu {

#if defined(__SSE2__)
inline constexpr bool kFlushesSubnormals = true;
#else
inline constexpr bool kFlushesSubnormals = false;
#endif

// While it lives, the calling thread reads subnormal operands as zero and writes zero for subnormal results.
// The setting before is restored, on the team's threads as on the driving one: that one also folds constants
// with the reference backend, writes losses and starts other threads, which inherit the setting, and none of
// that may give other bits for having been preceded by a kernel. Costs some ten nanoseconds.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  uint32_t before_ = 0;
};

}  // namespace weft::peer::cpu
