// The inner blocks of a matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008): packed a stays in the second-level cache, a sliver of b in the first, a tile of c
// in registers.
#include "peer/backend/cpu/loops/transpose.h"
#include "peer/backend/cpu/loops/vector.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kRows = kLanes == 16 ? 14 : kLanes == 8 ? 6 : 4;  // 28 sums of 32 registers, 12 of 16, 8 of 16
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
