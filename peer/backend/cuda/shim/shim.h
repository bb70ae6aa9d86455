// A GPU's thread blocks on one thread of the host, so that kernels compiled as C++ can be run and found
// wrong: the threads of a block are fibers that run in an order drawn from a seed, and what a GPU leaves
// undefined is a fault here: shared memory that nobody wrote, an element that two threads touch between two
// barriers (one of them writing), an index beyond an end, a barrier or exchange that not all reach, or reach
// at different places. Slow (some million elements a second), for tests alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

#include "peer/backend/cuda/shim/fault.h"

namespace weft::peer::cuda {
struct Entry;
struct Grid;
}  // namespace weft::peer::cuda

namespace weft::peer::cuda::shim {

// Runs every block of the grid. Empty: all went well; else what was wrong, with kernel, block and thread. The
// rest of the grid is then left out. Any thread.
std::string run_grid(const Entry& kernel, const Grid& grid, const void* parameters, uint64_t seed);

struct Index3 {
  uint32_t x = 0, y = 0, z = 0;
};
struct Coordinates {
  Index3 thread, block, block_dim, grid_dim;
};
const Coordinates& here();

using Site = std::source_location;
void barrier(const Site& site);
void warp_barrier(uint32_t mask, const Site& site);
// What lane `from` of the warp hands over, of `size` bytes at most 8, by all lanes together.
void exchange(uint32_t mask, const void* mine, void* theirs, uint32_t size, int from, const Site& site);
// The lanes of the warp for which the predicate holds.
uint32_t ballot(uint32_t mask, bool predicate, const Site& site);

// Shared memory of the block: one region for each declaration.
struct Region;
Region* shared_region(const void* declaration, int64_t count, uint32_t element_size, const char* name);
void read_shared(Region* region, int64_t index, void* to);
void write_shared(Region* region, int64_t index, const void* from);

template <typename T>
class SharedElement {
 public:
  SharedElement(Region* region, int64_t index) : region_(region), index_(index) {}
  operator T() const {
    T value;
    read_shared(region_, index_, &value);
    return value;
  }
  const SharedElement& operator=(T value) const {
    write_shared(region_, index_, &value);
    return *this;
  }
  // By way of a value, so that its own does no harm. NOLINTNEXTLINE(bugprone-unhandled-self-assignment)
  const SharedElement& operator=(const SharedElement& other) const { return *this = static_cast<T>(other); }
  const SharedElement& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }

 private:
  Region* region_;
  int64_t index_;
};

template <typename T>
class Shared {
 public:
  Shared(const void* declaration, int64_t count, const char* name)
      : region_(shared_region(declaration, count, sizeof(T), name)) {}
  SharedElement<T> operator[](int64_t index) const { return {region_, index}; }

 private:
  Region* region_;
};

template <typename T>
T exchanged(uint32_t mask, T value, int from, const Site& site) {
  T result;
  exchange(mask, &value, &result, sizeof(T), from, site);
  return result;
}
inline int lane() { return static_cast<int>(here().thread.x % 32); }

}  // namespace weft::peer::cuda::shim

// ---- the words of the language ----

// CUDA's names, which are of those reserved for the compiler.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define threadIdx (::weft::peer::cuda::shim::here().thread)
#define blockIdx (::weft::peer::cuda::shim::here().block)
#define blockDim (::weft::peer::cuda::shim::here().block_dim)
#define gridDim (::weft::peer::cuda::shim::here().grid_dim)

inline void __syncthreads(const std::source_location& site = std::source_location::current()) {
  ::weft::peer::cuda::shim::barrier(site);
}
inline void __syncwarp(uint32_t mask = 0xffffffffu,
                       const std::source_location& site = std::source_location::current()) {
  ::weft::peer::cuda::shim::warp_barrier(mask, site);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, int from,
              const std::source_location& site = std::source_location::current()) {
  return ::weft::peer::cuda::shim::exchanged(mask, value, from & 31, site);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits,
                  const std::source_location& site = std::source_location::current()) {
  return ::weft::peer::cuda::shim::exchanged(mask, value, (::weft::peer::cuda::shim::lane() ^ bits) & 31,
                                             site);
}
// Beyond the last lane: one's own value.
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, int delta,
                   const std::source_location& site = std::source_location::current()) {
  const int from = ::weft::peer::cuda::shim::lane() + delta;
  return ::weft::peer::cuda::shim::exchanged(mask, value, from < 32 ? from : ::weft::peer::cuda::shim::lane(),
                                             site);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, int delta,
                 const std::source_location& site = std::source_location::current()) {
  const int from = ::weft::peer::cuda::shim::lane() - delta;
  return ::weft::peer::cuda::shim::exchanged(mask, value, from >= 0 ? from : ::weft::peer::cuda::shim::lane(),
                                             site);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate,
                              const std::source_location& site = std::source_location::current()) {
  return ::weft::peer::cuda::shim::ballot(mask, predicate != 0, site);
}
inline int __any_sync(uint32_t mask, int predicate,
                      const std::source_location& site = std::source_location::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(uint32_t mask, int predicate,
                      const std::source_location& site = std::source_location::current()) {
  return __ballot_sync(mask, predicate, site) == 0xffffffffu;
}

inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
__extension__ typedef unsigned __int128 unsigned_128;
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned_128>(a) * b) >> 64);
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

// Of the standard library, under the names that device code has at hand without an include.
using std::fmaf;
