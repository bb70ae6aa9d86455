// How a tensor of float32 is written for a slow link: a Codec is the choice, encode and decode do it. What a
// payload holds is a pure function of the tensor, the codec and the Draw: never of threads, of the
// instruction set, or of what was encoded before. So a tensor that is sent again, or computed again
// elsewhere, is the same bytes. Nothing here keeps state from step to step; error feedback is its caller's.
//
// Payloads are little-endian and carry neither the codec nor the count: both ends know them. What each kind
// writes stands at the head of its file (floats.cc, blocks.cc, top_k.cc, random_k.cc, positions.h, values.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

// Every function may be called by any thread; what it needs beyond its arguments is constant.
namespace weft::compress {

enum class Kind : uint8_t {
  Dense = 0,     // float32 as it is; the only kind that carries infinities and NaN
  Float16 = 1,   // nearest, ties to even; beyond +-65504 the largest finite value
  BFloat16 = 2,  // nearest, ties to even; likewise
  // Blocks of 128, rotated by a Hadamard transform, one scale each, `bits` a number; unbiased, the error
  // independent of the tensor.
  Blocks = 3,
  TopK = 4,     // the k largest magnitudes, optionally over a floor of Blocks; biased without the floor
  RandomK = 5,  // k numbers drawn at random, scaled up; unbiased
};

// How TopK and RandomK write the numbers that they send.
enum class Values : uint8_t {
  F32 = 0,
  F16 = 1,  // as Float16: rounded to nearest, which is a small bias
  I8 = 2,   // sign and 7 bits between the smallest and the largest magnitude of 128; unbiased
  I4 = 3,   // sign and 3 bits, likewise
};

// A plain value. A field that a kind does not use keeps its default, so that equal codecs compare equal.
struct Codec {
  Kind kind = Kind::Dense;
  uint8_t bits = 0;  // Blocks: 8, 6, 5, 4 or 3
  // Blocks: a bit for each number says whether it is zero, and only the others are coded: for tensors that a
  // Relu left half empty. -0 becomes +0.
  bool masks_zeros = false;
  Values values = Values::F32;  // TopK, RandomK
  uint8_t floor_bits = 0;       // TopK: 0, or the bits (8, 6, 5, 4, 3) of the Blocks that carry the remainder
  uint32_t per_million = 0;     // TopK, RandomK: density k / n in millionths, 1 to 1'000'000
  bool operator==(const Codec&) const = default;
};

// InvalidArgument, in words, for what is no codec (from a job file, or from a peer). Everything below
// REQUIRES a codec that passed.
Status check(const Codec& codec);

// The short name that job files, benches and logs use; parse is its inverse:
//   dense fp16 bf16 int8 int6 int5 int4 int3; intNz masks zeros; topk:DENSITY:VALUES[+intN];
//   randomk:DENSITY:VALUES
// with a density in (0, 1] of at most six decimals and fp32, fp16, int8 or int4 as values:
// topk:0.01:int8+int4.
std::string name(const Codec& codec);
Result<Codec> parse(std::string_view name);  // InvalidArgument says what would do
std::string describe(const Codec& codec);    // for people: "top 1% as int8 over int4"

// k of TopK and RandomK: count * density to nearest, at least 1; 0 of nothing.
size_t kept(const Codec& codec, size_t count);

// Whether what is read of a tensor's part, that begins with a multiple of 128, hangs on that part alone: it
// is what encode and decode make of it with Draw::first.
bool is_by_parts(const Codec& codec);
// Whether every payload of a count has the same length. All but Blocks with masks_zeros.
bool is_fixed_size(const Codec& codec);
// The length of a payload; where it is not fixed, the most that it can be. REQUIRES: count <= kMaxCount.
size_t wire_bytes(const Codec& codec, size_t count);
inline constexpr size_t kMaxCount = size_t{1} << 31;

inline constexpr size_t kDrawBlock = 128;  // numbers of a block, of which parts are made
// Names the random numbers of one encoding (Philox, base/rng.h): no two encodings of a run have the same.
// Both ends have the same: what they add to a number, or which of them they send, is not written.
struct Draw {
  uint64_t seed = 0, step = 0;
  uint32_t microbatch = 0, edge = 0;
  bool backward = false;
  uint16_t replica = 0;
  // Of a tensor's part, by itself: with which block (kDrawBlock) of it that begins. Where is_by_parts().
  uint32_t first = 0;
  bool operator==(const Draw&) const = default;
};

// Working memory that is kept from call to call. It grows to the largest scratch_bytes asked of it and no
// further. One thread at a time.
class Scratch {
 public:
  // Of the given length, aligned to 64, uninitialised; valid until the next call.
  std::span<std::byte> take(size_t bytes);
  void reserve(size_t bytes) { take(bytes); }
  size_t bytes() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_ = 0;
};
// What encode and relative_error take of a Scratch at most. For encode TopK has 12 bytes for each number
// kept, count / 256 and 1 MiB, RandomK 4 for each kept, masks_zeros and a floor 4 for each number;
// relative_error has another 4 for each number, which are only touched if it is called.
size_t scratch_bytes(const Codec& codec, size_t count);

// Writes the payload of x and returns its length, or nothing if x holds an infinity or a NaN (Dense always
// writes): it is then to be sent dense, for no other kind can say so. What `out` holds beyond the payload, or
// after nothing was returned, is unspecified.
// REQUIRES: out.size() >= wire_bytes(codec, x.size()); x and out do not overlap.
std::optional<size_t> encode(const Codec& codec, std::span<const float> x, const Draw& draw,
                             std::span<std::byte> out, Scratch& scratch);

// The inverse: out.size() is the count. Whatever the bytes are, it returns, touches nothing outside of the
// spans, allocates nothing, and what it accepts is finite (Dense passes everything). Corrupted says what is
// wrong: a length that does not fit, positions out of order or range, a value or scale that is not finite,
// bits beyond the end. `out` is unspecified after an error.
Status decode(const Codec& codec, const Draw& draw, std::span<const std::byte> payload, std::span<float> out);

// ||x - y|| / ||x|| of decode(encode(x)) = y, in double, summed in a fixed order: the same on every machine.
// 0 where both are zero, infinity where x alone is. Costs a decode and a pass over both.
// REQUIRES: payload is what encode made of x.
double relative_error(const Codec& codec, std::span<const float> x, const Draw& draw,
                      std::span<const std::byte> payload, Scratch& scratch);
double relative_error(std::span<const float> x, std::span<const float> y);  // REQUIRES: equal sizes

// No NaN and no +Inf. -Inf may be there: scores are masked with it. A pass over x.
bool are_below_infinity(std::span<const float> x);

// A cotangent may be sent at the positions at which its activation was, and then without positions of its
// own. For TopK only. Positions are ascending and below the count, k of them.

// Those of a payload; Corrupted if it holds none that are right. What else it holds is not looked at.
// REQUIRES: positions.size() == kept(codec, count).
Status positions(const Codec& codec, size_t count, std::span<const std::byte> payload,
                 std::span<uint32_t> positions);
size_t wire_bytes_at(const Codec& codec, size_t count);  // always exact
// As encode and decode. REQUIRES: positions as above: ours, or of a payload that `positions` accepted.
std::optional<size_t> encode_at(const Codec& codec, std::span<const float> x,
                                std::span<const uint32_t> positions, const Draw& draw,
                                std::span<std::byte> out, Scratch& scratch);
Status decode_at(const Codec& codec, std::span<const uint32_t> positions, const Draw& draw,
                 std::span<const std::byte> payload, std::span<float> out);

}  // namespace weft::compress
