// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). A draw is a pure function of (key, counter), so that what is drawn never depends on who
// drew before, on threads, or on how a batch is cut up.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace weft {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// A stream of draws for one purpose: stream (seed, purpose), position counts up from zero.
class Rng {
 public:
  Rng(uint64_t seed, uint64_t stream)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(stream) {}

  uint32_t next_u32();
  uint64_t next_u64();
  // Uniform in [0, bound), without bias (rejection). REQUIRES: bound > 0.
  uint64_t below(uint64_t bound);
  double uniform();  // in [0, 1), 53 bits
  double normal();   // mean 0, deviation 1 (Box-Muller)

 private:
  PhiloxKey key_;
  uint64_t stream_;
  uint64_t position_ = 0;
  PhiloxBlock block_{};
  unsigned used_ = 4;
};

// The order in which the samples of one epoch are visited: Fisher-Yates, downwards, from the stream
// keyed by (seed, epoch). O(count).
std::vector<uint32_t> epoch_permutation(uint64_t seed, uint64_t epoch, uint32_t count);

}  // namespace weft
