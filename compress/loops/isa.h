// Included only by the files that are compiled once for each instruction set: WEFT_ISA is the namespace (and
// name) of the set being compiled. No standard C++ header may come in here: their inline functions would be
// compiled for a wide set under the name that everyone links to. (Those of immintrin.h are always inlined.)
#pragma once

#include <stdint.h>

#if defined(__SSE2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own _mm512_undefined
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "compress/loops/table.h"

#define WEFT_LOOP_INLINE inline __attribute__((always_inline))
#define WEFT_LOOP_STRING_INNER(x) #x
#define WEFT_LOOP_STRING(x) WEFT_LOOP_STRING_INNER(x)

namespace weft::compress::WEFT_ISA {
void add_float_loops(LoopTable& table);
void add_block_loops(LoopTable& table);
void add_select_loops(LoopTable& table);
void add_value_loops(LoopTable& table);
const LoopTable& table();

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Vectors of the set's width, and their counterparts in memory, which may lie anywhere.
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint64_t LongWords __attribute__((vector_size(kLanes * 4)));
typedef Floats FloatsInMemory __attribute__((aligned(4), may_alias));
typedef Ints IntsInMemory __attribute__((aligned(4), may_alias));
typedef uint16_t ShortInMemory __attribute__((aligned(1), may_alias));
typedef Words WordsInMemory __attribute__((aligned(4), may_alias));

WEFT_LOOP_INLINE Floats load(const float* x) { return *reinterpret_cast<const FloatsInMemory*>(x); }
WEFT_LOOP_INLINE Words load(const uint32_t* x) { return *reinterpret_cast<const WordsInMemory*>(x); }
WEFT_LOOP_INLINE void store(float* x, Floats v) { *reinterpret_cast<FloatsInMemory*>(x) = v; }
WEFT_LOOP_INLINE void store(uint32_t* x, Words v) { *reinterpret_cast<WordsInMemory*>(x) = v; }

WEFT_LOOP_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
WEFT_LOOP_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

constexpr uint32_t kMagnitude = 0x7fffffffu;  // all but the sign
constexpr uint32_t kInfinity = 0x7f800000u;   // magnitudes from here on are not finite

}  // namespace
}  // namespace weft::compress::WEFT_ISA
