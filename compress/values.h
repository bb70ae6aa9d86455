// The numbers that TopK and RandomK send, without their positions.
//
//   F32, F16: one after the other
//   I8, I4: groups of 128. Of each, the smallest and the largest magnitude as bfloats, rounded down and up,
//   then
//     for each number its sign (the highest bit) and a code c of 7 or 3 bits: low + c (high - low) / (2^bits
//     - 1), one of the two nearest by chance, so that the mean is the number. TopK's magnitudes lie between
//     its threshold and a few times that, which is why a range serves better than a scale. In 4 bits byte i
//     holds the numbers i (lower half) and i + ceil(size / 2). Beyond 3.39e38 magnitudes are clipped to that;
//     ranges below 2^-103 collapse to their lower end.
#pragma once

#include "compress/kinds.h"

namespace weft::compress {

size_t values_bytes(Values values, size_t count);

// REQUIRES: finite numbers; out has values_bytes.
void write_values(Values values, std::span<const float> numbers, const Draw& draw, std::span<std::byte> out);

// Those from number `at`, a multiple of 128, on; 128 of them, or the last. Corrupted where a number or an end
// of a range is not finite, or ends are in the wrong order. REQUIRES: bytes hold values_bytes of all the
// numbers.
Status read_values(Values values, std::span<const std::byte> bytes, size_t at, std::span<float> numbers);

}  // namespace weft::compress
