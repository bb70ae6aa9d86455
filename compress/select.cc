// A threshold is guessed from a sample, low enough that a little more than k elements lie above it; one pass
// takes those, and the exact threshold is found among them. Where the guess was too high, or too low, or is
// not worth the while, the exact threshold is found over the whole tensor. What is selected is the same
// either way.
#include "compress/select.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace weft::compress {
namespace {

constexpr size_t kVector = 16;             // what loops may write beyond the last
constexpr size_t kChunk = 16384;           // elements between two looks at what room is left
constexpr size_t kRuns = 16384, kRun = 4;  // the sample: runs of neighbours, which share a line of cache
constexpr size_t kSample = kRuns * kRun;
constexpr uint32_t kMagnitude = 0x7fffffffu;

int64_t length(auto span) { return static_cast<int64_t>(span.size()); }

std::span<const uint32_t> bits_of(std::span<const float> x) {
  return {reinterpret_cast<const uint32_t*>(x.data()), x.size()};  // only read by loops, as they lie
}

struct Threshold {
  uint32_t bits = 0;  // of the k-th largest magnitude
  size_t above = 0;   // how many are larger
  size_t equal = 0;   // how many are equal
};

// The k-th largest magnitude of x, none of which is below `low`, by bins of a range that shrinks: at most
// three passes, and all but the first over what lies in the last bin, once that fits into `room`.
Threshold kth_largest(std::span<const uint32_t> x, size_t k, uint32_t low, std::span<uint32_t> room) {
  uint32_t high = loops().largest_magnitude(x.data(), length(x));
  for (size_t above = 0;;) {
    const auto shift = static_cast<uint32_t>(std::max<int>(std::bit_width(high - low), 11) - 11);
    uint32_t bins[kBins];
    loops().count_bins(x.data(), length(x), low, shift, bins);
    uint32_t bin = (high - low) >> shift;
    for (; above + bins[bin] < k; --bin) above += bins[bin];
    low += bin << shift;
    high = low + ((1u << shift) - 1);
    if (shift == 0) return {low, above, bins[bin]};
    if (bins[bin] + kVector > room.size()) continue;
    x = room.first(static_cast<size_t>(loops().take_between(x.data(), length(x), low, high, room.data())));
  }
}

// Of pairs that are at least the threshold, in order, those above it and the first `ties` of those equal to
// it.
size_t drop_ties(Selected pairs, uint32_t threshold, size_t& ties) {
  size_t kept = 0;
  for (size_t i = 0; i < pairs.index.size(); ++i) {
    const uint32_t index = pairs.index[i], bits = pairs.bits[i];
    const size_t equal = (bits & kMagnitude) == threshold ? 1 : 0, tie = equal & (ties != 0 ? 1 : 0);
    ties -= tie;
    pairs.index[kept] = index;  // without a branch: which are equal cannot be foreseen
    pairs.bits[kept] = bits;
    kept += 1 - equal + tie;
  }
  return kept;
}

// A threshold that very likely has k elements or a few more at it or above; 0 where a guess is of no use. The
// runs lie in equal stretches, at places that follow from the number of the stretch alone.
uint32_t guess_threshold(std::span<const float> x, size_t k, std::span<uint32_t> room) {
  if (x.size() < 2 * kSample) return 0;
  const auto bits = bits_of(x);
  const size_t stretch = x.size() / kRuns;
  for (size_t run = 0; run < kRuns; ++run) {
    const uint32_t hash = static_cast<uint32_t>(run + 1) * 0x9E3779B9u;
    const size_t at = run * stretch + ((static_cast<uint64_t>(hash) * (stretch - kRun + 1)) >> 32);
    std::copy_n(&bits[at], kRun, &room[run * kRun]);
  }
  // Six deviations above the mean: neighbours are alike, so that they count for less than as many draws.
  const double mean = static_cast<double>(k) / static_cast<double>(x.size()) * static_cast<double>(kSample);
  const auto rank = static_cast<size_t>(mean + 6 * std::sqrt(mean) + 8);
  return rank < kSample ? kth_largest(room.first(kSample), rank, 0, room).bits : 0;
}

// Pairs at or above the threshold; nothing if they are fewer than k, or more than there is room for.
std::optional<size_t> take_candidates(std::span<const float> x, size_t k, uint32_t threshold, Selected room) {
  size_t found = 0;
  for (size_t at = 0; at < x.size(); at += kChunk) {
    const size_t count = std::min(kChunk, x.size() - at);
    if (found + count + kVector > room.index.size()) return std::nullopt;
    found += static_cast<size_t>(loops().take_at_least(x.data() + at, static_cast<int64_t>(count),
                                                       static_cast<uint32_t>(at), threshold,
                                                       &room.index[found], &room.bits[found]));
  }
  return found >= k ? std::optional(found) : std::nullopt;
}

size_t select_by_guess(size_t k, size_t found, uint32_t guess, Selected pairs, std::span<uint32_t> room) {
  const Threshold exact = kth_largest(pairs.bits.first(found), k, guess, room);
  const auto kept = static_cast<size_t>(
      loops().keep_at_least(pairs.index.data(), pairs.bits.data(), static_cast<int64_t>(found), exact.bits));
  if (kept == k) return k;
  size_t ties = k - exact.above;
  return drop_ties({pairs.index.first(kept), pairs.bits.first(kept)}, exact.bits, ties);
}

size_t select_exactly(std::span<const float> x, size_t k, Selected pairs, std::span<uint32_t> room) {
  const Threshold exact = kth_largest(bits_of(x), k, 0, room);
  size_t kept = 0, ties = k - exact.above;
  for (size_t at = 0; at < x.size(); at += kChunk) {
    const Selected rest = {pairs.index.subspan(kept), pairs.bits.subspan(kept)};
    const auto found = static_cast<size_t>(
        loops().take_at_least(x.data() + at, static_cast<int64_t>(std::min(kChunk, x.size() - at)),
                              static_cast<uint32_t>(at), exact.bits, rest.index.data(), rest.bits.data()));
    kept += exact.above + exact.equal == k
                ? found
                : drop_ties({rest.index.first(found), rest.bits.first(found)}, exact.bits, ties);
  }
  return kept;
}

size_t candidate_room(size_t count, size_t k) {
  return std::min(count, k + k / 2 + count / 2048 + kSample) + kChunk + kVector;
}

}  // namespace

size_t select_scratch_bytes(size_t count, size_t k) {
  return 2 * Arena::padded<uint32_t>(candidate_room(count, k)) + Arena::padded<uint32_t>(kSample + kVector);
}

Selected select_largest(std::span<const float> x, size_t k, Arena& scratch) {
  const size_t most = candidate_room(x.size(), k);
  const Selected pairs = {scratch.take<uint32_t>(most), scratch.take<uint32_t>(most)};
  const auto room = scratch.take<uint32_t>(kSample + kVector);
  const uint32_t guess = guess_threshold(x, k, room);
  const auto found = guess > 0 ? take_candidates(x, k, guess, pairs) : std::nullopt;
  const size_t kept =
      found ? select_by_guess(k, *found, guess, pairs, room) : select_exactly(x, k, pairs, room);
  WEFT_CHECK(kept == k);
  return {pairs.index.first(k), pairs.bits.first(k)};
}

}  // namespace weft::compress
