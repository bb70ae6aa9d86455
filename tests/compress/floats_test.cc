// Sixteen-bit floats against a conversion by definition: the nearest of all values, ties to the even one.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tests/compress/cases.h"

namespace weft::compress {
namespace {

double half_value(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

// Of a magnitude: by bisection among the finite halves, whose order is that of their bits.
uint16_t nearest_half(double size) {
  uint16_t low = 0, high = 0x7bff;
  if (size >= half_value(high)) return high;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (half_value(middle) <= size ? low : high) = middle;
  }
  const double down = size - half_value(low), up = half_value(high) - size;
  if (down != up) return down < up ? low : high;
  return low % 2 == 0 ? low : high;
}

uint16_t nearest_half_of(float x) {
  return static_cast<uint16_t>(nearest_half(std::abs(double{x})) | (std::signbit(x) ? 0x8000 : 0));
}

// Around every half and every midpoint between two, with both signs, and random bits.
std::vector<float> interesting() {
  std::vector<float> x;
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const double here = half_value(static_cast<uint16_t>(half));
    const double next = half == 0x7bff ? 65536 : half_value(static_cast<uint16_t>(half + 1));
    for (const double at : {here, (here + next) / 2}) {
      const auto middle = static_cast<float>(at);
      for (const float value : {std::nextafter(middle, -1.0f), middle, std::nextafter(middle, 1e9f)})
        for (const float sign : {1.0f, -1.0f}) x.push_back(sign * value);
    }
  }
  Rng rng(seed_of_run(), 1);
  while (x.size() < 400'001) {
    const auto value = std::bit_cast<float>(rng.next_u32());
    if (std::isfinite(value)) x.push_back(value);
  }
  return x;
}

TEST(Float16, IsTheNearestOnEverySet) {
  const auto x = interesting();
  for (const LoopTable* table : all_loops()) {
    const ForcedLoops forced(*table);
    const Bytes payload = encoded(codec_of("fp16"), x);
    const auto y = decoded(codec_of("fp16"), payload, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, &payload[2 * i], 2);
      ASSERT_EQ(half, nearest_half_of(x[i])) << table->isa << " " << x[i];
      ASSERT_EQ(y[i], half_value(half)) << table->isa << " " << x[i];
      ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i]));
    }
  }
}

TEST(Float16, SaturatesAtItsLargest) {
  EXPECT_EQ(round_trip(codec_of("fp16"), {65504, 65519, 65520, 1e6f, 3.4e38f, -1e6f}),
            (std::vector<float>{65504, 65504, 65504, 65504, 65504, -65504}));
}

TEST(BFloat16, IsTheNearestAndSaturates) {
  const auto x = interesting();
  const auto y = round_trip(codec_of("bf16"), x);
  const float largest = std::bit_cast<float>(0x7f7f0000u);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(std::abs(x[i]));
    const double low = std::bit_cast<float>(bits & 0xffff0000u);
    const double step = std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u) - low;
    const double off = std::abs(double{std::abs(y[i])} - std::abs(double{x[i]}));
    ASSERT_TRUE(off <= step / 2 || std::abs(y[i]) == largest) << x[i] << " " << y[i];
  }
  EXPECT_EQ(round_trip(codec_of("bf16"), {3.4028e38f, -3.4028e38f, std::bit_cast<float>(0x3f808000u),
                                          std::bit_cast<float>(0x3f818000u)}),
            (std::vector<float>{largest, -largest, 1.0f, std::bit_cast<float>(0x3f820000u)}));
}

TEST(Floats, InfinitiesAndNaNAreCorrupted) {
  for (const LoopTable* table : all_loops())
    for (const auto& [text, bits] : {std::pair("fp16", 0x7c00),
                                     {"fp16", 0xfc00},
                                     {"fp16", 0x7e01},
                                     {"bf16", 0x7f80},
                                     {"bf16", 0xff80},
                                     {"bf16", 0x7fc0}})
      for (const size_t count : {1, 33, 100})
        for (const size_t at : {size_t{0}, count / 2, count - 1}) {
          const ForcedLoops forced(*table);
          Bytes payload(count * 2);
          const auto half = static_cast<uint16_t>(bits);
          std::memcpy(&payload[2 * at], &half, 2);
          std::vector<float> y(count);
          const Status status = decode(codec_of(text), {}, payload, y);
          ASSERT_FALSE(status) << text << " " << table->isa << " " << at;
          EXPECT_EQ(status.error().code, ErrorCode::Corrupted);
        }
}

TEST(Floats, OnlyMinusInfinityIsBelowInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const LoopTable* table : all_loops()) {
    const ForcedLoops forced(*table);
    EXPECT_TRUE(are_below_infinity({}));
    for (const size_t count : {1, 7, 33, 100})
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        std::vector<float> x(count, -kInfinity);
        for (const uint32_t good :
             {0u, 0x80000000u, 1u, 0x80000001u, 0x7f7fffffu, 0xff7fffffu, 0xff800000u}) {
          x[at] = std::bit_cast<float>(good);
          EXPECT_TRUE(are_below_infinity(x)) << table->isa << " " << good;
        }
        for (const uint32_t bad :
             {0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
          std::memcpy(&x[at], &bad, sizeof bad);  // a signalling NaN stays one
          EXPECT_FALSE(are_below_infinity(x)) << table->isa << " " << bad;
        }
      }
  }
}

}  // namespace
}  // namespace weft::compress
