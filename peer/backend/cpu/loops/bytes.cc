// Products of bytes with sums of 32 bits. They are exact, so every instruction set gives the same.
#include "peer/backend/cpu/loops/vector.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntsInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));

WEFT_LOOP_INLINE Ints load_ints(const int32_t* x) { return *reinterpret_cast<const IntsInMemory*>(x); }
WEFT_LOOP_INLINE void store_ints(int32_t* x, Ints v) { *reinterpret_cast<IntsInMemory*>(x) = v; }
WEFT_LOOP_INLINE Ints splat(int32_t x) { return x - Ints{}; }

// Each lane holds four bytes, whose products with the four of the other factor are added to the lane's sum.

// By products of 16 bits, whose sums in pairs have 32.
struct ByShorts {
  struct Factor {
    Shorts even, odd;
  };
  template <bool is_unsigned>
  static WEFT_LOOP_INLINE Factor widened(Ints bytes) {
    const Shorts pairs = reinterpret_cast<Shorts>(bytes);
    if constexpr (is_unsigned) {
      const Shorts low = pairs & static_cast<int16_t>(0xff);
      return {low, reinterpret_cast<Shorts>((bytes >> 8) & 0x00ff00ff)};
    }
    return {(pairs << 8) >> 8, pairs >> 8};
  }
  static WEFT_LOOP_INLINE Ints products(Shorts a, Shorts b) {
#if defined(__AVX512BW__)
    typedef short Given __attribute__((vector_size(64)));
    const Given left = reinterpret_cast<Given>(a), right = reinterpret_cast<Given>(b);
#if defined(__clang__)
    return reinterpret_cast<Ints>(__builtin_ia32_pmaddwd512(left, right));
#else
    return reinterpret_cast<Ints>(__builtin_ia32_pmaddwd512_mask(left, right, Ints{}, 0xffff));
#endif
#elif defined(__AVX2__)
    typedef short Given __attribute__((vector_size(32)));
    return reinterpret_cast<Ints>(
        __builtin_ia32_pmaddwd256(reinterpret_cast<Given>(a), reinterpret_cast<Given>(b)));
#elif defined(__SSE2__)
    typedef short Given __attribute__((vector_size(16)));
    return reinterpret_cast<Ints>(
        __builtin_ia32_pmaddwd128(reinterpret_cast<Given>(a), reinterpret_cast<Given>(b)));
#else
    Ints sums;
    for (int64_t i = 0; i < kLanes; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
  }
  static WEFT_LOOP_INLINE Ints add(Ints sum, const Factor& a, const Factor& b) {
    return sum + (products(a.even, b.even) + products(a.odd, b.odd));
  }
};

#if defined(__AVX512BW__)
// The instruction made for it, where the processor has it.
#define WEFT_TARGET_VNNI __attribute__((target("avx512vnni")))
#endif

// Columns that are computed side by side: few enough that the sums stay in registers. Of what is left over at
// the end, one vector is computed alone.
constexpr int64_t kVectorsMax = kLanes == 16 ? 4 : 2;
constexpr int64_t kRowsByShorts = kLanes == 16 ? 4 : 3;

// The sums begin with the outer products that make up for zero points.
template <int64_t kRows, int64_t kVectors>
WEFT_LOOP_INLINE void begin_sums(const ByteProductArgs& args, int64_t row, int64_t column,
                                 Ints (&sums)[kRows][kVectors]) {
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[i][v] = Ints{};
      for (int outer = 0; outer < 2; ++outer)
        if (args.of_column[outer] != nullptr)
          sums[i][v] += args.of_row[outer][row + i] * load_ints(args.of_column[outer] + column + v * kLanes);
    }
}
template <int64_t kRows, int64_t kVectors>
WEFT_LOOP_INLINE void store_sums(const ByteProductArgs& args, int64_t row, int64_t column,
                                 const Ints (&sums)[kRows][kVectors]) {
  const int64_t count = args.n - column;
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t v = 0; v < kVectors; ++v) {
      int32_t* c = args.c + (row + i) * args.c_stride + column + v * kLanes;
      if ((v + 1) * kLanes <= count) {
        store_ints(c, sums[i][v]);
      } else {
        for (int64_t j = 0; v * kLanes + j < count && j < kLanes; ++j) c[j] = sums[i][v][j];
      }
    }
}
WEFT_LOOP_INLINE int32_t four_bytes(const uint8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return bytes;
}
WEFT_LOOP_INLINE const int32_t* panel_at(const ByteProductArgs& args, int64_t column) {
  return reinterpret_cast<const int32_t*>(args.panel) + column;
}

template <bool a_unsigned, int64_t kVectors, int64_t kRows>
void tile(const ByteProductArgs& args, int64_t row, int64_t column) {
  Ints sums[kRows][kVectors];
  begin_sums(args, row, column, sums);
  const uint8_t* a = args.a + row * args.a_stride;
  const int32_t* b = panel_at(args, column);
  for (int64_t q = 0; q < args.quads; ++q, b += kBytePanelColumns) {
    ByShorts::Factor right[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      right[v] = ByShorts::widened<!a_unsigned>(load_ints(b + v * kLanes));
#pragma GCC unroll 4
    for (int64_t i = 0; i < kRows; ++i) {
      const ByShorts::Factor left =
          ByShorts::widened<a_unsigned>(splat(four_bytes(a + i * args.a_stride + 4 * q)));
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = ByShorts::add(sums[i][v], left, right[v]);
    }
  }
  store_sums(args, row, column, sums);
}

#if defined(WEFT_TARGET_VNNI)
#if defined(__clang__)  // which has another name for it
#define WEFT_ADD_PRODUCTS __builtin_ia32_vpdpbusd512
#else
#define WEFT_ADD_PRODUCTS __builtin_ia32_vpdpbusd_v16si
#endif
// No inline function of this file has this target, so that the loop stands here in full.
template <bool a_unsigned, int64_t kVectors, int64_t kRows>
WEFT_TARGET_VNNI void tile_vnni(const ByteProductArgs& args, int64_t row, int64_t column) {
  typedef int Given __attribute__((vector_size(64)));
  Ints sums[kRows][kVectors];
  begin_sums(args, row, column, sums);
  const uint8_t* a = args.a + row * args.a_stride;
  const int32_t* b = panel_at(args, column);
  for (int64_t q = 0; q < args.quads; ++q, b += kBytePanelColumns) {
    Given right[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) right[v] = reinterpret_cast<Given>(load_ints(b + v * kLanes));
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const Given left = reinterpret_cast<Given>(splat(four_bytes(a + i * args.a_stride + 4 * q)));
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v)
        sums[i][v] = reinterpret_cast<Ints>(
            a_unsigned ? WEFT_ADD_PRODUCTS(reinterpret_cast<Given>(sums[i][v]), left, right[v])
                       : WEFT_ADD_PRODUCTS(reinterpret_cast<Given>(sums[i][v]), right[v], left));
    }
  }
  store_sums(args, row, column, sums);
}
#endif

using Tile = void (*)(const ByteProductArgs& args, int64_t row, int64_t column);

// Tiles of 1, 2, .. rows, by whether they are one vector wide.
using TilesOfWidth = const Tile*;
void multiply(const ByteProductArgs& args, TilesOfWidth wide, TilesOfWidth narrow, int64_t rows_max) {
  for (int64_t column = 0; column < args.n; column += kVectorsMax * kLanes) {
    const TilesOfWidth tiles = args.n - column <= kLanes ? narrow : wide;
    for (int64_t row = 0; row < args.m; row += rows_max) {
      const int64_t rows = args.m - row < rows_max ? args.m - row : rows_max;
      tiles[rows - 1](args, row, column);
    }
  }
}

template <bool a_unsigned, int64_t kVectors>
constexpr Tile kTiles[] = {tile<a_unsigned, kVectors, 1>, tile<a_unsigned, kVectors, 2>,
                           tile<a_unsigned, kVectors, 3>, tile<a_unsigned, kVectors, 4>};
void byte_product(const ByteProductArgs& args) {
  if (args.a_unsigned)
    multiply(args, kTiles<true, kVectorsMax>, kTiles<true, 1>, kRowsByShorts);
  else
    multiply(args, kTiles<false, kVectorsMax>, kTiles<false, 1>, kRowsByShorts);
}

#if defined(WEFT_TARGET_VNNI)
constexpr int64_t kRowsByBytes = 6;
template <bool a_unsigned, int64_t kVectors>
constexpr Tile kTilesVnni[] = {tile_vnni<a_unsigned, kVectors, 1>, tile_vnni<a_unsigned, kVectors, 2>,
                               tile_vnni<a_unsigned, kVectors, 3>, tile_vnni<a_unsigned, kVectors, 4>,
                               tile_vnni<a_unsigned, kVectors, 5>, tile_vnni<a_unsigned, kVectors, 6>};
void byte_product_vnni(const ByteProductArgs& args) {
  if (args.a_unsigned)
    multiply(args, kTilesVnni<true, kVectorsMax>, kTilesVnni<true, 1>, kRowsByBytes);
  else
    multiply(args, kTilesVnni<false, kVectorsMax>, kTilesVnni<false, 1>, kRowsByBytes);
}
#endif

template <typename Byte>
int32_t sum_of(const Byte* x, int64_t count) {
  int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}
int32_t byte_sum(const uint8_t* x, int64_t count, int is_unsigned) {
  return is_unsigned ? sum_of(x, count) : sum_of(reinterpret_cast<const int8_t*>(x), count);
}

// ---- panels ----

// What a row gives to the panel, in a line of kBytePanelColumns bytes. With slack, a copy may run over its
// segment's end, into what the next segment writes or nobody reads.
void gather_line(const uint8_t* row, const BytePanelArgs& args, uint8_t* line) {
  for (int64_t s = 0; s < args.segment_count; ++s) {
    const ByteSegment& segment = args.segments[s];
    const uint8_t* source = row + segment.source;
    uint8_t* target = line + segment.target;
    if (args.stride == 1 && (args.has_slack || segment.count == kBytePanelColumns)) {
      __builtin_memcpy(target, source, kBytePanelColumns);
    } else {
      for (int64_t i = 0; i < segment.count; ++i) target[i] = source[i * args.stride];
    }
  }
}

void byte_panel(const BytePanelArgs& args) {
  // Runs over the end of a line go into the next one, which is written afterwards.
  uint8_t lines[5][kBytePanelColumns];
  const uint32_t flip = args.flip_signs ? 0x80808080u : 0;
  uint32_t* panel = reinterpret_cast<uint32_t*>(args.panel);
  for (int64_t k = 0; k < args.depth; k += 4, panel += kBytePanelColumns) {
    for (int64_t i = 0; i < 4; ++i) {
      if (k + i < args.depth)
        gather_line(args.rows[k + i], args, lines[i]);
      else
        __builtin_memset(lines[i], args.flip_signs ? 0x80 : 0, kBytePanelColumns);
    }
#pragma omp simd
    for (int64_t j = 0; j < kBytePanelColumns; ++j)
      panel[j] = (static_cast<uint32_t>(lines[0][j]) | static_cast<uint32_t>(lines[1][j]) << 8 |
                  static_cast<uint32_t>(lines[2][j]) << 16 | static_cast<uint32_t>(lines[3][j]) << 24) ^
                 flip;
  }
}

}  // namespace

void add_byte_loops(LoopTable& table) {
  table.byte_panel = byte_panel;
  table.byte_product = byte_product;
  table.byte_sum = byte_sum;
  table.byte_product_vnni = nullptr;
#if defined(WEFT_TARGET_VNNI)
  if (__builtin_cpu_supports("avx512vnni")) table.byte_product_vnni = byte_product_vnni;
#endif
}

}  // namespace weft::peer::cpu::WEFT_ISA
