// The codecs and tensors that the tests go through, and encode and decode without ceremony.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/loops/table.h"

namespace weft::compress {

using Bytes = std::vector<std::byte>;

// Every kind with every option; a new compressor is a row.
inline const char* const kNames[] = {"dense",
                                     "fp16",
                                     "bf16",
                                     "int8",
                                     "int6",
                                     "int5",
                                     "int4",
                                     "int3",
                                     "int8z",
                                     "int6z",
                                     "int5z",
                                     "int4z",
                                     "int3z",
                                     "topk:0.01:fp32",
                                     "topk:0.1:fp16",
                                     "topk:0.01:int8",
                                     "topk:0.25:int4",
                                     "topk:0.000001:fp32",
                                     "topk:1:fp32",
                                     "topk:0.75:fp16",
                                     "topk:0.01:fp16+int4",
                                     "topk:0.02:int8+int3",
                                     "topk:0.001:int4+int8",
                                     "randomk:0.01:fp32",
                                     "randomk:0.3:fp16",
                                     "randomk:0.1:int8",
                                     "randomk:1:int4"};

inline Codec codec_of(std::string_view name) {
  const Result<Codec> codec = parse(name);
  EXPECT_TRUE(codec) << name;
  return codec ? *codec : Codec{};
}

inline const size_t kCounts[] = {0,  1,   2,   3,   7,   8,   9,   15,   16,   17,   63,    64,
                                 65, 100, 127, 128, 129, 255, 256, 1000, 4095, 4096, 70001, 100'007};

enum class Data { Normal, HeavyTail, Relu, Equal, Zero, Tiny, Huge, NegativeZero, Outlier, Levels };
inline constexpr Data kData[] = {Data::Normal,  Data::HeavyTail, Data::Relu, Data::Equal,
                                 Data::Zero,    Data::Tiny,      Data::Huge, Data::NegativeZero,
                                 Data::Outlier, Data::Levels};

inline float draw_one(Data data, Rng& rng) {
  const auto normal = static_cast<float>(rng.normal());
  switch (data) {
    case Data::Normal:
      return normal;
    case Data::HeavyTail: {  // Student's t with 3 degrees of freedom
      double squares = 0;
      for (int i = 0; i < 3; ++i) {
        const double z = rng.normal();
        squares += z * z;
      }
      return normal / static_cast<float>(std::sqrt(squares / 3));
    }
    case Data::Relu:
      return std::max(normal, 0.0f);
    case Data::Equal:
      return -1.5f;
    case Data::Zero:
      return 0;
    case Data::Tiny:
      return normal * 1e-40f;
    case Data::Huge:
      return (normal < 0 ? -1.0f : 1.0f) * (3e38f + 4e36f * std::min(std::abs(normal), 5.0f));
    case Data::NegativeZero:
      return -0.0f;
    case Data::Outlier:
      return rng.below(500) == 0 ? 1000.0f * normal : normal;
    case Data::Levels:  // many ties
      return static_cast<float>(static_cast<int>(rng.below(7)) - 3);
  }
  return 0;
}

inline std::vector<float> tensor(Data data, size_t count, uint64_t seed) {
  Rng rng(seed, static_cast<uint64_t>(data));
  std::vector<float> x(count);
  for (float& value : x) value = draw_one(data, rng);
  return x;
}

inline std::vector<const LoopTable*> all_loops() {
  std::vector<const LoopTable*> tables;
  for (const char* isa : {"baseline", "v3", "v4"})
    if (const LoopTable* table = loops_for(isa)) tables.push_back(table);
  return tables;
}

// The payload; the test fails if x is not finite or more is written than was said.
inline Bytes encoded(const Codec& codec, const std::vector<float>& x, const Draw& draw = {}) {
  const size_t bound = wire_bytes(codec, x.size());
  Bytes out(bound);  // of exactly that size, so that the address sanitizer sees what lies beyond
  Scratch scratch;
  const auto bytes = encode(codec, x, draw, out, scratch);
  EXPECT_TRUE(bytes) << name(codec);
  EXPECT_LE(scratch.bytes(), scratch_bytes(codec, x.size()));
  const size_t used = bytes.value_or(bound);
  EXPECT_TRUE(used == bound || (used < bound && !is_fixed_size(codec))) << name(codec);
  out.resize(bytes.value_or(0));
  return out;
}

inline std::vector<float> decoded(const Codec& codec, const Bytes& payload, size_t count,
                                  const Draw& draw = {}) {
  std::vector<float> y(count, std::nanf(""));
  const Status status = decode(codec, draw, payload, y);
  EXPECT_TRUE(status) << name(codec) << ": " << (status ? "" : status.error().message);
  return y;
}

inline std::vector<float> round_trip(const Codec& codec, const std::vector<float>& x, const Draw& draw = {}) {
  return decoded(codec, encoded(codec, x, draw), x.size(), draw);
}

// A seed of this run, or the one of the environment's WEFT_SEED; print it where it is used.
inline uint64_t seed_of_run() {
  const char* text = std::getenv("WEFT_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20261;
}

}  // namespace weft::compress
