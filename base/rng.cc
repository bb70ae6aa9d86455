#include "base/rng.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace weft {

uint32_t Rng::next_u32() {
  if (used_ == 4) {
    block_ = philox({static_cast<uint32_t>(position_), static_cast<uint32_t>(position_ >> 32),
                     static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                    key_);
    ++position_;
    used_ = 0;
  }
  return block_[used_++];
}

uint64_t Rng::next_u64() {
  const uint64_t low = next_u32();
  return low | (uint64_t{next_u32()} << 32);
}

uint64_t Rng::below(uint64_t bound) {
  WEFT_CHECK(bound > 0);
  const uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound: draws under it would be biased
  for (;;) {
    const uint64_t draw = next_u64();
    if (draw >= threshold) return draw % bound;
  }
}

double Rng::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

double Rng::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

std::vector<uint32_t> epoch_permutation(uint64_t seed, uint64_t epoch, uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Rng rng(seed, /*stream=*/epoch);
  for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

}  // namespace weft
