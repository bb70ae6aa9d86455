// Which samples a step takes. The samples of a run are one endless sequence: the permutation of epoch 0, then
// of epoch 1, and so on; step s of a batch of B takes its positions (s-1) B .. s B - 1, across the borders of
// epochs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace weft::data {

// Belongs to one thread. Keeps at most two permutations (4 bytes a sample each), so that going forward costs
// O(1) a sample; going elsewhere costs one permutation.
class SampleSequence {
 public:
  // REQUIRES: sample_count > 0. File order when shuffle is false.
  SampleSequence(uint32_t sample_count, bool shuffle, uint64_t seed)
      : sample_count_(sample_count), shuffle_(shuffle), seed_(seed) {}

  // The samples of a step, counted from 1. REQUIRES: step >= 1, step * batch_size fits 64 bits.
  std::vector<uint32_t> indices(uint64_t step, uint32_t batch_size);
  // The samples at positions [first, first + out.size()).
  void fill(uint64_t first, std::span<uint32_t> out);

  uint32_t sample_count() const { return sample_count_; }
  uint64_t seed() const { return seed_; }

 private:
  struct Permutation {
    uint64_t epoch = 0;
    std::vector<uint32_t> order;
  };
  const std::vector<uint32_t>& order_of(uint64_t epoch);

  uint32_t sample_count_;
  bool shuffle_;
  uint64_t seed_;
  std::array<std::optional<Permutation>, 2> cache_;  // by the epoch's parity
};

// floor(epochs * sample_count / batch_size); nothing when the product does not fit 64 bits.
std::optional<uint64_t> steps_of_epochs(uint64_t epochs, uint64_t sample_count, uint64_t batch_size);

}  // namespace weft::data
