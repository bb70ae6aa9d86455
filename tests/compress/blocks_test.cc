// Blocks: against a second implementation by the definition at the head of compress/blocks.cc; without bias.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/compress/cases.h"

namespace weft::compress {
namespace {

// The random byte of element `i` of the tensor, as loops/random.h and stream_of say.
int random_byte(const Draw& draw, size_t i) {
  const PhiloxBlock hash = philox(
      {static_cast<uint32_t>(draw.step), static_cast<uint32_t>(draw.step >> 32), draw.microbatch, draw.edge},
      {static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32)});
  const auto block = static_cast<uint32_t>(i / 128), e = static_cast<uint32_t>(i % 128);
  const PhiloxBlock words =
      philox({block * 8 + e % 8, 1u << 24 | (draw.backward ? 1u << 16 : 0) | draw.replica, hash[2], hash[3]},
             {hash[0], hash[1]});
  return static_cast<int>(words[e / 8 % 4] >> (8 * (e / 32)) & 0xff);
}

bool flips(size_t i) { return std::popcount(i & (i >> 1) & 0x15) % 2 != 0; }

// y[i] = sum over j of x[j] (-1)^popcount(i & j), by recursion over halves.
template <typename T>
std::vector<T> hadamard(std::vector<T> x) {
  for (size_t stride = 1; stride < x.size(); stride *= 2)
    for (size_t i = 0; i < x.size(); ++i)
      if ((i & stride) == 0) {
        const T a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
  return x;
}

struct NaiveBlocks {
  std::vector<int> codes;  // padded to a power of two in the last block
  std::vector<float> scales;
  std::vector<float> decoded;
};

NaiveBlocks naive(const std::vector<float>& x, int bits, const Draw& draw) {
  NaiveBlocks all;
  const int top = (1 << bits) - 1;
  for (size_t at = 0; at < x.size(); at += 128) {
    const size_t count = std::min<size_t>(128, x.size() - at),
                 sent = std::max<size_t>(8, std::bit_ceil(count));
    std::vector<float> block(sent);
    for (size_t i = 0; i < count; ++i) block[i] = (flips(i) ? -x[at + i] : x[at + i]) / 128;
    block = hadamard(block);
    float largest = 0;
    for (const float c : block) largest = std::max(largest, std::abs(c));
    float scale = 0;
    if (largest > 0)
      scale = std::bit_cast<float>(
          (std::bit_cast<uint32_t>(std::max(largest / static_cast<float>(top), 0x1p-110f)) + 0xffff) &
          0xffff0000);
    all.scales.push_back(scale);
    std::vector<double> rounded(sent);  // in units of the scale
    for (size_t i = 0; i < sent; ++i) {
      const float factor = scale == 0 ? 0 : 32768 * (1 - 0x1p-22f) / scale;
      const int byte = random_byte(draw, at + i);
      const int fine = static_cast<int>(block[i] * factor) + top * 32768 + byte * 256 + 128;
      const int code = std::clamp(fine >> 16, 0, top);
      all.codes.push_back(code);
      rounded[i] = 2 * (code - (byte - 127.5) / 256) - top;
    }
    rounded = hadamard(rounded);
    for (size_t i = 0; i < count; ++i) {  // of the 128 equal parts that the padding makes, each is sent / 128
      const float sum = static_cast<float>(rounded[i] * (128 / static_cast<double>(sent)));
      all.decoded.push_back((flips(i) ? -sum : sum) * scale);
    }
  }
  return all;
}

// Codes from the wire, bit by bit.
std::vector<int> unpacked(const Bytes& payload, size_t count, int bits) {
  std::vector<int> codes;
  const auto* in = reinterpret_cast<const uint8_t*>(payload.data());
  for (size_t at = 0; at < count; at += 128) {
    in += 2;
    const size_t sent = std::max<size_t>(8, std::bit_ceil(std::min<size_t>(128, count - at)));
    std::vector<int> block(sent);
    int shift = 0;
    for (const int width : {bits & 8, bits & 4, bits & 2, bits & 1}) {  // 8; 4 2; 4; 2 1
      if (width == 0) continue;
      const size_t bytes = sent * static_cast<size_t>(width) / 8;
      for (size_t i = 0; i < sent; ++i)
        block[i] |= (in[i % bytes] >> (i / bytes * static_cast<size_t>(width)) & ((1 << width) - 1)) << shift;
      shift += width;
      in += bytes;
    }
    codes.insert(codes.end(), block.begin(), block.end());
  }
  EXPECT_EQ(in, reinterpret_cast<const uint8_t*>(payload.data()) + payload.size());
  return codes;
}

TEST(Blocks, MatchASecondImplementation) {
  const Draw draw{
      .seed = 0x123456789abc, .step = 77, .microbatch = 1, .edge = 2, .backward = true, .replica = 3};
  for (const int bits : {8, 6, 5, 4, 3})
    for (const Data data : kData) {
      if (data == Data::Huge) continue;  // clamped
      for (const size_t count : {1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000}) {
        const auto x = tensor(data, count, 11);
        const Codec codec{.kind = Kind::Blocks, .bits = static_cast<uint8_t>(bits)};
        const Bytes payload = encoded(codec, x, draw);
        const NaiveBlocks expected = naive(x, bits, draw);
        ASSERT_EQ(unpacked(payload, count, bits), expected.codes) << bits << " bits, count " << count;
        ASSERT_EQ(decoded(codec, payload, count, draw), expected.decoded) << bits << " bits, count " << count;
      }
    }
}

// The rotation keeps lengths, so the error in y is that of the codes: at most one scale each.
TEST(Blocks, ErrorIsBounded) {
  for (const int bits : {8, 6, 5, 4, 3})
    for (const Data data : {Data::Normal, Data::HeavyTail, Data::Relu, Data::Outlier, Data::Equal}) {
      const auto x = tensor(data, 128 * 50, 5);
      const auto y = round_trip({.kind = Kind::Blocks, .bits = static_cast<uint8_t>(bits)}, x);
      const NaiveBlocks all = naive(x, bits, {});
      for (size_t b = 0; b < 50; ++b) {
        double error = 0;
        for (size_t i = b * 128; i < b * 128 + 128; ++i) error += std::pow(double{x[i]} - y[i], 2);
        EXPECT_LE(std::sqrt(error), all.scales[b] * 128 * 1.0001) << bits << " bits";
      }
    }
}

TEST(Blocks, AMeanDoesNotCostPrecision) {
  const Codec codec = codec_of("int4");
  auto x = tensor(Data::Normal, 128 * 100, 5);
  const double without = relative_error(x, round_trip(codec, x));
  const std::vector<float> equal(128 * 100, 3.0f);
  // All coefficients have one of two magnitudes, 0 and the largest, so that their root mean square is as
  // large as can be beside the largest, which sets the error.
  EXPECT_LT(relative_error(equal, round_trip(codec, equal)), without);
}

// The mean of many decodings is x: within 5 deviations of each mean, over all elements.
TEST(Blocks, AreUnbiased) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  constexpr int kTimes = 4000;
  for (const char* text : {"int8", "int6", "int5", "int4", "int3", "int3z", "int4z"}) {
    auto x = tensor(Data::Outlier, 200, seed);
    x[3] = 0.001f;
    x[5] = -30;
    x[6] = 0;
    std::vector<double> sum(x.size()), squares(x.size());
    for (int time = 0; time < kTimes; ++time) {
      const auto y = round_trip(codec_of(text), x, {.seed = seed, .step = static_cast<uint64_t>(time)});
      for (size_t i = 0; i < x.size(); ++i) {
        sum[i] += y[i] - double{x[i]};
        squares[i] += std::pow(y[i] - double{x[i]}, 2);
      }
    }
    double chi = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double deviation = std::sqrt(squares[i]) + 1e-12;  // of the sum, for independent draws
      EXPECT_LT(std::abs(sum[i]), 5 * deviation) << text << " element " << i;
      chi += std::pow(sum[i] / deviation, 2);
    }
    EXPECT_LT(chi, 200 + 6 * std::sqrt(2 * 200.0)) << text;
  }
}

TEST(Blocks, ZerosUnderAMaskComeBackAsZeros) {
  const auto x = tensor(Data::Relu, 100'007, 4);
  const Codec codec = codec_of("int4z");
  const Bytes payload = encoded(codec, x);
  const auto y = decoded(codec, payload, x.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(x[i] != 0 || y[i] == 0) << i;
  EXPECT_LT(payload.size(), wire_bytes(codec_of("int4"), x.size()) * 4 / 5);
  EXPECT_LT(relative_error(x, y), relative_error(x, round_trip(codec_of("int4"), x)));
  EXPECT_EQ(encoded(codec, std::vector<float>(800)).size(), 100u);  // the mask alone
}

TEST(Blocks, BadScalesAndMasksAreCorrupted) {
  const auto x = tensor(Data::Normal, 300, 1);
  for (const uint16_t scale : {0x8000, 0x8001, 0x7f80, 0x7fc0, 0xff80})
    for (const size_t block : {0, 1, 2}) {
      Bytes payload = encoded(codec_of("int4"), x);
      std::memcpy(&payload[block * 66], &scale, 2);
      std::vector<float> y(300);
      EXPECT_FALSE(decode(codec_of("int4"), {}, payload, y)) << scale;
    }
  Bytes masked = encoded(codec_of("int4z"), x);
  masked[37] |= std::byte{0x80};  // 300 = 37 * 8 + 4
  std::vector<float> y(300);
  EXPECT_FALSE(decode(codec_of("int4z"), {}, masked, y));
}

// A part of a tensor by itself, which is what somebody has who is shown no more of it.
TEST(Blocks, APartIsReadAsItIsInTheWholeTensor) {
  const auto x = tensor(Data::Normal, 5 * 128 + 37, 9);
  for (const char* name : {"dense", "fp16", "bf16", "int8", "int6", "int5", "int4", "int3"}) {
    const Codec codec = codec_of(name);
    ASSERT_TRUE(is_by_parts(codec)) << name;
    Draw draw{.seed = 3, .step = 5, .edge = 2};
    std::vector<std::byte> payload(wire_bytes(codec, x.size()));
    Scratch scratch;
    std::vector<float> whole(x.size());
    const auto all = encode(codec, x, draw, payload, scratch);
    ASSERT_TRUE(all && decode(codec, draw, std::span(payload).first(*all), whole));
    for (const size_t block : {0, 1, 3, 5}) {
      const size_t begin = block * 128, count = std::min<size_t>(256, x.size() - begin);
      draw.first = static_cast<uint32_t>(block);
      std::vector<float> part(count);
      const auto size = encode(codec, std::span(x).subspan(begin, count), draw, payload, scratch);
      ASSERT_TRUE(size && decode(codec, draw, std::span(payload).first(*size), part));
      draw.first = 0;
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin, count * sizeof(float)), 0)
          << name << " " << block;
    }
  }
  for (const char* name : {"int4z", "topk:0.1:int8", "randomk:0.1:fp16"})
    EXPECT_FALSE(is_by_parts(codec_of(name)));
}

}  // namespace
}  // namespace weft::compress
