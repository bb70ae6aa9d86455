// Laws that hold for every codec.
#include <cstring>
#include <limits>
#include <set>

#include "tests/compress/cases.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace weft::compress {
namespace {

bool all_finite(const std::vector<float>& x) {
  for (const float value : x)
    if (!std::isfinite(value)) return false;
  return true;
}

TEST(Codec, NamesAreParsedBack) {
  std::set<std::string> descriptions;
  for (const char* text : kNames) {
    EXPECT_EQ(name(codec_of(text)), text);
    descriptions.insert(describe(codec_of(text)));
  }
  EXPECT_EQ(descriptions.size(), std::size(kNames));
}

TEST(Codec, WhatIsNoNameIsRefused) {
  for (const char* text : {"",
                           "z",
                           "int",
                           "int7",
                           "int16",
                           "int4zz",
                           "fp32",
                           "topk",
                           "topk:",
                           "topk:0.1",
                           "topk:0:fp32",
                           "topk:1.1:fp32",
                           "topk:-1:fp32",
                           "topk:0.0000001:fp32",
                           "topk:.1:fp32",
                           "topk:0.:fp32",
                           "topk:0.1:int6",
                           "topk:0.1:fp16+int7",
                           "topk:0.1:fp16+",
                           "randomk:0.1:fp16+int4",
                           "topk:nan:fp16",
                           "topk:1e-2:fp16",
                           "int4 ",
                           "DENSE"}) {
    const Result<Codec> codec = parse(text);
    ASSERT_FALSE(codec) << text;
    EXPECT_EQ(codec.error().code, ErrorCode::InvalidArgument);
  }
}

TEST(Codec, WhatIsNoCodecIsRefused) {
  EXPECT_TRUE(check({}));
  for (const Codec& codec : {
           Codec{.kind = static_cast<Kind>(6)},
           Codec{.kind = static_cast<Kind>(255)},
           Codec{.kind = Kind::Blocks},
           Codec{.kind = Kind::Blocks, .bits = 7},
           Codec{.kind = Kind::Blocks, .bits = 4, .per_million = 1},
           Codec{.kind = Kind::Float16, .bits = 4},
           Codec{.kind = Kind::Float16, .masks_zeros = true},
           Codec{.kind = Kind::BFloat16, .values = Values::F16},
           Codec{.kind = Kind::TopK},
           Codec{.kind = Kind::TopK, .per_million = 1'000'001},
           Codec{.kind = Kind::TopK, .values = static_cast<Values>(4), .per_million = 1},
           Codec{.kind = Kind::TopK, .floor_bits = 1, .per_million = 1},
           Codec{.kind = Kind::RandomK, .floor_bits = 4, .per_million = 1},
       }) {
    const Status status = check(codec);
    ASSERT_FALSE(status) << static_cast<int>(codec.kind);
    EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
    EXPECT_FALSE(status.error().message.empty());
  }
}

TEST(Codec, SizesDoNotOverflow) {
  for (const char* text : kNames) {
    const Codec codec = codec_of(text);
    size_t before = 0;
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20, kMaxCount - 1, kMaxCount}) {
      const size_t bytes = wire_bytes(codec, count);
      EXPECT_GE(bytes, before) << text << " " << count;
      EXPECT_LE(bytes, 16 + count * 9) << text << " " << count;
      EXPECT_GT(scratch_bytes(codec, count) + 1, before / 1000) << text;
      before = bytes;
    }
    EXPECT_EQ(wire_bytes(codec, 0), 0u) << text;
  }
}

// Every codec takes every tensor of every length, and what comes out is finite and not far off.
TEST(Codec, EveryTensorComesBackFinite) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  for (const char* text : kNames)
    for (const Data data : kData)
      for (const size_t count : kCounts) {
        if (count > 5000 && data != Data::Normal && data != Data::Levels) continue;
        const auto x = tensor(data, count, seed);
        EXPECT_TRUE(all_finite(round_trip(codec_of(text), x)))
            << text << " data " << static_cast<int>(data) << " count " << count;
      }
}

TEST(Codec, EverySetOfLoopsGivesTheSameBytes) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  for (const char* text : kNames)
    for (const Data data : kData)
      for (const size_t count : kCounts) {
        if (count > 5000 && data != Data::Normal && data != Data::Levels) continue;
        const auto x = tensor(data, count, seed);
        Bytes first;
        std::vector<float> y;
        for (const LoopTable* table : all_loops()) {
          const ForcedLoops forced(*table);
          const Bytes payload = encoded(codec_of(text), x, {.seed = 7, .step = 8});
          const auto back = decoded(codec_of(text), payload, count, {.seed = 7, .step = 8});
          if (table == all_loops()[0]) {
            first = payload;
            y = back;
          }
          const std::string where = std::string(text) + " " + table->isa + " data " +
                                    std::to_string(static_cast<int>(data)) + " count " +
                                    std::to_string(count);
          ASSERT_EQ(payload, first) << where;
          ASSERT_TRUE(count == 0 || std::memcmp(back.data(), y.data(), count * 4) == 0) << where;
          EXPECT_EQ(relative_error(x, back), relative_error(x, y)) << where;
        }
      }
}

#if defined(__SSE2__)
TEST(Codec, AFlushingCallerGetsTheSameBytes) {
  for (const char* text : kNames)
    for (const Data data : {Data::Normal, Data::Tiny}) {
      const auto x = tensor(data, 1000, 3);
      const Bytes plain = encoded(codec_of(text), x);
      const unsigned before = _mm_getcsr();
      _mm_setcsr(before | 0x8040 | 0x6000);  // flushes, reads subnormals as zero, rounds towards zero
      const Bytes flushing = encoded(codec_of(text), x);
      const auto y = decoded(codec_of(text), plain, x.size());
      EXPECT_EQ(_mm_getcsr() & 0xffc0, (before | 0x8040 | 0x6000) & 0xffc0);
      _mm_setcsr(before);
      EXPECT_EQ(plain, flushing) << text;
      EXPECT_EQ(std::memcmp(y.data(), decoded(codec_of(text), plain, x.size()).data(), 4000), 0) << text;
    }
}
#endif

bool draws_at_random(const Codec& codec) {
  return codec.kind == Kind::Blocks || codec.kind == Kind::RandomK || codec.floor_bits != 0 ||
         codec.values == Values::I8 || codec.values == Values::I4;
}

TEST(Codec, BytesFollowFromTheDrawAlone) {
  const auto x = tensor(Data::Normal, 5000, 1), other = tensor(Data::HeavyTail, 9000, 2);
  const Draw draw{.seed = 1, .step = 2, .microbatch = 3, .edge = 4, .backward = false, .replica = 5};
  std::vector<Draw> others(6, draw);
  others[0].seed += uint64_t{1} << 40;
  others[1].step += uint64_t{1} << 40;
  others[2].microbatch = 9;
  others[3].edge = 9;
  others[4].backward = true;
  others[5].replica = 9;
  for (const char* text : kNames) {
    const Codec codec = codec_of(text);
    const Bytes payload = encoded(codec, x, draw);
    Scratch used;
    Bytes out(wire_bytes(codec, other.size()));
    ASSERT_TRUE(encode(codec, other, others[0], out, used));
    const auto again = encode(codec, x, draw, out, used);
    ASSERT_TRUE(again);
    out.resize(*again);
    EXPECT_EQ(out, payload) << text;
    for (const Draw& o : others) EXPECT_EQ(encoded(codec, x, o) != payload, draws_at_random(codec)) << text;
  }
}

TEST(Codec, WhatIsNotFiniteIsNotEncoded) {
  const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()};
  Scratch scratch;
  for (const char* text : kNames)
    for (const LoopTable* table : all_loops())
      for (const size_t count : {1, 8, 100, 128, 1000, 70000})
        for (const size_t at : {size_t{0}, count / 2, count - 1})
          for (const float value : bad) {
            const ForcedLoops forced(*table);
            const Codec codec = codec_of(text);
            auto x = tensor(Data::Normal, count, 5);
            x[at] = value;
            Bytes out(wire_bytes(codec, count));
            EXPECT_EQ(encode(codec, x, {}, out, scratch).has_value(), codec.kind == Kind::Dense)
                << text << " " << table->isa << " " << at << " of " << count;
          }
}

TEST(Codec, DenseCarriesEverything) {
  std::vector<float> x = {0.0f, -0.0f, 1e-45f, std::numeric_limits<float>::infinity(), std::nanf("7")};
  const auto y = round_trip({}, x);
  EXPECT_EQ(std::memcmp(x.data(), y.data(), 20), 0);
}

TEST(Codec, RelativeErrorIsThatOfTheDefinition) {
  const auto x = tensor(Data::Normal, 1003, 1), y = tensor(Data::HeavyTail, 1003, 1);
  double error = 0, whole = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(double{x[i]} - y[i], 2);
    whole += std::pow(double{x[i]}, 2);
  }
  EXPECT_NEAR(relative_error(x, y), std::sqrt(error / whole), 1e-12);
  EXPECT_EQ(relative_error(x, x), 0);
  EXPECT_EQ(relative_error(std::vector<float>(3), std::vector<float>(3)), 0);
  EXPECT_EQ(relative_error(std::vector<float>(3), std::vector<float>(3, 1)), HUGE_VAL);
  const Codec codec = codec_of("int4");
  Scratch scratch;
  const Bytes payload = encoded(codec, x);
  EXPECT_EQ(relative_error(codec, x, {}, payload, scratch),
            relative_error(x, decoded(codec, payload, x.size())));
}

TEST(Scratch, GrowsToWhatIsAskedAndIsAligned) {
  Scratch scratch;
  for (const size_t bytes : {0, 1, 1000, 10, 100'000, 63}) {
    const auto memory = scratch.take(bytes);
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u);
  }
  EXPECT_EQ(scratch.bytes(), 100'000u);
}

}  // namespace
}  // namespace weft::compress
