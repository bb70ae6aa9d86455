// The numbers of slots in eight bits, against the same in double by the words of dag/slot_codes.h.
#include "dag/slot_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "dag/copied_bytes.h"
#include "dag/slots.h"

namespace weft::dag {
namespace {

constexpr const SlotFormat* kFormats[] = {&kSignedSlot, &kUnsignedSlot};

double said_value(const SlotFormat& format, int code, int scale) {
  const int magnitude = format.has_sign ? code % 128 : code, e = magnitude / 8, f = magnitude % 8;
  const int E = static_cast<int>(format.exponent_max), k = std::max(scale, E + 3);
  const double value = e == 0 ? std::ldexp(f, k - E - 129) : std::ldexp(8 + f, k + e - E - 130);
  return format.has_sign && code > 127 ? -value : value;
}

int said_code(const SlotFormat& format, float value, int scale, uint32_t chance) {
  if (!std::isfinite(value)) return format.not_finite;
  const double x = std::abs(static_cast<double>(value));
  if (x < 0x1p-126) return 0;
  const int base = scale - static_cast<int>(format.exponent_max), e = std::max(0, std::ilogb(x) + 127 - base);
  const double unit = std::ldexp(1.0, base + std::max(e, 1) - 130);
  const double units = x / unit + chance / 0x1p20;  // below what a code is one of, as float32 adds
  int code = 8 * std::max(0, e - 1) +
             static_cast<int>(std::floor(e > 0 ? units : static_cast<double>(static_cast<float>(units))));
  if (!format.has_sign) code = std::max(code, 1);
  code = std::min(code, static_cast<int>(format.code_max));
  return format.has_sign && std::signbit(value) && code > 0 ? code + 128 : code;
}

float largest_of(int scale) { return std::ldexp(1.5F, scale - 127); }

TEST(SlotCodes, WidenToWhatIsSaid) {
  for (const SlotFormat* format : kFormats)
    for (int scale = 0; scale < 255; ++scale)
      for (int code = 0; code < 256; ++code) {
        const float value = widen_code(*format, static_cast<uint8_t>(code), static_cast<uint8_t>(scale));
        if (code == format->not_finite)
          ASSERT_FALSE(std::isfinite(value));
        else
          ASSERT_EQ(static_cast<double>(value), said_value(*format, code, scale)) << code << " " << scale;
      }
}

TEST(SlotCodes, NarrowToWhatIsSaid) {
  Rng rng(11, 0);
  for (const SlotFormat* format : kFormats)
    for (int i = 0; i < 200'000; ++i) {
      const auto scale = static_cast<int>(40 + rng.below(214));
      float value = largest_of(scale) * static_cast<float>(std::exp(-30 * rng.uniform() * rng.uniform()));
      if (format->has_sign && i % 2 == 0) value = -value;
      const auto chance = static_cast<uint32_t>(rng.below(1 << 20));
      ASSERT_EQ(narrow_code(*format, value, static_cast<uint8_t>(scale), chance),
                said_code(*format, value, scale, chance))
          << value << " " << scale << " " << chance;
    }
}

TEST(SlotCodes, StayWhatTheyAreWhateverTheChance) {
  for (const SlotFormat* format : kFormats)
    for (const uint8_t scale : {uint8_t{40}, uint8_t{127}, uint8_t{250}})
      for (int code = 0; code < 256; ++code)
        for (const uint32_t chance : {0U, 0x80000U, 0xFFFFFU}) {
          if (format->has_sign && code == 0x80) continue;
          const float value = widen_code(*format, static_cast<uint8_t>(code), scale);
          EXPECT_EQ(narrow_code(*format, value, scale, chance), code) << int{scale};
        }
}

TEST(SlotCodes, AreRightOnAverage) {
  for (const SlotFormat* format : kFormats)
    for (const double x : {1.03, 0.77, 0.0213, 3e-4, 2.1e-5, 6e-6}) {
      double mean = 0;
      constexpr uint32_t kDraws = 1 << 14;
      for (uint32_t i = 0; i < kDraws; ++i)
        mean += static_cast<double>(
                    widen_code(*format, narrow_code(*format, static_cast<float>(x), 127, i << 6), 127)) /
                kDraws;
      EXPECT_NEAR(mean, static_cast<float>(x), 1e-3 * x);
    }
}

// Of a block the scale is never so small that the largest does not fit, nor twice as large as it has to be.
TEST(SlotCodes, TheScaleFitsTheLargest) {
  Rng rng(12, 0);
  for (const SlotFormat* format : kFormats) {
    for (int i = 0; i < 10'000; ++i) {
      const auto largest = static_cast<float>(std::exp(60 * (rng.uniform() - 0.5)));
      const uint8_t scale = slot_scale(*format, largest);
      const auto top =
          static_cast<double>(widen_code(*format, static_cast<uint8_t>(format->code_max & ~1U), scale));
      EXPECT_GE(top, largest);
      EXPECT_LT(top, 2.01 * largest);
    }
    EXPECT_EQ(slot_scale(*format, 0), format->exponent_max + 3);
    EXPECT_EQ(slot_scale(*format, std::numeric_limits<float>::max()), 254);
    EXPECT_EQ(narrow_code(*format, std::numeric_limits<float>::max(), 254, 0xFFFFF), format->code_max);
    EXPECT_EQ(widen_code(*format, 0, 0), 0.0F) << "what was never written is zero";
  }
}

TEST(SlotCodes, ASecondMomentIsNeverLost) {
  for (const uint32_t chance : {0U, 0xFFFFFU}) {
    EXPECT_EQ(narrow_code(kUnsignedSlot, 1e-30F, 127, chance), 1);
    EXPECT_EQ(narrow_code(kUnsignedSlot, 0, 127, chance), 0);
    EXPECT_EQ(narrow_code(kSignedSlot, -1e-30F, 127, chance), 0);
  }
}

TEST(SlotCodes, ChancesOfTwoSlotsAndUpdatesAreUnlike) {
  double means[2] = {}, both = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double a = slot_chance(slot_draw(1), i, false) / 0x1p20,
                 b = slot_chance(slot_draw(1), i, true) / 0x1p20,
                 c = slot_chance(slot_draw(2), i, false) / 0x1p20;
    means[0] += a / kCount, means[1] += b / kCount;
    both += (a - 0.5) * (b - 0.5) / kCount + (a - 0.5) * (c - 0.5) / kCount;
  }
  EXPECT_NEAR(means[0], 0.5, 0.005);
  EXPECT_NEAR(means[1], 0.5, 0.005);
  EXPECT_NEAR(both, 0, 0.002);
}

TEST(Slots, AreAsLargeAsTheyAreSaid) {
  for (const int64_t count : {0, 1, 255, 256, 257, 768 * 768}) {
    const TensorSpec weight{DType::F32, {count}};
    const TensorSpec coded = spec_of_state(StateSlot::V, weight, SlotType::Int8);
    EXPECT_EQ(coded.dtype, DType::U8);
    EXPECT_EQ(coded.element_count(), count + (count + 255) / 256);
    EXPECT_EQ(coded_elements(coded.element_count()), count);
    EXPECT_EQ(spec_of_state(StateSlot::V, weight, SlotType::Float32), weight);
    for (const StateSlot slot : {StateSlot::Value, StateSlot::RunningStatistic, StateSlot::OuterMomentum,
                                 StateSlot::Residue, StateSlot::ReturnResidue})
      EXPECT_EQ(spec_of_state(slot, weight, SlotType::Int8), weight);
    const BesideParameter beside{.slots = 2, .type = SlotType::Int8, .whole = 1};
    EXPECT_EQ(beside.bytes(weight), 2 * coded.bytes().value + weight.bytes().value);
    EXPECT_EQ(beside.bytes(weight.bytes().value), beside.bytes(weight));
  }
}

TEST(Slots, AreFiniteWhereNoCodeSaysOtherwise) {
  Tensor tensor({DType::U8, {coded_slot_bytes(2)}});
  const auto is_finite = [&](StateSlot slot) { return is_finite_state(of_initializer("w", slot), tensor); };
  tensor.mutable_as<uint8_t>()[2] = 254;  // a scale
  EXPECT_TRUE(is_finite(StateSlot::M));
  EXPECT_TRUE(is_finite(StateSlot::V));
  tensor.mutable_as<uint8_t>()[1] = 0x80;
  EXPECT_FALSE(is_finite(StateSlot::Momentum));
  EXPECT_TRUE(is_finite(StateSlot::V));
  tensor.mutable_as<uint8_t>()[1] = 0xFF;
  EXPECT_TRUE(is_finite(StateSlot::M));
  EXPECT_FALSE(is_finite(StateSlot::V));
}

}  // namespace
}  // namespace weft::dag
