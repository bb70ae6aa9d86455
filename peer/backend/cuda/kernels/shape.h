// Kernels that move elements, by their size in bytes alone: what lies together in source and target is moved
// in wider units than single elements.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"

namespace weft::peer::cuda {

struct alignas(16) Unit16 {
  uint64_t low, high;
};

inline constexpr uint32_t kMoveThreads = 256;
inline constexpr int kMovesEach = 4;  // elements a thread: loads that are under way together
inline constexpr uint32_t kMoveBlock = kMoveThreads * kMovesEach;

// to[to_offset + ...] = from[from_offset + ...] for `count` elements of the walk.
template <typename T>
struct StridedCopy {
  Array<const T> from;
  Array<T> to;
  int64_t from_offset, to_offset;
  uint32_t count;
  Walk walk;
};

// What lies along rows in `from` lies along columns in `to`: tiles by way of shared memory, so that both
// sides are touched along their rows. Element (i, j) of a plane: from[i + j * from_stride], to[i * to_stride
// + j]. The walk is over the planes. One block a tile.
inline constexpr int32_t kTile = 32;
inline constexpr uint32_t kTileThreads = 256;
template <typename T>
struct TiledTranspose {
  Array<const T> from;
  Array<T> to;
  int64_t from_offset, to_offset;
  int64_t from_stride, to_stride;
  uint32_t rows, columns;  // of i and of j
  Divider row_tiles, column_tiles;
  Walk planes;
};

// The result's elements in order, each from the source or, where there is none, the filling.
enum class Beyond : int32_t { Fill, Edge, Reflect };
struct PlacedDim {
  Divider size;     // of the result
  Divider step;     // from one element of the source to the next, in the result
  int32_t begin;    // where the source's first element comes to lie
  uint32_t extent;  // how far the source's elements reach from there
  int64_t stride;   // in the source
};
template <typename T>
struct Placed {
  Array<const T> from;
  Array<T> to;
  int64_t from_offset;
  T fill;
  uint32_t count;
  Beyond beyond;
  int32_t rank;
  PlacedDim dims[kWalkDims];  // innermost first
};

// The cotangent of a padding that repeats elements: each element of dx sums what repeats it.
struct FoldedDim {
  Divider size;  // of dx
  int32_t padded;
  int32_t begin;  // where element 0 comes to lie
  int64_t stride;
};
struct Folded {
  Array<const float> dy;
  Array<float> dx;
  uint32_t count;
  Beyond beyond;  // Edge or Reflect
  int32_t rank;
  FoldedDim dims[kWalkDims];  // innermost first
};
extern const EntryOf<Folded> k_folded;

// One after the other along an axis: to[o, before + i] = from[o, i]. A block's y says which part.
inline constexpr int kConcatParts = 8;
template <typename T>
struct ConcatPart {
  Array<const T> from;
  Divider run;  // elements of it a row of the result
  int64_t before;
};
template <typename T>
struct Concat {
  Array<T> to;
  int64_t row;  // of the result
  ConcatPart<T> parts[kConcatParts];
};

// k_<kernel>_<bytes an element>
#define WEFT_DECLARE_MOVES(T, bytes)                           \
  extern const EntryOf<StridedCopy<T>> k_strided_copy_##bytes; \
  extern const EntryOf<Placed<T>> k_placed_##bytes;            \
  extern const EntryOf<Concat<T>> k_concat_##bytes;
WEFT_DECLARE_MOVES(uint8_t, 1)
WEFT_DECLARE_MOVES(uint16_t, 2)
WEFT_DECLARE_MOVES(uint32_t, 4)
WEFT_DECLARE_MOVES(uint64_t, 8)
WEFT_DECLARE_MOVES(Unit16, 16)
#undef WEFT_DECLARE_MOVES
extern const EntryOf<TiledTranspose<uint8_t>> k_tiled_transpose_1;
extern const EntryOf<TiledTranspose<uint16_t>> k_tiled_transpose_2;
extern const EntryOf<TiledTranspose<uint32_t>> k_tiled_transpose_4;
extern const EntryOf<TiledTranspose<uint64_t>> k_tiled_transpose_8;

}  // namespace weft::peer::cuda
