#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/moves.cuh"
#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {
namespace {

template <typename T>
__device__ __forceinline__ void strided_copy(const StridedCopy<T>& p) {
  T values[kMovesEach] = {};
  int64_t targets[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        const Places places = places_of(p.walk, i);
        values[k] = p.from[p.from_offset + places.from];
        targets[k] = p.to_offset + places.to;
      },
      [&](int k, uint32_t) { p.to[targets[k]] = values[k]; });
}

template <typename T>
__device__ __forceinline__ void tiled_transpose(const TiledTranspose<T>& p) {
  constexpr int32_t kPitch = kTile + 1;  // a column of the tile then lies in different banks
  WEFT_SHARED(T, tile, kTile * kPitch);
  uint32_t at = blockIdx.x;
  const uint32_t column0 = take_remainder(at, p.column_tiles) * kTile;
  const uint32_t row0 = take_remainder(at, p.row_tiles) * kTile;
  const Places plane = places_of(p.planes, at);
  const auto lane = static_cast<int32_t>(threadIdx.x % kTile),
             line = static_cast<int32_t>(threadIdx.x / kTile);
  constexpr int32_t kLines = kTileThreads / kTile;
  WEFT_UNROLL
  for (int32_t k = 0; k < kTile; k += kLines) {
    const uint32_t i = row0 + static_cast<uint32_t>(lane), j = column0 + static_cast<uint32_t>(line + k);
    if (i < p.rows && j < p.columns)
      tile[(line + k) * kPitch + lane] =
          p.from[p.from_offset + plane.from + int64_t{i} + static_cast<int64_t>(j) * p.from_stride];
  }
  __syncthreads();
  WEFT_UNROLL
  for (int32_t k = 0; k < kTile; k += kLines) {
    const uint32_t i = row0 + static_cast<uint32_t>(line + k), j = column0 + static_cast<uint32_t>(lane);
    if (i < p.rows && j < p.columns)
      p.to[p.to_offset + plane.to + static_cast<int64_t>(i) * p.to_stride + int64_t{j}] =
          tile[lane * kPitch + line + k];
  }
}

// The source's element under `at`, `u` counted from where the source begins; false: there is none.
__device__ __forceinline__ bool source_of(Beyond beyond, const PlacedDim& dim, int32_t u, int64_t& place) {
  if (beyond == Beyond::Fill) {
    const auto from_begin = static_cast<uint32_t>(u);  // large where u is negative
    if (from_begin >= dim.extent) return false;
    const uint32_t k = divided(from_begin, dim.step);
    place += static_cast<int64_t>(k) * dim.stride;
    return k * dim.step.divisor == from_begin;
  }
  const auto last = static_cast<int32_t>(dim.extent) - 1;
  if (beyond == Beyond::Edge) {
    u = u < 0 ? 0 : u > last ? last : u;
  } else {
    u = u < 0 ? -u : u;
    u = u > last ? 2 * last - u : u;
  }
  place += int64_t{u} * dim.stride;
  return true;
}

template <typename T>
__device__ __forceinline__ void placed(const Placed<T>& p) {
  T values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        int64_t place = p.from_offset;
        bool there = true;
        for (int32_t d = 0; d < p.rank; ++d) {
          const auto at = static_cast<int32_t>(take_remainder(i, p.dims[d].size));
          there = there && source_of(p.beyond, p.dims[d], at - p.dims[d].begin, place);
        }
        values[k] = p.fill;
        if (there) values[k] = p.from[place];
      },
      [&](int k, uint32_t i) { p.to[i] = values[k]; });
}

template <typename T>
__device__ __forceinline__ void concat(const Concat<T>& p) {
  const ConcatPart<T>& part = p.parts[blockIdx.y];
  T values[kMovesEach] = {};
  move_each(
      static_cast<uint32_t>(part.from.count), [&](int k, uint32_t i) { values[k] = part.from[i]; },
      [&](int k, uint32_t i) {
        uint32_t row = i;
        const uint32_t column = take_remainder(row, part.run);
        p.to[static_cast<int64_t>(row) * p.row + part.before + int64_t{column}] = values[k];
      });
}

// The places of the padded dim that repeat one element, in order: at most three, or all from `first` on.
struct Repeats {
  int32_t first, count, places[3];
  __device__ __forceinline__ int32_t place(int32_t i) const {
    if (first >= 0) return first + i;
    return i == 0 ? places[0] : i == 1 ? places[1] : places[2];
  }
};
__device__ __forceinline__ void add_place(Repeats& repeats, int32_t place, int32_t padded) {
  if (place < 0 || place >= padded) return;
  if (repeats.count == 0) repeats.places[0] = place;
  if (repeats.count == 1) repeats.places[1] = place;
  if (repeats.count == 2) repeats.places[2] = place;
  ++repeats.count;
}
__device__ __forceinline__ Repeats repeats_of(Beyond beyond, const FoldedDim& dim, int32_t element) {
  Repeats repeats{-1, 0, {0, 0, 0}};
  const auto last = static_cast<int32_t>(dim.size.divisor) - 1;
  if (beyond == Beyond::Edge) {
    int32_t first = element + dim.begin, end = first + 1;
    if (element == 0) first = 0;
    if (element == last) end = dim.padded;
    if (first < 0) first = 0;
    if (end > dim.padded) end = dim.padded;
    repeats.first = first;
    repeats.count = end > first ? end - first : 0;
    return repeats;
  }
  if (element > 0) add_place(repeats, dim.begin - element, dim.padded);
  add_place(repeats, dim.begin + element, dim.padded);
  if (element < last) add_place(repeats, dim.begin + 2 * last - element, dim.padded);
  return repeats;
}

}  // namespace

__global__ void __launch_bounds__(kMoveThreads) folded(Folded p) {
  const uint32_t i = blockIdx.x * kMoveThreads + threadIdx.x;
  if (i >= p.count) return;
  int64_t terms = 1;
  uint32_t rest = i;
  for (int32_t d = 0; d < p.rank; ++d) {
    const auto at = static_cast<int32_t>(take_remainder(rest, p.dims[d].size));
    terms *= repeats_of(p.beyond, p.dims[d], at).count;
  }
  // Each term anew from its number: terms are few, and borders rare.
  double sum = 0;
  for (int64_t term = 0; term < terms; ++term) {
    int64_t place = 0, number = term;
    rest = i;
    for (int32_t d = 0; d < p.rank; ++d) {
      const auto at = static_cast<int32_t>(take_remainder(rest, p.dims[d].size));
      const Repeats repeats = repeats_of(p.beyond, p.dims[d], at);
      int32_t which = 0;
      if (repeats.count > 1) {
        which = static_cast<int32_t>(number % repeats.count);
        number /= repeats.count;
      }
      place += int64_t{repeats.place(which)} * p.dims[d].stride;
    }
    sum += static_cast<double>(p.dy[place]);
  }
  p.dx[i] = static_cast<float>(sum);
}
WEFT_KERNEL_ENTRY(folded, Folded)

#define WEFT_TILES(T, bytes)                                                                     \
  __global__ void __launch_bounds__(kTileThreads) tiled_transpose_##bytes(TiledTranspose<T> p) { \
    tiled_transpose(p);                                                                          \
  }                                                                                              \
  WEFT_KERNEL_ENTRY(tiled_transpose_##bytes, TiledTranspose<T>)
WEFT_TILES(uint8_t, 1)
WEFT_TILES(uint16_t, 2)
WEFT_TILES(uint32_t, 4)
WEFT_TILES(uint64_t, 8)

#define WEFT_MOVES(T, bytes)                                                                 \
  __global__ void __launch_bounds__(kMoveThreads) strided_copy_##bytes(StridedCopy<T> p) {   \
    strided_copy(p);                                                                         \
  }                                                                                          \
  WEFT_KERNEL_ENTRY(strided_copy_##bytes, StridedCopy<T>)                                    \
  __global__ void __launch_bounds__(kMoveThreads) placed_##bytes(Placed<T> p) { placed(p); } \
  WEFT_KERNEL_ENTRY(placed_##bytes, Placed<T>)                                               \
  __global__ void __launch_bounds__(kMoveThreads) concat_##bytes(Concat<T> p) { concat(p); } \
  WEFT_KERNEL_ENTRY(concat_##bytes, Concat<T>)
WEFT_MOVES(uint8_t, 1)
WEFT_MOVES(uint16_t, 2)
WEFT_MOVES(uint32_t, 4)
WEFT_MOVES(uint64_t, 8)
WEFT_MOVES(Unit16, 16)

}  // namespace weft::peer::cuda
