// Optimizer slots in eight bits, a block of elements at a time: the arithmetic, and its plain form for
// whoever computes one element after another. Backends have the same in vectors, to the bit.
//
// As 8-bit optimizers do it (Dettmers, Lewis, Shleifer, Zettlemoyer 2021, arXiv 2110.02861), elements share a
// scale by blocks, codes are fine near zero, and an update widens a block, computes in float32, and narrows
// what came. We differ in three things:
//
// - A code is a small floating-point number instead of an entry of a table: 3 bits of mantissa below 4 of
//   exponent and a sign for m and momentum, below 5 of exponent for v, which is never negative; subnormals as
//   in IEEE 754. So a v reaches down to 2^-33 of its block's largest, mostly to an eighth of itself. Linear
//   codes would make zeros of small v, and the step m / (sqrt(v) + epsilon) would explode.
// - The scale is a power of two, of which the exponent is kept in a byte (as in the OCP microscaling formats
//   v1.0, there for 32 elements). Widening and narrowing are then exact or a shift of bits: they need no
//   division, and come to the same bits on every device.
// - What lies between two codes goes to either by chance, the nearer one more often, so that it is right on
//   average (Gupta et al. 2015, arXiv 1502.02551). Rounding to the nearest would leave v where it is while a
//   step's change, about (1 - beta2) of it, is less than half of what a code stands for: for ever. The draw
//   is a hash of the update's number and the element's place; of nothing else.
// A v of at least 2^-126 never becomes zero (Li, Chen, Zhu 2023, arXiv 2309.01507); what is less is zero.
//
// What is not finite has a code of its own, element by element as in float32: the rest of the block is as it
// would be. It widens to NaN, of a v to infinity.
//
// With k the scale's byte, E the largest exponent of a code and c = 8 e + f:
//   value = f 2^(k - E - 129)            where e = 0
//         = (8 + f) 2^(k + e - E - 130)  otherwise
// and k is the exponent, as float32 has it, of the block's largest magnitude after its mantissa was rounded
// up to two bits; at least E + 3, at most 254.
#pragma once

#include <bit>
#include <cstdint>

#include "dag/state.h"

namespace weft::dag {

inline constexpr int64_t kSlotBlock = 256;  // elements that share a scale

// Codes, then scales.
constexpr int64_t coded_slot_bytes(int64_t elements) {
  return elements + (elements + kSlotBlock - 1) / kSlotBlock;
}
// Of how many elements so many bytes are.
constexpr int64_t coded_elements(int64_t bytes) { return bytes - (bytes + kSlotBlock) / (kSlotBlock + 1); }

struct SlotFormat {
  bool has_sign;
  uint32_t exponent_max;  // E
  uint32_t code_max;      // of magnitudes
  uint8_t not_finite;
};
inline constexpr SlotFormat kSignedSlot{true, 15, 127, 0x80}, kUnsignedSlot{false, 31, 254, 255};
constexpr const SlotFormat& slot_format(StateSlot slot) {
  return slot == StateSlot::V ? kUnsignedSlot : kSignedSlot;
}

constexpr uint32_t kSlotFractionBits = 20;  // of a float32's mantissa, below a code's three

// A permutation of 32 bits whose output looks like chance: lowbias32 of Wellons, Prospecting for hash
// functions.
constexpr uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}
// What an update draws from, by its number.
constexpr uint32_t slot_draw(uint64_t update) {
  return mix_bits(static_cast<uint32_t>(update) ^ mix_bits(static_cast<uint32_t>(update >> 32)));
}
// The first slot's chance is in the upper 20 bits, the second's in the lower.
constexpr uint32_t slot_chance(uint32_t draw, int64_t element, bool second) {
  const uint32_t bits = mix_bits(static_cast<uint32_t>(element) ^ draw);
  return second ? bits & 0xFFFFFU : bits >> 12;
}

// A block's scale, from the largest of the magnitudes that are finite.
constexpr uint8_t slot_scale(const SlotFormat& format, float largest) {
  const uint32_t k = (std::bit_cast<uint32_t>(largest) + 0x1FFFFFU) >> 23;
  const uint32_t least = format.exponent_max + 3;
  return static_cast<uint8_t>(k < least ? least : k > 254 ? 254 : k);
}

constexpr float widen_code(const SlotFormat& format, uint8_t code, uint8_t scale) {
  constexpr uint32_t kInfinity = 0x7F800000U;
  if (code == format.not_finite)
    return std::bit_cast<float>(format.has_sign ? kInfinity | 0x400000U : kInfinity);
  const uint32_t least = format.exponent_max + 3;
  const uint32_t base = (scale < least ? least : scale) - format.exponent_max;
  const uint32_t magnitude = format.has_sign ? code & 127U : code;
  const float unit = std::bit_cast<float>((base - 2) << 23);
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * unit
                                    : std::bit_cast<float>((magnitude << kSlotFractionBits) + (base << 23));
  return format.has_sign && code > 127 ? -value : value;
}

// `chance`: below 2^20. REQUIRES: the scale is slot_scale() of what the block has.
constexpr uint8_t narrow_code(const SlotFormat& format, float value, uint8_t scale, uint32_t chance) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFU;
  const uint32_t base = scale - format.exponent_max;
  if (magnitude >= 0x7F800000U) return format.not_finite;
  if (magnitude < 0x800000U) return 0;
  uint32_t code = 0;
  if (magnitude >> 23 > base) {
    code = (magnitude - (base << 23) + chance) >> kSlotFractionBits;
  } else {  // in units of a code; the product is exact
    const float units = std::bit_cast<float>(magnitude) * std::bit_cast<float>((256 - base) << 23);
    code = static_cast<uint32_t>(units + static_cast<float>(chance) * 0x1p-20F);
  }
  if (!format.has_sign && code == 0) code = 1;
  if (code > format.code_max) code = format.code_max;
  if (format.has_sign && code > 0) code |= bits >> 31 << 7;
  return static_cast<uint8_t>(code);
}

}  // namespace weft::dag
