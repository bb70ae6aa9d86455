// How numbers become fewer bits: blocks of integers with a scale each, or halves. Whoever has the numbers
// comes to the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "dag/tensor.h"

namespace weft::dag {

struct Rounding {
  // What of it: the integers, their scales, or the nearest numbers in BF16.
  enum class Part : uint8_t { Numbers = 0, Scales = 1, Halves = 2 };
  Part part = Part::Numbers;
  int bits = 4;              // of an integer: 4 or 8; two of four bits are a byte, the lower bits first
  int64_t block = 32;        // numbers that share a scale: a multiple of 16
  DType scale = DType::F32;  // F32, F16 or BF16
  bool operator==(const Rounding&) const = default;
};

inline constexpr int64_t kRoundedBlockMax = int64_t{1} << 16;

// How many bytes come of so many numbers. Nothing: blocks of that size do not make them up, or there is no
// such rounding.
std::optional<uint64_t> rounded_bytes(const Rounding& how, uint64_t count);

// Some whole blocks; of Halves any numbers. A number becomes the nearest of 16 or 256 steps of its block's
// scale. That is the number of largest magnitude over -8 or -128; its magnitude over 7 or 127 where all are
// whole steps of that already, as Q8_0 has them: then they stay what they are. REQUIRES: as many bytes as
// rounded_bytes() says.
void round_numbers(const Rounding& how, std::span<const float> numbers, std::span<std::byte> to);

}  // namespace weft::dag
