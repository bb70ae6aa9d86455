// Numbers of half precision: as bits, and the nearest of them to a float.
#pragma once

#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

// The nearest number with the bits of a half, ties to even.
WEFT_LOOP_INLINE float nearest_f16(float x) {
  const uint32_t bits = static_cast<uint32_t>(float_to_bits(x)), magnitude = bits & 0x7fffffffu;
  // Of what will be subnormal, adding 0.5 rounds away all but the bits that remain.
  const uint32_t small = static_cast<uint32_t>(float_to_bits((abs_(x) + 0.5f) - 0.5f));
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & ~0x1fffu;
  uint32_t nearest = magnitude < 0x38800000u ? small : normal;
  nearest = magnitude >= 0x477ff000u ? 0x7f800000u : nearest;  // rounds beyond 65504
  nearest = magnitude > 0x7f800000u ? 0x7fc00000u : nearest;
  return bits_to_float(static_cast<int32_t>(nearest | (bits & 0x80000000u)));
}
WEFT_LOOP_INLINE float nearest_bf16(float x) {
  const uint32_t bits = static_cast<uint32_t>(float_to_bits(x));
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return bits_to_float(static_cast<int32_t>(x != x ? bits | 0x400000u : nearest));
}

// Half-precision numbers, as bits.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

WEFT_LOOP_INLINE float widened(Half x) {
  const int32_t sign = static_cast<int32_t>((static_cast<uint32_t>(x.bits) & 0x8000u) << 16);
  const int32_t magnitude = x.bits & 0x7fff;
  const int32_t shifted = magnitude << 13;
  const int32_t special = shifted | 0x7f800000, normal = shifted + (112 << 23);
  // By the integer, not by a subnormal float: those count as zero here.
  const int32_t small = float_to_bits(static_cast<float>(magnitude) * 0x1p-24f);
  return bits_to_float((magnitude >= 0x7c00 ? special : (magnitude < 0x400 ? small : normal)) | sign);
}
WEFT_LOOP_INLINE float widened(Brain x) {
  return bits_to_float(static_cast<int32_t>(static_cast<uint32_t>(x.bits) << 16));
}

}  // namespace
}  // namespace weft::peer::cpu::WEFT_ISA
