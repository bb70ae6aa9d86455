// The loops over elements, compiled once for each instruction set and chosen at run time. This header is all
// that those files share with the rest: no library header, no inline function, so that nothing compiled for a
// wide instruction set can be picked up by code that runs everywhere. Every set gives the same bits: no sum
// depends on the width of a vector, and products and sums are rounded one by one (-ffp-contract=off).
#pragma once

#include <stdint.h>

namespace weft::compress {

// A stream of Philox blocks: block i is philox({i, tag, high0, high1}, key).
struct Stream {
  uint32_t key[2];
  uint32_t tag, high[2];
  uint32_t first;  // of Blocks: the stream's block with which it begins
};

constexpr uint32_t kBins = 2048;
constexpr int64_t kBlock = 128;  // numbers in a block of Blocks, and under one pair of scales of Values

// Bytes of a payload lie at any address.
struct LoopTable {
  const char* isa;

  // Conversions return whether all of x was finite; y is written either way.
  bool (*to_half)(const float* x, uint8_t* y, int64_t count);  // two bytes each
  bool (*from_half)(const uint8_t* x, float* y, int64_t count);
  bool (*to_bfloat)(const float* x, uint8_t* y, int64_t count);
  bool (*from_bfloat)(const uint8_t* x, float* y, int64_t count);
  bool (*all_finite)(const float* x, int64_t count);
  bool (*all_below_infinity)(const float* x, int64_t count);  // no NaN, no +Inf
  // Blocks of `bits` 8, 6, 5, 4 or 3; encode returns whether x was finite, decode whether the scales were.
  bool (*encode_blocks)(int bits, const float* x, int64_t count, const Stream& stream, uint8_t* out);
  bool (*decode_blocks)(int bits, const uint8_t* in, int64_t count, const Stream& stream, float* out);
  // A bit for each element that is not zero, and those elements one after the other; returns their number.
  // `to` has room for 16 more than there are elements.
  int64_t (*gather_nonzero)(const float* x, int64_t count, uint8_t* mask, float* to);
  // The inverse, in place: the values stand at the end of out.
  void (*scatter_nonzero)(const uint8_t* mask, int64_t count, int64_t values, float* out);

  // Index (from `first` on) and bits of the elements whose magnitude has at least the bits `threshold`, in
  // order; returns their number. Both arrays have room for 16 more.
  int64_t (*take_at_least)(const float* x, int64_t count, uint32_t first, uint32_t threshold, uint32_t* index,
                           uint32_t* bits);
  // Of such pairs, those of at least another threshold, in place.
  int64_t (*keep_at_least)(uint32_t* index, uint32_t* bits, int64_t count, uint32_t threshold);
  // The magnitudes in [low, high]; `to` may be `bits`, and has room for 16 more.
  int64_t (*take_between)(const uint32_t* bits, int64_t count, uint32_t low, uint32_t high, uint32_t* to);
  uint32_t (*largest_magnitude)(const uint32_t* bits, int64_t count);  // REQUIRES: count > 0
  // bins[b] = how many magnitudes m have (m - low) >> shift == b, for b < kBins.
  void (*count_bins)(const uint32_t* bits, int64_t count, uint32_t low, uint32_t shift, uint32_t* bins);

  // Groups of kBlock values of `bits` 8 or 4, the last may be shorter; decode takes one group.
  void (*encode_values)(int bits, const float* v, int64_t count, const Stream& stream, uint8_t* out);
  bool (*decode_values)(int bits, const uint8_t* in, int64_t count, float* v);
  // to[16 w + l] = word w of the stream's block first + l, for 16 blocks.
  void (*draw_words)(const Stream& stream, uint32_t first, uint32_t* to);

  // sums[0] += |x - y|^2, sums[1] += |x|^2
  void (*error_sums)(const float* x, const float* y, int64_t count, double* sums);
};

// The widest set that this processor and this build have. Immutable.
const LoopTable& loops();
// For tests: the one named ("baseline", "v3", "v4"); null where the processor or the build lacks it.
const LoopTable* loops_for(const char* isa);

// For tests: while it lives, loops() on this thread is the set given.
class ForcedLoops {
 public:
  explicit ForcedLoops(const LoopTable& table);
  ~ForcedLoops();
  ForcedLoops(const ForcedLoops&) = delete;
  ForcedLoops& operator=(const ForcedLoops&) = delete;

 private:
  const LoopTable* before_;
};

}  // namespace weft::compress
