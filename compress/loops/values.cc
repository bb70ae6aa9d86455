// Numbers of TopK and RandomK in 8 or 4 bits (compress/values.h says how they lie), and random words.
#include "compress/loops/random.h"

namespace weft::compress::WEFT_ISA {
namespace {

constexpr int kSize = static_cast<int>(kBlock);

// A group of up to kSize magnitudes lies between low and high, bfloats rounded outwards.
struct Range {
  uint32_t low, high;  // bits of a float
};

WEFT_LOOP_INLINE Range range_of(const float* v, int count) {
  uint32_t low = kMagnitude, high = 0;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int i = 0; i < count; ++i) {
    const uint32_t size = bits_of(v[i]) & kMagnitude;
    low = size < low ? size : low;
    high = size > high ? size : high;
  }
  low &= 0xffff0000u;
  high = (high + 0xffffu) & 0xffff0000u;
  return {low, high < 0x7f7f0000u ? high : 0x7f7f0000u};
}

template <int kBits>
WEFT_LOOP_INLINE float step_of(Range range) {
  constexpr float kTop = (1 << (kBits - 1)) - 1;
  return (float_of(range.high) - float_of(range.low)) / kTop;
}

template <int kBits>
WEFT_LOOP_INLINE uint8_t* encode_group(const float* v, int count, const Stream& stream, uint32_t first,
                                       uint8_t* out) {
  constexpr int32_t kTop = (1 << (kBits - 1)) - 1;
  const Range range = range_of(v, count);
  const float low = float_of(range.low), step = step_of<kBits>(range);
  const float factor = step >= 0x1p-110f ? 0x1p16f / step : 0.0f;
  Words random[kSize / kLanes];
  draw_block(stream, first, random);
  alignas(64) uint32_t plain[kSize];
  __builtin_memcpy(plain, random, sizeof(plain));
  alignas(64) uint8_t codes[kSize] = {};
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(v[i]);
    const float above = (float_of(bits & kMagnitude) - low) * factor;
    const float capped = above < 0x1p23f ? above : 0x1p23f;
    const int32_t code = (static_cast<int32_t>(capped) + static_cast<int32_t>(plain[i])) >> 16;
    codes[i] =
        static_cast<uint8_t>((code < kTop ? code : kTop) | static_cast<int32_t>(bits >> 31) << (kBits - 1));
  }
  const uint16_t ends[2] = {static_cast<uint16_t>(range.low >> 16), static_cast<uint16_t>(range.high >> 16)};
  __builtin_memcpy(out, ends, 4);
  out += 4;
  const int bytes = kBits == 8 ? count : (count + 1) / 2;
  if (kBits == 8)
    __builtin_memcpy(out, codes, static_cast<size_t>(count));
  else
    for (int i = 0; i < bytes; ++i)
      out[i] = static_cast<uint8_t>(codes[i] | (i + bytes < count ? codes[i + bytes] << 4 : 0));
  return out + bytes;
}

template <int kBits>
WEFT_LOOP_INLINE bool decode_group(const uint8_t* in, int count, float* v) {
  constexpr uint32_t kTop = (1u << (kBits - 1)) - 1;
  uint16_t ends[2];
  __builtin_memcpy(ends, in, 4);
  if (ends[0] > ends[1] || ends[1] >= 0x7f80u) return false;
  const Range range = {static_cast<uint32_t>(ends[0]) << 16, static_cast<uint32_t>(ends[1]) << 16};
  const float low = float_of(range.low), step = step_of<kBits>(range);
  in += 4;
  alignas(64) uint8_t codes[kSize];
  if (kBits == 8) {
    __builtin_memcpy(codes, in, static_cast<size_t>(count));
  } else {
    const int bytes = (count + 1) / 2;
    for (int i = 0; i < bytes; ++i) codes[i] = in[i] & 15;
    for (int i = bytes; i < count; ++i) codes[i] = in[i - bytes] >> 4;
    if (count % 2 != 0 && in[bytes - 1] > 15) return false;
  }
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const uint32_t code = codes[i];
    const float size = low + static_cast<float>(static_cast<int32_t>(code & kTop)) * step;
    v[i] = float_of(bits_of(size) | (code >> (kBits - 1)) << 31);
  }
  return true;
}

template <int kBits>
void encode_groups(const float* v, int64_t count, const Stream& stream, uint8_t* out) {
  uint32_t first = 0;
  for (; count > 0; count -= kSize, v += kSize, first += 16)
    out = encode_group<kBits>(v, count < kSize ? static_cast<int>(count) : kSize, stream, first, out);
}

void encode_values(int bits, const float* v, int64_t count, const Stream& stream, uint8_t* out) {
  (bits == 8 ? encode_groups<8> : encode_groups<4>)(v, count, stream, out);
}

bool decode_values(int bits, const uint8_t* in, int64_t count, float* v) {
  const int size = static_cast<int>(count);
  return bits == 8 ? decode_group<8>(in, size, v) : decode_group<4>(in, size, v);
}

void draw_words(const Stream& stream, uint32_t first, uint32_t* to) {
  for (int lane = 0; lane < 16; lane += kLanes) {
    Words words[4];
    draw(stream, first + static_cast<uint32_t>(lane), words);
    for (int w = 0; w < 4; ++w) store(to + 16 * w + lane, words[w]);
  }
}

}  // namespace

void add_value_loops(LoopTable& t) {
  t.encode_values = encode_values;
  t.decode_values = decode_values;
  t.draw_words = draw_words;
}

}  // namespace weft::compress::WEFT_ISA
