// The vectors of the instruction set that the file is compiled for.
#pragma once

#include "peer/backend/cpu/loops/isa.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float VectorInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

WEFT_LOOP_INLINE Vector load(const float* x) { return *reinterpret_cast<const VectorInMemory*>(x); }
WEFT_LOOP_INLINE void store(float* x, Vector v) { *reinterpret_cast<VectorInMemory*>(x) = v; }

}  // namespace
}  // namespace weft::peer::cpu::WEFT_ISA
