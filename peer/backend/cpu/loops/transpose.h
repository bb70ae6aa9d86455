// A 4x4 transposition in registers, which packing and layout changes are made of.
#pragma once

#include "peer/backend/cpu/loops/isa.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

using Four = int32_t __attribute__((vector_size(16)));
using FourUnaligned = int32_t __attribute__((vector_size(16), aligned(4), may_alias));

// One 4x4 tile by two rounds of interleaving.
WEFT_LOOP_INLINE void transpose_4x4(const float* source, int64_t source_stride, float* target,
                                    int64_t target_stride) {
  const auto load = [=](int64_t r) WEFT_LOOP_LAMBDA -> Four {
    return *reinterpret_cast<const FourUnaligned*>(source + r * source_stride);
  };
  const auto store = [=](int64_t r, Four v) WEFT_LOOP_LAMBDA {
    *reinterpret_cast<FourUnaligned*>(target + r * target_stride) = v;
  };
  const Four a = load(0), b = load(1), c = load(2), d = load(3);
  const Four ac_low = __builtin_shufflevector(a, c, 0, 4, 1, 5),
             ac_high = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  const Four bd_low = __builtin_shufflevector(b, d, 0, 4, 1, 5),
             bd_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  store(0, __builtin_shufflevector(ac_low, bd_low, 0, 4, 1, 5));
  store(1, __builtin_shufflevector(ac_low, bd_low, 2, 6, 3, 7));
  store(2, __builtin_shufflevector(ac_high, bd_high, 0, 4, 1, 5));
  store(3, __builtin_shufflevector(ac_high, bd_high, 2, 6, 3, 7));
}

}  // namespace
}  // namespace weft::peer::cpu::WEFT_ISA
