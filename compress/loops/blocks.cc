// Blocks (compress/blocks.cc says what they are): the rotation, the rounding and the packing.
#include "compress/loops/compact.h"
#include "compress/loops/random.h"

namespace weft::compress::WEFT_ISA {
namespace {

constexpr int kSize = static_cast<int>(kBlock);
constexpr int kVectors = kSize / kLanes;

// The codes of a block are eight units of 16 bytes, in registers: through memory, what is written in one
// width and read in another waits.
constexpr int kUnits = kSize / 16;
typedef uint8_t Unit __attribute__((vector_size(16)));
typedef uint64_t UnitWords __attribute__((vector_size(16)));
typedef Unit UnitInMemory __attribute__((aligned(1), may_alias));

// Before it is rotated, element i changes its sign where the pairs of bits (1,0), (3,2), (5,4) of i that are
// both set are odd in number. This is a bent function: of a mean, or of any other Walsh function, the
// rotation leaves the same on every coefficient, instead of all on one, which would set the scale.
constexpr bool is_flipped(int i) {
  const int pairs = i & (i >> 1) & 0x15;
  return ((pairs ^ (pairs >> 2) ^ (pairs >> 4)) & 1) != 0;
}
constexpr float kShrink = 0x1p-7f;  // 1 / kSize: no sum of a block overflows
struct Flips {
  alignas(64) float shrink[kSize];   // +-kShrink
  alignas(64) uint32_t bits[kSize];  // the sign alone
};
constexpr Flips kFlips = [] {
  Flips flips = {};
  for (int i = 0; i < kSize; ++i) {
    flips.shrink[i] = is_flipped(i) ? -kShrink : kShrink;
    flips.bits[i] = is_flipped(i) ? 0x80000000u : 0;
  }
  return flips;
}();

template <typename T, T... kI>
struct Sequence {};
#if defined(__clang__)
template <int kCount>
using UpTo = __make_integer_seq<Sequence, int, kCount>;
#else
template <int kCount>
using UpTo = Sequence<int, __integer_pack(kCount)...>;
#endif

// Lane i of the result is lane i ^ kStride.
template <int kStride, typename V, int... kI>
WEFT_LOOP_INLINE V swapped(V v, Sequence<int, kI...>) {
  return __builtin_shufflevector(v, v, (kI ^ kStride)...);
}

// a + b * sign. Of a product with 1 or -1 nothing is rounded off, so that fusing it changes no bit.
WEFT_LOOP_INLINE Floats add_product(Floats a, Floats b, Floats sign) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_fmadd_ps(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(sign),
                                                  reinterpret_cast<__m512>(a)));
#elif defined(__FMA__) && defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_fmadd_ps(reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(sign),
                                                  reinterpret_cast<__m256>(a)));
#else
  return a + b * sign;
#endif
}

// The butterflies (a, b) -> (a + b, a - b) of lanes kStride apart, and of vectors `stride` apart. Their order
// is that of the strides, on every set: floats are rounded after each.
template <int kStride>
WEFT_LOOP_INLINE void butterflies_within(Floats& v) {
  if constexpr (kStride < kLanes) {
    Floats sign = {};
    for (int lane = 0; lane < kLanes; ++lane) sign[lane] = (lane & kStride) != 0 ? -1.0f : 1.0f;
    v = add_product(swapped<kStride>(v, UpTo<kLanes>()), v, sign);
  }
}
// Of kSpan vectors from `v` on.
template <int kStride, int kSpan>
WEFT_LOOP_INLINE void butterflies_across(Floats* v) {
#pragma GCC unroll 32
  for (int r = 0; r < kSpan; ++r)
    if ((r & kStride) == 0) {
      const Floats a = v[r], b = v[r + kStride];
      v[r] = a + b;
      v[r + kStride] = a - b;
    }
}
// v = H v, without a factor. As many vectors at a time as there are registers for.
template <int kCount>
WEFT_LOOP_INLINE void rotate(Floats* v) {
  // NOLINTNEXTLINE(bugprone-branch-clone): it is one number for a kCount of 8, and for no other
  constexpr int kGroup = kCount < 8 ? kCount : 8;
#pragma GCC unroll 4
  for (int from = 0; from < kCount; from += kGroup) {
#pragma GCC unroll 8
    for (int r = from; r < from + kGroup; ++r) {
      butterflies_within<1>(v[r]);
      butterflies_within<2>(v[r]);
      butterflies_within<4>(v[r]);
      butterflies_within<8>(v[r]);
      butterflies_within<16>(v[r]);
    }
    butterflies_across<1, kGroup>(v + from);
    if constexpr (kGroup > 2) butterflies_across<2, kGroup>(v + from);
    if constexpr (kGroup > 4) butterflies_across<4, kGroup>(v + from);
  }
  if constexpr (kCount > 8) butterflies_across<8, kCount>(v);
  if constexpr (kCount > 16) butterflies_across<16, kCount>(v);
}

WEFT_LOOP_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
WEFT_LOOP_INLINE int32_t largest_lane(Ints v) {
  v = larger(v, swapped<1>(v, UpTo<kLanes>()));
  v = larger(v, swapped<2>(v, UpTo<kLanes>()));
  if constexpr (kLanes > 4) v = larger(v, swapped<4>(v, UpTo<kLanes>()));
  if constexpr (kLanes > 8) v = larger(v, swapped<8>(v, UpTo<kLanes>()));
  return v[0];
}

// Numbers in [0, 255] as bytes.
WEFT_LOOP_INLINE void narrow(const Ints* v, Unit* units) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int i = 0; i < kUnits; ++i)
    units[i] = reinterpret_cast<Unit>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v[i])));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i += 4) {
    const auto part = [&](int j) __attribute__((always_inline)) {
      return reinterpret_cast<__m256i>(v[i + j]);
    };
    const __m256i low = _mm256_packs_epi32(part(0), part(1)), high = _mm256_packs_epi32(part(2), part(3));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    units[i / 2] = reinterpret_cast<Unit>(_mm256_castsi256_si128(bytes));
    units[i / 2 + 1] = reinterpret_cast<Unit>(_mm256_extracti128_si256(bytes, 1));
  }
#elif defined(__SSE2__)
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; i += 4) {
    const auto part = [&](int j) __attribute__((always_inline)) {
      return reinterpret_cast<__m128i>(v[i + j]);
    };
    const __m128i low = _mm_packs_epi32(part(0), part(1)), high = _mm_packs_epi32(part(2), part(3));
    units[i / 4] = reinterpret_cast<Unit>(_mm_packus_epi16(low, high));
  }
#else
  for (int i = 0; i < kSize; ++i) units[i / 16][i % 16] = static_cast<uint8_t>(v[i / kLanes][i % kLanes]);
#endif
}

// Codes as numbers.
WEFT_LOOP_INLINE void widen(const Unit* units, Ints* v) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int i = 0; i < kUnits; ++i)
    v[i] = reinterpret_cast<Ints>(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(units[i])));
#elif defined(__AVX2__)
#pragma GCC unroll 8
  for (int i = 0; i < kUnits; ++i) {
    const auto unit = reinterpret_cast<__m128i>(units[i]);
    v[2 * i] = reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(unit));
    v[2 * i + 1] = reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_srli_si128(unit, 8)));
  }
#elif defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
#pragma GCC unroll 8
  for (int i = 0; i < kUnits; ++i) {
    const auto unit = reinterpret_cast<__m128i>(units[i]);
    const __m128i low = _mm_unpacklo_epi8(unit, zero), high = _mm_unpackhi_epi8(unit, zero);
    v[4 * i] = reinterpret_cast<Ints>(_mm_unpacklo_epi16(low, zero));
    v[4 * i + 1] = reinterpret_cast<Ints>(_mm_unpackhi_epi16(low, zero));
    v[4 * i + 2] = reinterpret_cast<Ints>(_mm_unpacklo_epi16(high, zero));
    v[4 * i + 3] = reinterpret_cast<Ints>(_mm_unpackhi_epi16(high, zero));
  }
#else
  for (int i = 0; i < kSize; ++i) v[i / kLanes][i % kLanes] = units[i / 16][i % 16];
#endif
}

// The scale of a block whose largest coefficient has magnitude `largest`: a bfloat rounded up, so that
// nothing is clipped, and not below 2^-110, so that its reciprocal is a number.
template <int kBits>
WEFT_LOOP_INLINE float scale_of(float largest) {
  constexpr float kLevels = (1 << kBits) - 1;
  if (largest == 0.0f) return 0.0f;
  const float exact = largest / kLevels, least = 0x1p-110f;
  return float_of((bits_of(exact > least ? exact : least) + 0xffffu) & 0xffff0000u);
}

// Codes and scale of one block; false if it is not finite. Coefficient C = sum of +-x / 128, as a code
// (C / scale + 2^bits - 1) / 2, is rounded to nearest after (u - 127.5) / 256 was added, u its random byte.
template <int kBits>
WEFT_LOOP_INLINE bool encode_block(const float* x, const Stream& stream, uint32_t first, Unit* q,
                                   float& scale) {
  constexpr int32_t kTop = (1 << kBits) - 1;
  Floats v[kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kVectors; ++r) v[r] = load(x + r * kLanes) * load(kFlips.shrink + r * kLanes);
  rotate<kVectors>(v);
  Ints sizes = {};
#pragma GCC unroll 32
  for (int r = 0; r < kVectors; ++r)
    sizes = larger(sizes, reinterpret_cast<Ints>(reinterpret_cast<Words>(v[r]) & kMagnitude));
  const auto largest = static_cast<uint32_t>(largest_lane(sizes));
  if (largest >= kInfinity) return false;  // each element is part of each sum
  scale = scale_of<kBits>(float_of(largest));
  // To 2^-16 of a code. A little less than that, so that rounding in scale and factor cannot lead beyond
  // kTop; nor can half a code, less 2^-9, that is added at most.
  const float factor = scale == 0.0f ? 0.0f : 0x1p15f * (1 - 0x1p-22f) / scale;

  Words random[kVectors];
  draw_bytes(stream, first, random);
  Ints codes[kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kVectors; ++r) {
    const Ints fine = __builtin_convertvector(v[r] * factor, Ints) + kTop * 32768;
    codes[r] = (fine + reinterpret_cast<Ints>(random[r] << 8 | 0x80u)) >> 16;
  }
  narrow(codes, q);
  return true;
}

// The inverse, with what was added taken off again. In units of scale / 256 the coefficients are odd numbers
// below 2^16, of which 128 add up exactly in a float; each result is rounded once.
template <int kBits>
WEFT_LOOP_INLINE void decode_block(const Unit* q, const Words* random, float scale, float* out) {
  constexpr int32_t kTop = (1 << kBits) - 1;
  Ints codes[kVectors];
  widen(q, codes);
  Floats v[kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kVectors; ++r)
    v[r] = __builtin_convertvector(
        (codes[r] << 9) - reinterpret_cast<Ints>(random[r] << 1) + (255 - 256 * kTop), Floats);
  rotate<kVectors>(v);
  const float part = scale * 0x1p-8f;
#pragma GCC unroll 32
  for (int r = 0; r < kVectors; ++r)
    store(out + r * kLanes,
          reinterpret_cast<Floats>(reinterpret_cast<Words>(v[r] * part) ^ load(kFlips.bits + r * kLanes)));
  if (scale <= 0x1p111f) return;
  for (int i = 0; i < kSize; ++i) {  // 128 * 256 * scale may be more than a float holds
    const uint32_t size = bits_of(out[i]) & kMagnitude;
    if (size >= kInfinity) out[i] = float_of(bits_of(out[i]) - size + kInfinity - 1);
  }
}

// Codes are cut into planes of 8, 4, 2 or 1 bits: 6 = 4 + 2, 5 = 4 + 1, 3 = 2 + 1, lower bits first. Byte i
// of a plane of w bits holds elements i, i + size * w / 8, i + 2 * size * w / 8 and so on, lower bits first.
// In a whole block these are bytes of one place in different units.
template <int kWidth>
constexpr uint64_t kEachByte = 0x0101010101010101u * ((1 << kWidth) - 1);

WEFT_LOOP_INLINE UnitWords load_unit(const uint8_t* in) {
  return reinterpret_cast<UnitWords>(*reinterpret_cast<const UnitInMemory*>(in));
}

template <int kWidth, int kShift>
WEFT_LOOP_INLINE uint8_t* pack_plane(const Unit* q, uint8_t* out) {
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) {
    UnitWords plane = {};
#pragma GCC unroll 8
    for (int part = 0; part < 8 / kWidth; ++part)
      plane |= (reinterpret_cast<UnitWords>(q[i + part * kWidth]) >> kShift & kEachByte<kWidth>) << (part *
                                                                                                     kWidth);
    *reinterpret_cast<UnitInMemory*>(out + 16 * i) = reinterpret_cast<Unit>(plane);
  }
  return out + 16 * kWidth;
}
template <int kWidth, int kShift>
WEFT_LOOP_INLINE const uint8_t* unpack_plane(const uint8_t* in, Unit* q) {
#pragma GCC unroll 8
  for (int u = 0; u < kUnits; ++u) {
    const UnitWords plane = load_unit(in + 16 * (u % kWidth)) >> (u / kWidth * kWidth) & kEachByte<kWidth>;
    const auto bits = reinterpret_cast<Unit>(plane << kShift);
    q[u] = kShift == 0 ? bits : q[u] | bits;
  }
  return in + 16 * kWidth;
}

// The same for a block of any size, a byte at a time.
template <int kWidth, int kShift>
WEFT_LOOP_INLINE uint8_t* pack_plane(const uint8_t* q, int size, uint8_t* out) {
  const int stride = size * kWidth / 8;
  for (int i = 0; i < stride; ++i) {
    int byte = 0;
    for (int part = 0; part < 8 / kWidth; ++part)
      byte |= ((q[i + part * stride] >> kShift) & ((1 << kWidth) - 1)) << (part * kWidth);
    out[i] = static_cast<uint8_t>(byte);
  }
  return out + stride;
}
template <int kWidth, int kShift>
WEFT_LOOP_INLINE const uint8_t* unpack_plane(const uint8_t* in, int size, uint8_t* q) {
  const int stride = size * kWidth / 8;
  for (int i = 0; i < size; ++i) {
    const int bits = ((in[i % stride] >> (i / stride * kWidth)) & ((1 << kWidth) - 1)) << kShift;
    q[i] = static_cast<uint8_t>(kShift == 0 ? bits : q[i] | bits);
  }
  return in + stride;
}

template <int kBits, typename... Q>
WEFT_LOOP_INLINE uint8_t* pack(uint8_t* out, const Q&... q) {
  if constexpr (kBits == 8) return pack_plane<8, 0>(q..., out);
  if constexpr (kBits == 6) return pack_plane<2, 4>(q..., pack_plane<4, 0>(q..., out));
  if constexpr (kBits == 5) return pack_plane<1, 4>(q..., pack_plane<4, 0>(q..., out));
  if constexpr (kBits == 4) return pack_plane<4, 0>(q..., out);
  if constexpr (kBits == 3) return pack_plane<1, 2>(q..., pack_plane<2, 0>(q..., out));
}
template <int kBits, typename... Q>
WEFT_LOOP_INLINE const uint8_t* unpack(const uint8_t* in, const Q&... q) {
  if constexpr (kBits == 8) return unpack_plane<8, 0>(in, q...);
  if constexpr (kBits == 6) return unpack_plane<2, 4>(unpack_plane<4, 0>(in, q...), q...);
  if constexpr (kBits == 5) return unpack_plane<1, 4>(unpack_plane<4, 0>(in, q...), q...);
  if constexpr (kBits == 4) return unpack_plane<4, 0>(in, q...);
  if constexpr (kBits == 3) return unpack_plane<1, 2>(unpack_plane<2, 0>(in, q...), q...);
}

WEFT_LOOP_INLINE uint8_t* put_scale(uint8_t* out, float scale) {
  const uint16_t bits = static_cast<uint16_t>(bits_of(scale) >> 16);
  __builtin_memcpy(out, &bits, 2);
  return out + 2;
}
WEFT_LOOP_INLINE bool get_scale(const uint8_t* in, float& scale) {
  uint16_t bits;
  __builtin_memcpy(&bits, in, 2);
  scale = float_of(static_cast<uint32_t>(bits) << 16);
  return bits < 0x7f80u;  // neither negative nor infinite
}

// The smallest power of two, at least 8, that the last `rest` numbers fit in.
WEFT_LOOP_INLINE int tail_size(int64_t rest) {
  int size = 8;
  while (size < rest) size *= 2;
  return size;
}

template <int kBits>
bool encode_blocks(const float* x, int64_t count, const Stream& stream, uint8_t* out) {
  Unit q[kUnits];
  float scale;
  uint32_t first = stream.first;
  for (; count >= kSize; count -= kSize, x += kSize, first += 8) {
    if (!encode_block<kBits>(x, stream, first, q, scale)) return false;
    out = pack<kBits>(put_scale(out, scale), static_cast<const Unit*>(q));
  }
  if (count == 0) return true;
  // Where only the first 2^m elements are not zero, coefficients repeat after 2^m: the others need not be
  // sent.
  alignas(64) float padded[kSize] = {};
  __builtin_memcpy(padded, x, static_cast<size_t>(count) * sizeof(float));
  if (!encode_block<kBits>(padded, stream, first, q, scale)) return false;
  uint8_t codes[kSize];
  __builtin_memcpy(codes, q, kSize);
  pack<kBits>(put_scale(out, scale), static_cast<const uint8_t*>(codes), tail_size(count));
  return true;
}

template <int kBits>
bool decode_blocks(const uint8_t* in, int64_t count, const Stream& stream, float* out) {
  Unit q[kUnits];
  Words random[kVectors];
  float scale;
  uint32_t first = stream.first;
  for (; count >= kSize; count -= kSize, out += kSize, first += 8) {
    if (!get_scale(in, scale)) return false;
    in = unpack<kBits>(in + 2, static_cast<Unit*>(q));
    draw_bytes(stream, first, random);
    decode_block<kBits>(q, random, scale, out);
  }
  if (count == 0) return true;
  if (!get_scale(in, scale)) return false;
  const int size = tail_size(count);
  uint8_t codes[kSize];
  alignas(64) uint32_t added[kSize];  // what coefficients had that were not sent is not known: they repeat
  unpack<kBits>(in + 2, size, static_cast<uint8_t*>(codes));
  draw_bytes(stream, first, random);
  for (int r = 0; r < kVectors; ++r) store(added + r * kLanes, random[r]);
  for (int i = size; i < kSize; ++i) {
    codes[i] = codes[i - size];
    added[i] = added[i - size];
  }
  for (int r = 0; r < kVectors; ++r) random[r] = load(added + r * kLanes);
  __builtin_memcpy(q, codes, kSize);
  alignas(64) float padded[kSize];
  decode_block<kBits>(q, random, scale, padded);
  __builtin_memcpy(out, padded, static_cast<size_t>(count) * sizeof(float));
  return true;
}

bool encode_any(int bits, const float* x, int64_t count, const Stream& stream, uint8_t* out) {
  return bits == 8   ? encode_blocks<8>(x, count, stream, out)
         : bits == 6 ? encode_blocks<6>(x, count, stream, out)
         : bits == 5 ? encode_blocks<5>(x, count, stream, out)
         : bits == 4 ? encode_blocks<4>(x, count, stream, out)
                     : encode_blocks<3>(x, count, stream, out);
}
bool decode_any(int bits, const uint8_t* in, int64_t count, const Stream& stream, float* out) {
  return bits == 8   ? decode_blocks<8>(in, count, stream, out)
         : bits == 6 ? decode_blocks<6>(in, count, stream, out)
         : bits == 5 ? decode_blocks<5>(in, count, stream, out)
         : bits == 4 ? decode_blocks<4>(in, count, stream, out)
                     : decode_blocks<3>(in, count, stream, out);
}

// A bit for each element that is not zero, lowest first, and those elements one after the other. `to` has
// room for 16 more than there are elements.
int64_t gather_nonzero(const float* x, int64_t count, uint8_t* mask, float* to) {
  int64_t found = 0, i = 0;
  for (; i < in_vectors(count); i += kLanes) {
    const Words bits = reinterpret_cast<Words>(load(x + i));
    const uint32_t which = mask_at_least(bits & kMagnitude, all(1));
    __builtin_memcpy(mask + i / 8, &which, kLanes / 8);  // little-endian
    put(reinterpret_cast<uint32_t*>(to) + found, bits, which);
    found += __builtin_popcount(which);
  }
  for (; i < count; i += 8) {
    uint32_t byte = 0;
    for (int64_t j = i; j < i + 8 && j < count; ++j) {
      const uint32_t here = (bits_of(x[j]) & kMagnitude) != 0 ? 1u : 0u;
      to[found] = x[j];
      found += here;
      byte |= here << (j - i);
    }
    mask[i / 8] = static_cast<uint8_t>(byte);
  }
  return found;
}

// The inverse, in place: the values stand at the end of out[count], and each is read before its place is
// written, for no value moves up.
void scatter_nonzero(const uint8_t* mask, int64_t count, int64_t values, float* out) {
  const float *from = out + (count - values), *end = out + count;
  int64_t i = 0;
  for (; i < in_vectors(count) && end - from >= kLanes; i += kLanes) {
    uint32_t which = 0;
    __builtin_memcpy(&which, mask + i / 8, kLanes / 8);  // little-endian
    store(reinterpret_cast<uint32_t*>(out + i), spread(reinterpret_cast<Words>(load(from)), which));
    from += __builtin_popcount(which);
  }
  for (; i < count; ++i) {
    const bool here = (mask[i / 8] >> (i % 8) & 1) != 0;
    out[i] = here ? *from : 0.0f;
    from += here ? 1 : 0;
  }
}

}  // namespace

void add_block_loops(LoopTable& t) {
  t.encode_blocks = encode_any;
  t.decode_blocks = decode_any;
  t.gather_nonzero = gather_nonzero;
  t.scatter_nonzero = scatter_nonzero;
}

}  // namespace weft::compress::WEFT_ISA
