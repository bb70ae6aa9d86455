// Elements by their magnitude: what TopK is made of. Magnitudes are compared as the bits of floats without
// the sign, which order as the floats do.
#include "compress/loops/compact.h"

namespace weft::compress::WEFT_ISA {
namespace {

int64_t take_at_least(const float* x, int64_t count, uint32_t first, uint32_t threshold, uint32_t* index,
                      uint32_t* bits) {
  int64_t found = 0, i = 0;
  const Words limit = all(threshold), step = all(kLanes);
  Words here = upwards_from(first);
  for (; i < in_vectors(count); i += kLanes, here += step) {
    const Words own = reinterpret_cast<Words>(load(x + i));
    const uint32_t mask = mask_at_least(own & kMagnitude, limit);
    put(index + found, here, mask);
    put(bits + found, own, mask);
    found += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    const uint32_t own = bits_of(x[i]);
    index[found] = first + static_cast<uint32_t>(i);
    bits[found] = own;
    found += (own & kMagnitude) >= threshold ? 1 : 0;
  }
  return found;
}

// What is written was read before: up to here, no more was kept than read.
int64_t keep_at_least(uint32_t* index, uint32_t* bits, int64_t count, uint32_t threshold) {
  int64_t kept = 0, i = 0;
  for (; i < in_vectors(count); i += kLanes) {
    const Words own = load(bits + i), place = load(index + i);
    const uint32_t mask = mask_at_least(own & kMagnitude, all(threshold));
    put(index + kept, place, mask);
    put(bits + kept, own, mask);
    kept += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    const uint32_t own = bits[i], place = index[i];
    index[kept] = place;
    bits[kept] = own;
    kept += (own & kMagnitude) >= threshold ? 1 : 0;
  }
  return kept;
}

int64_t take_between(const uint32_t* bits, int64_t count, uint32_t low, uint32_t high, uint32_t* to) {
  int64_t found = 0, i = 0;
  for (; i < in_vectors(count); i += kLanes) {
    const Words size = load(bits + i) & kMagnitude;
    const uint32_t mask = mask_at_least(all(high - low), size - low);
    put(to + found, size, mask);
    found += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    const uint32_t size = bits[i] & kMagnitude;
    to[found] = size;
    found += size - low <= high - low ? 1 : 0;
  }
  return found;
}

uint32_t largest_magnitude(const uint32_t* bits, int64_t count) {
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const auto size = static_cast<int32_t>(bits[i] & kMagnitude);
    largest = size > largest ? size : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Four tables side by side, for neighbours that fall into one bin would wait for each other.
void count_bins(const uint32_t* bits, int64_t count, uint32_t low, uint32_t shift, uint32_t* bins) {
  uint32_t parts[4][kBins + 1] = {};
  const auto add = [&](int part, uint32_t own) __attribute__((always_inline)) {
    const uint32_t bin = ((own & kMagnitude) - low) >> shift;
    ++parts[part][bin < kBins ? bin : kBins];
  };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int part = 0; part < 4; ++part) add(part, bits[i + part]);
  for (; i < count; ++i) add(0, bits[i]);
  for (uint32_t bin = 0; bin < kBins; ++bin)
    bins[bin] = parts[0][bin] + parts[1][bin] + parts[2][bin] + parts[3][bin];
}

}  // namespace

void add_select_loops(LoopTable& t) {
  t.take_at_least = take_at_least;
  t.keep_at_least = keep_at_least;
  t.take_between = take_between;
  t.largest_magnitude = largest_magnitude;
  t.count_bins = count_bins;
}

}  // namespace weft::compress::WEFT_ISA
