// The inner blocks of a matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008): packed a stays in the second-level cache, a sliver of b in the first, a tile of c
// in registers.
#include "peer/backend/cpu/loops/transpose.h"
#include "peer/backend/cpu/loops/vector.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kRows = kLanes == 16  ? 14
                          : kLanes == 8 ? 6
                                        : 4;  // 28 sums of 32 registers, 12 of 16, 8 of 16
constexpr int64_t kColumns = 2 * kLanes;

// c[kRows, kColumns] (+)= sliver of a [depth, kRows] times sliver of b [depth, kColumns]
void tile(const float* a, const float* b, int64_t depth, float* c, int64_t c_stride, bool accumulate) {
  Vector sum[kRows][2];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) {
    sum[i][0] = Vector{};
    sum[i][1] = Vector{};
    __builtin_prefetch(c + i * c_stride, 1);
  }
#pragma GCC unroll 2
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = load(b + p * kColumns), b1 = load(b + p * kColumns + kLanes);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kRows; ++i) {
      const float x = a[p * kRows + i];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
  if (accumulate) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kRows; ++i) {
      sum[i][0] += load(c + i * c_stride);
      sum[i][1] += load(c + i * c_stride + kLanes);
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kRows; ++i) {
    store(c + i * c_stride, sum[i][0]);
    store(c + i * c_stride + kLanes, sum[i][1]);
  }
}

// A tile that sticks out of c goes by way of a whole one.
void edge_tile(const float* a, const float* b, int64_t depth, float* c, int64_t c_stride, int64_t rows,
               int64_t columns, bool accumulate) {
  float whole[kRows * kColumns];
  for (int64_t i = 0; i < kRows * kColumns; ++i) whole[i] = 0;
  for (int64_t i = 0; accumulate && i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) whole[i * kColumns + j] = c[i * c_stride + j];
  tile(a, b, depth, whole, kColumns, accumulate);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) c[i * c_stride + j] = whole[i * kColumns + j];
}

// ---- kLanes lines of kLanes elements, transposed in registers

#if defined(__AVX512F__)
constexpr int64_t kBlock = 16;
// Within 16 bytes: neighbours of two lines side by side, by elements and by pairs.
WEFT_LOOP_INLINE Vector low(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
WEFT_LOOP_INLINE Vector high(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
WEFT_LOOP_INLINE Vector low_pairs(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
WEFT_LOOP_INLINE Vector high_pairs(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
// Quarters 0 and 2, or 1 and 3, of both.
WEFT_LOOP_INLINE Vector even_quarters(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
WEFT_LOOP_INLINE Vector odd_quarters(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
#elif defined(__AVX2__)
constexpr int64_t kBlock = 8;
WEFT_LOOP_INLINE Vector low(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
}
WEFT_LOOP_INLINE Vector high(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
WEFT_LOOP_INLINE Vector low_pairs(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
}
WEFT_LOOP_INLINE Vector high_pairs(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}
#endif

#if defined(__AVX2__)
// quads[c]: element c, 4 + c, ... of each of four lines, side by side.
WEFT_LOOP_INLINE void quads_of(const float* lines, int64_t stride, Vector* quads) {
  const Vector a = load(lines), b = load(lines + stride), c = load(lines + 2 * stride),
               d = load(lines + 3 * stride);
  const Vector ab_low = low(a, b), ab_high = high(a, b), cd_low = low(c, d), cd_high = high(c, d);
  quads[0] = low_pairs(ab_low, cd_low);
  quads[1] = high_pairs(ab_low, cd_low);
  quads[2] = low_pairs(ab_high, cd_high);
  quads[3] = high_pairs(ab_high, cd_high);
}
WEFT_LOOP_INLINE void transpose_block(const float* source, int64_t stride, float* target,
                                      int64_t target_stride) {
  Vector quads[kBlock / 4][4];
#pragma GCC unroll 4
  for (int64_t g = 0; g < kBlock / 4; ++g) quads_of(source + 4 * g * stride, stride, quads[g]);
#pragma GCC unroll 4
  for (int64_t c = 0; c < 4; ++c) {
    float* to = target + c * target_stride;
#if defined(__AVX512F__)
    const Vector even_first = even_quarters(quads[0][c], quads[1][c]),
                 even_last = even_quarters(quads[2][c], quads[3][c]),
                 odd_first = odd_quarters(quads[0][c], quads[1][c]),
                 odd_last = odd_quarters(quads[2][c], quads[3][c]);
    store(to, even_quarters(even_first, even_last));
    store(to + 4 * target_stride, even_quarters(odd_first, odd_last));
    store(to + 8 * target_stride, odd_quarters(even_first, even_last));
    store(to + 12 * target_stride, odd_quarters(odd_first, odd_last));
#else
    store(to, __builtin_shufflevector(quads[0][c], quads[1][c], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + 4 * target_stride,
          __builtin_shufflevector(quads[0][c], quads[1][c], 4, 5, 6, 7, 12, 13, 14, 15));
#endif
  }
}
#endif

// target[p, i] = source[i * across + p * along] for i < width of `Width`, zero beyond.
template <int64_t Width>
WEFT_LOOP_INLINE void pack_sliver(const float* source, int64_t across, int64_t along, int64_t width,
                                  int64_t depth, float* target) {
  if (width == Width && across == 1) {
    for (int64_t p = 0; p < depth; ++p) {
#pragma GCC unroll 64
      for (int64_t i = 0; i < Width; ++i) target[p * Width + i] = source[p * along + i];
    }
    return;
  }
  if (width < Width) {
    for (int64_t i = 0; i < depth * Width; ++i) target[i] = 0;
  }
  if (along == 1) {
    // Lines run along the depth.
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + kBlock <= width; i += kBlock) {
      const float* lines = source + i * across;
      int64_t p = 0;
      for (; p + kBlock <= depth; p += kBlock)
        transpose_block(lines + p, across, target + p * Width + i, Width);
      for (; p < depth; ++p)
        for (int64_t j = 0; j < kBlock; ++j) target[p * Width + i + j] = lines[j * across + p];
    }
#endif
    for (; i + 4 <= width; i += 4) {
      const float* lines = source + i * across;
      int64_t p = 0;
      for (; p + 4 <= depth; p += 4) transpose_4x4(lines + p, across, target + p * Width + i, Width);
      for (; p < depth; ++p)
        for (int64_t j = 0; j < 4; ++j) target[p * Width + i + j] = lines[j * across + p];
    }
    for (; i < width; ++i)
      for (int64_t p = 0; p < depth; ++p) target[p * Width + i] = source[i * across + p];
    return;
  }
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t i = 0; i < width; ++i) target[p * Width + i] = source[i * across + p * along];
}

void gemm_pack(const float* a, int64_t row_stride, int64_t column_stride, int64_t m, int64_t depth,
               float* packed) {
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t rows = m - i < kRows ? m - i : kRows;
    pack_sliver<kRows>(a + i * row_stride, row_stride, column_stride, rows, depth, packed + i * depth);
  }
}

// Slivers of b side by side: what one row of them reads is contiguous when b is row-major.
constexpr int64_t kGroup = 64;

void pack_group(const float* b, int64_t row_stride, int64_t column_stride, int64_t columns, int64_t depth,
                float* packed) {
  if (columns == kGroup && column_stride == 1) {
    for (int64_t p = 0; p < depth; ++p) {
#pragma GCC unroll 16
      for (int64_t s = 0; s < kGroup / kColumns; ++s) {
        const float* line = b + p * row_stride + s * kColumns;
        float* target = packed + (s * depth + p) * kColumns;
        store(target, load(line));
        store(target + kLanes, load(line + kLanes));
      }
    }
    return;
  }
  for (int64_t j = 0; j < columns; j += kColumns) {
    const int64_t width = columns - j < kColumns ? columns - j : kColumns;
    pack_sliver<kColumns>(b + j * column_stride, column_stride, row_stride, width, depth, packed + j * depth);
  }
}

void gemm_block(const float* packed, int64_t m, int64_t depth, const float* b, int64_t row_stride,
                int64_t column_stride, int64_t n, float* c, int64_t c_stride, int accumulate,
                float* scratch) {
  for (int64_t group = 0; group < n; group += kGroup) {
    const int64_t group_columns = n - group < kGroup ? n - group : kGroup;
    pack_group(b + group * column_stride, row_stride, column_stride, group_columns, depth, scratch);
    for (int64_t j = 0; j < group_columns; j += kColumns) {
      const int64_t columns = group_columns - j < kColumns ? group_columns - j : kColumns;
      const float* sliver = scratch + j * depth;
      for (int64_t i = 0; i < m; i += kRows) {
        const int64_t rows = m - i < kRows ? m - i : kRows;
        float* target = c + i * c_stride + group + j;
        if (rows == kRows && columns == kColumns) {
          tile(packed + i * depth, sliver, depth, target, c_stride, accumulate != 0);
        } else {
          edge_tile(packed + i * depth, sliver, depth, target, c_stride, rows, columns, accumulate != 0);
        }
      }
    }
  }
}

}  // namespace

void add_gemm_loops(LoopTable& t) {
  t.gemm_rows = static_cast<int>(kRows);
  t.gemm_pack = gemm_pack;
  t.gemm_block = gemm_block;
}

}  // namespace weft::peer::cpu::WEFT_ISA
