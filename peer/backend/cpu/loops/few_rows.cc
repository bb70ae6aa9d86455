// Products of few rows. b is read once, as it lies in memory, and nothing is packed: a weight that fits no
// cache is multiplied about as fast as it comes. An element's sums are those of gemm.cc: a block of
// kGemmDepth terms is added from zero in order of k, and the blocks' sums are added in order.
#include "peer/backend/cpu/loops/vector.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kLine = 16;  // floats of a cache line
constexpr int64_t kRowsAtOnce = 8;

// Prefetches go to the second-level cache: the first has no room for what is asked for so early.
constexpr int kIntoSecondLevel = 2;
// How far ahead of what is read the memory is asked, in elements: two turns of rows, or 32 KB of short ones.
WEFT_LOOP_INLINE int64_t ahead_of(int64_t stride) {
  const int64_t rows = 8192 / stride;
  return (rows < 2 * kRowsAtOnce ? 2 * kRowsAtOnce : rows) * stride;
}

// ---- b row-major: along several of its rows at once; the sums of a strip are in the first-level cache

// sums[M, n] += a[M, Depth] b[Depth, n] for `Width` vectors of columns; from zero where a block begins.
template <int64_t M, int64_t Depth, int64_t Width>
WEFT_LOOP_INLINE void add_rows_at(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                  int64_t ahead, float* sums, int64_t sums_stride, bool begins) {
  Vector sum[M][Width];
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int64_t v = 0; v < Width; ++v)
      sum[i][v] = begins ? Vector{} : load(sums + i * sums_stride + v * kLanes);
#pragma GCC unroll 8
  for (int64_t p = 0; p < Depth; ++p) {
    Vector column[Width];
#pragma GCC unroll 8
    for (int64_t v = 0; v < Width; ++v) {
      column[v] = load(b + p * b_stride + v * kLanes);
      __builtin_prefetch(b + p * b_stride + v * kLanes + ahead, 0, kIntoSecondLevel);
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < M; ++i) {
      const float x = a[i * a_stride + p];
#pragma GCC unroll 8
      for (int64_t v = 0; v < Width; ++v) sum[i][v] += x * column[v];
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int64_t v = 0; v < Width; ++v) store(sums + i * sums_stride + v * kLanes, sum[i][v]);
}

// Of the columns behind the last whole vector.
template <int64_t M>
void add_rows_tail(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                   int64_t columns, float* sums, int64_t sums_stride, bool begins) {
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = begins ? 0.0f : sums[i * sums_stride + j];
      for (int64_t p = 0; p < depth; ++p) sum += a[i * a_stride + p] * b[p * b_stride + j];
      sums[i * sums_stride + j] = sum;
    }
  }
}

template <int64_t M, int64_t Depth>
void add_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t ahead, int64_t n,
              float* sums, int64_t sums_stride, bool begins) {
  constexpr int64_t kWidth = M == 1 ? 4 : 2;
  int64_t j = 0;
  for (; j + kWidth * kLanes <= n; j += kWidth * kLanes)
    add_rows_at<M, Depth, kWidth>(a, a_stride, b + j, b_stride, ahead, sums + j, sums_stride, begins);
  for (; j + kLanes <= n; j += kLanes)
    add_rows_at<M, Depth, 1>(a, a_stride, b + j, b_stride, ahead, sums + j, sums_stride, begins);
  if (j < n) add_rows_tail<M>(a, a_stride, b + j, b_stride, Depth, n - j, sums + j, sums_stride, begins);
}

template <int64_t M>
void along(const FewRowsArgs& args) {
  const int64_t ahead = ahead_of(args.b_stride);
  for (int64_t k0 = 0; k0 < args.k; k0 += kGemmDepth) {
    const int64_t depth = args.k - k0 < kGemmDepth ? args.k - k0 : kGemmDepth;
    const float *a = args.a + k0, *b = args.b + k0 * args.b_stride;
    float* sums = k0 == 0 ? args.c : args.sums;
    const int64_t stride = k0 == 0 ? args.c_stride : args.n;
    int64_t p = 0;
    for (; p + kRowsAtOnce <= depth; p += kRowsAtOnce)
      add_rows<M, kRowsAtOnce>(a + p, args.a_stride, b + p * args.b_stride, args.b_stride, ahead, args.n,
                               sums, stride, p == 0);
    for (; p < depth; ++p)
      add_rows<M, 1>(a + p, args.a_stride, b + p * args.b_stride, args.b_stride, ahead, args.n, sums, stride,
                     p == 0);
    for (int64_t i = 0; k0 > 0 && i < M; ++i)
      for (int64_t j = 0; j < args.n; ++j) args.c[i * args.c_stride + j] += sums[i * stride + j];
  }
}

// ---- b column-major: kLanes columns at once, transposed in registers

// Shuffles that stay within 16 bytes, by instructions that every set has.
#if defined(__AVX512F__)
#define WEFT_SHUFFLE(name, a0, a1, a2, a3)                                                               \
  WEFT_LOOP_INLINE Vector name(Vector a, Vector b) {                                                     \
    return __builtin_shufflevector(a, b, a0, a1, a2, a3, a0 + 4, a1 + 4, a2 + 4, a3 + 4, a0 + 8, a1 + 8, \
                                   a2 + 8, a3 + 8, a0 + 12, a1 + 12, a2 + 12, a3 + 12);                  \
  }
#elif defined(__AVX2__)
#define WEFT_SHUFFLE(name, a0, a1, a2, a3)                                                \
  WEFT_LOOP_INLINE Vector name(Vector a, Vector b) {                                      \
    return __builtin_shufflevector(a, b, a0, a1, a2, a3, a0 + 4, a1 + 4, a2 + 4, a3 + 4); \
  }
#else
#define WEFT_SHUFFLE(name, a0, a1, a2, a3) \
  WEFT_LOOP_INLINE Vector name(Vector a, Vector b) { return __builtin_shufflevector(a, b, a0, a1, a2, a3); }
#endif
WEFT_SHUFFLE(low_of, 0, kLanes, 1, kLanes + 1)
WEFT_SHUFFLE(high_of, 2, kLanes + 2, 3, kLanes + 3)
WEFT_SHUFFLE(low_pairs_of, 0, 1, kLanes, kLanes + 1)
WEFT_SHUFFLE(high_pairs_of, 2, 3, kLanes + 2, kLanes + 3)
#undef WEFT_SHUFFLE

constexpr int64_t kQuads = kLanes / 4;

// quads[q] = quad q of each row side by side.
WEFT_LOOP_INLINE void gather_quads(const float* row, int64_t stride, Vector (&quads)[kQuads][4], int64_t r) {
#if defined(__AVX512F__)
  const Vector a = load(row), b = load(row + 4 * stride), c = load(row + 8 * stride),
               d = load(row + 12 * stride);
  const Vector ab_first =
                   __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
               cd_first =
                   __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
               ab_last = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29,
                                                 30, 31),
               cd_last = __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29,
                                                 30, 31);
  const auto even = [](Vector x, Vector y) WEFT_LOOP_LAMBDA {
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  };
  const auto odd = [](Vector x, Vector y) WEFT_LOOP_LAMBDA {
    return __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  };
  quads[0][r] = even(ab_first, cd_first), quads[1][r] = odd(ab_first, cd_first);
  quads[2][r] = even(ab_last, cd_last), quads[3][r] = odd(ab_last, cd_last);
#elif defined(__AVX2__)
  const Vector a = load(row), b = load(row + 4 * stride);
  quads[0][r] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  quads[1][r] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#else
  (void)stride;
  quads[0][r] = load(row);
#endif
}

// sum += a[M, kLanes] times the transpose of b[kLanes, kLanes].
template <int64_t M>
WEFT_LOOP_INLINE void add_square(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                 Vector (&sum)[M]) {
  Vector quads[kQuads][4];
#pragma GCC unroll 4
  for (int64_t r = 0; r < 4; ++r) gather_quads(b + r * b_stride, b_stride, quads, r);
#pragma GCC unroll 4
  for (int64_t q = 0; q < kQuads; ++q) {
    const Vector *v = quads[q], low = low_of(v[0], v[1]), high = high_of(v[0], v[1]),
                 next_low = low_of(v[2], v[3]), next_high = high_of(v[2], v[3]);
    const Vector terms[4] = {low_pairs_of(low, next_low), high_pairs_of(low, next_low),
                             low_pairs_of(high, next_high), high_pairs_of(high, next_high)};
#pragma GCC unroll 4
    for (int64_t t = 0; t < 4; ++t)
#pragma GCC unroll 8
      for (int64_t i = 0; i < M; ++i) sum[i] += a[i * a_stride + 4 * q + t] * terms[t];
  }
}

// The sums of a block of k for Groups * kLanes columns. Lines `ahead` of what is read are asked for.
template <int64_t M, int64_t Groups>
WEFT_LOOP_INLINE void add_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                int64_t depth, int64_t ahead, Vector (&sum)[Groups][M]) {
#pragma GCC unroll 8
  for (int64_t g = 0; g < Groups; ++g)
#pragma GCC unroll 8
    for (int64_t i = 0; i < M; ++i) sum[g][i] = Vector{};
  int64_t p = 0;
  for (; p + kLanes <= depth; p += kLanes) {
    if (p % kLine == 0) {
      for (int64_t r = 0; r < Groups * kLanes; ++r)
        __builtin_prefetch(b + r * b_stride + p + ahead, 0, kIntoSecondLevel);
    }
#pragma GCC unroll 8
    for (int64_t g = 0; g < Groups; ++g)
      add_square<M>(a + p, a_stride, b + g * kLanes * b_stride + p, b_stride, sum[g]);
  }
  for (; p < depth; ++p) {
    for (int64_t g = 0; g < Groups; ++g) {
      float column[kLanes];
      for (int64_t r = 0; r < kLanes; ++r) column[r] = b[(g * kLanes + r) * b_stride + p];
      for (int64_t i = 0; i < M; ++i) sum[g][i] += a[i * a_stride + p] * load(column);
    }
  }
}

template <int64_t M, int64_t Groups>
WEFT_LOOP_INLINE void store_columns(const Vector (&total)[Groups][M], int64_t columns, float* c,
                                    int64_t c_stride) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) {
    float* line = c + i * c_stride;
#pragma GCC unroll 8
    for (int64_t g = 0; g < Groups; ++g) {
      if (columns >= (g + 1) * kLanes) store(line + g * kLanes, total[g][i]);
      for (int64_t j = g * kLanes; columns < (g + 1) * kLanes && j < columns; ++j)
        line[j] = total[g][i][j - g * kLanes];
    }
  }
}

template <int64_t M>
void across(const FewRowsArgs& args) {
  const int64_t ahead = ahead_of(args.b_stride);
  constexpr int64_t kGroups = 16 / kLanes, kColumns = kGroups * kLanes;
  for (int64_t n = 0; n < args.n; n += kColumns) {
    const int64_t columns = args.n - n < kColumns ? args.n - n : kColumns;
    Vector total[kGroups][M] = {};
    for (int64_t k0 = 0; k0 < args.k; k0 += kGemmDepth) {
      const int64_t depth = args.k - k0 < kGemmDepth ? args.k - k0 : kGemmDepth;
      const float* b = args.b + n * args.b_stride + k0;
      Vector sum[kGroups][M];
      if (columns == kColumns) {
        add_block<M, kGroups>(args.a + k0, args.a_stride, b, args.b_stride, depth, ahead, sum);
      } else {
        float whole[kColumns * kGemmDepth] = {};
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t p = 0; p < depth; ++p) whole[j * kGemmDepth + p] = b[j * args.b_stride + p];
        add_block<M, kGroups>(args.a + k0, args.a_stride, whole, kGemmDepth, depth, 0, sum);
      }
      for (int64_t g = 0; g < kGroups; ++g)
        for (int64_t i = 0; i < M; ++i) total[g][i] = k0 == 0 ? sum[g][i] : total[g][i] + sum[g][i];
    }
    store_columns<M, kGroups>(total, columns, args.c + n, args.c_stride);
  }
}

}  // namespace

void add_few_rows_loops(LoopTable& t) {
  t.few_rows[0] = along<1>, t.few_rows[1] = along<2>, t.few_rows[2] = along<3>, t.few_rows[3] = along<4>;
  t.few_rows[4] = along<5>, t.few_rows[5] = along<6>, t.few_rows[6] = along<7>, t.few_rows[7] = along<8>;
  t.few_rows_across[0] = across<1>, t.few_rows_across[1] = across<2>, t.few_rows_across[2] = across<3>;
  t.few_rows_across[3] = across<4>, t.few_rows_across[4] = across<5>, t.few_rows_across[5] = across<6>;
  t.few_rows_across[6] = across<7>, t.few_rows_across[7] = across<8>;
}

}  // namespace weft::peer::cpu::WEFT_ISA
