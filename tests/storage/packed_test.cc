// Blobs packed for an uplink: every shape comes back as it was, in pieces of any size, and nothing that is no
// packed blob does harm.
#include "storage/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace weft::storage {
namespace {

using Bytes = std::vector<std::byte>;

// Weights as training leaves them, and as they are a step later.
Bytes floats(uint64_t seed, size_t count, double moved = 0) {
  Rng rng(seed, 0), by(seed, 1);
  Bytes bytes(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>((rng.uniform() - 0.5) * 0.1 * (1 + moved * (by.uniform() - 0.5)));
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

Bytes noise(uint64_t seed, size_t size) {
  Rng rng(seed, 2);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

Bytes packed(std::span<const std::byte> bytes, std::span<const std::byte> base = {}) {
  Packer packer;
  Bytes all;
  for (size_t at = 0; at < bytes.size(); at += kPackedUnit) {
    const size_t size = std::min(kPackedUnit, bytes.size() - at);
    const Bytes unit = packer.pack(bytes.subspan(at, size), base.empty() ? base : base.subspan(at, size));
    EXPECT_LE(unit.size(), size + kPackedHeader);
    all.insert(all.end(), unit.begin(), unit.end());
  }
  return all;
}

// In pieces of up to `piece` bytes; also counted by a framing, which is to say the same.
Result<Bytes> unpacked(std::span<const std::byte> stream, size_t size, std::span<const std::byte> base,
                       size_t piece, uint64_t seed) {
  Unpacker unpacker(size, base);
  PackedFraming framing(size);
  Rng rng(seed, 3);
  Bytes out;
  while (!stream.empty()) {
    const size_t some = std::min<size_t>(stream.size(), 1 + rng.below(piece));
    const Status framed = framing.take(stream.first(some));
    const Status taken = unpacker.take(stream.first(some), [&](std::span<const std::byte> bytes) -> Status {
      out.insert(out.end(), bytes.begin(), bytes.end());
      return {};
    });
    if (!framed && taken)
      ADD_FAILURE() << "the framing refused what was unpacked: " << framed.error().message;
    if (!taken) return fail(taken.error());
    stream = stream.subspan(some);
  }
  EXPECT_EQ(unpacker.is_complete(), framing.is_complete());
  if (!unpacker.is_complete()) return fail(ErrorCode::OutOfRange, "more is to come");
  return out;
}

TEST(Packed, EveryLengthComesBackAsItWas) {
  for (const size_t size : {size_t{1}, size_t{3}, size_t{4}, size_t{5}, size_t{17}, size_t{63}, size_t{64},
                            size_t{4099}, kPackedUnit - 1, kPackedUnit, kPackedUnit + 1, 3 * kPackedUnit + 6})
    for (const bool is_noise : {false, true})
      for (const bool has_base : {false, true}) {
        SCOPED_TRACE(std::to_string(size) + (is_noise ? " noise" : " floats") +
                     (has_base ? " on a base" : ""));
        Bytes bytes = is_noise ? noise(1, size) : floats(1, size / 4 + 1), base;
        bytes.resize(size);
        if (has_base) base = floats(1, size / 4 + 1, 0.01), base.resize(size);
        const Bytes stream = packed(bytes, base);
        for (const size_t piece : {size_t{7}, size_t{70'000}, size_t{4} << 20}) {
          if (piece == 7 && size > 10'000) continue;
          const auto back = unpacked(stream, size, base, piece, size);
          ASSERT_TRUE(back) << back.error().message;
          ASSERT_EQ(*back, bytes);
        }
      }
}

TEST(Packed, SpecialNumbersAreBitsLikeAnyOther) {
  Bytes bytes;
  for (const uint32_t number : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 1u, 0xffffffffu})
    for (int i = 0; i < 50; ++i) {
      const size_t at = bytes.size();
      bytes.resize(at + 4);
      std::memcpy(bytes.data() + at, &number, 4);
    }
  const Bytes base(bytes.rbegin(), bytes.rend());
  for (const Bytes& on : {Bytes{}, base}) {
    const auto back = unpacked(packed(bytes, on), bytes.size(), on, 100, 1);
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, bytes);
  }
}

TEST(Packed, WhatTrainingMovedALittleIsSmaller) {
  const Bytes bytes = floats(5, 500'000), before = floats(5, 500'000, 0.02);
  const double alone = static_cast<double>(packed(bytes).size()) / static_cast<double>(bytes.size());
  const double after = static_cast<double>(packed(bytes, before).size()) / static_cast<double>(bytes.size());
  EXPECT_LT(alone, 0.88);
  EXPECT_LT(after, 0.70);
  EXPECT_LT(packed(bytes, bytes).size(), bytes.size() / 500) << "nothing moved";
  EXPECT_LT(packed(Bytes(1 << 20)).size(), 1000u) << "zeros";
}

TEST(Packed, AUnitThatDoesNotShrinkIsSentAsItIs) {
  const Bytes bytes = noise(9, 100'001);
  EXPECT_EQ(packed(bytes).size(), bytes.size() + kPackedHeader);
}

// A byte changed, cut off, added: an error or other bytes, never more than were announced.
TEST(Packed, DamagedStreamsDoNoHarm) {
  const Bytes bytes = floats(3, 3000), base = floats(3, 3000, 0.05);
  const Bytes stream = packed(bytes, base);
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 4);
    Bytes damaged = stream;
    const uint64_t what = rng.below(4);
    if (what == 0) damaged.resize(rng.below(damaged.size()));
    if (what == 1) damaged.insert(damaged.end(), 1 + rng.below(20), std::byte{7});
    if (what >= 2)  // mostly where lengths are
      for (uint64_t i = 0; i <= rng.below(3); ++i)
        damaged[rng.below(what == 2 ? 25 : damaged.size())] = static_cast<std::byte>(rng.below(256));
    const auto back = unpacked(damaged, bytes.size(), base, 500, seed);
    if (back) {
      EXPECT_EQ(back->size(), bytes.size());
    }
  }
}

TEST(Packed, BytesBeyondTheEndAreRefused) {
  PackedFraming nothing(0);
  EXPECT_TRUE(nothing.is_complete());
  EXPECT_FALSE(nothing.take(Bytes(1)));
  Unpacker none(0, {});
  EXPECT_FALSE(none.take(Bytes(1), [](auto) -> Status { return {}; }));
  PackedFraming framing(10);
  EXPECT_FALSE(framing.take(Bytes(4, std::byte{0xff}))) << "four gigabytes";
}

}  // namespace
}  // namespace weft::storage
