#include "data/sample_sequence.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace weft::data {

std::vector<uint32_t> SampleSequence::indices(uint64_t step, uint32_t batch_size) {
  WEFT_CHECK(step >= 1 && batch_size >= 1);
  WEFT_CHECK(step <= std::numeric_limits<uint64_t>::max() / batch_size);
  std::vector<uint32_t> out(batch_size);
  fill((step - 1) * batch_size, out);
  return out;
}

void SampleSequence::fill(uint64_t first, std::span<uint32_t> out) {
  WEFT_CHECK(sample_count_ > 0);
  uint64_t epoch = first / sample_count_;
  auto within = static_cast<uint32_t>(first % sample_count_);
  while (!out.empty()) {
    const size_t count = std::min<size_t>(out.size(), sample_count_ - within);
    if (shuffle_) {
      const auto& order = order_of(epoch);
      std::copy_n(order.begin() + within, count, out.begin());
    } else {
      std::iota(out.begin(), out.begin() + static_cast<ptrdiff_t>(count), within);
    }
    out = out.subspan(count);
    within = 0;
    ++epoch;
  }
}

const std::vector<uint32_t>& SampleSequence::order_of(uint64_t epoch) {
  auto& slot = cache_[epoch % 2];
  if (!slot || slot->epoch != epoch) {
    slot.reset();  // the old order goes before the new one is made
    slot = Permutation{epoch, epoch_permutation(seed_, epoch, sample_count_)};
  }
  return slot->order;
}

std::optional<uint64_t> steps_of_epochs(uint64_t epochs, uint64_t sample_count, uint64_t batch_size) {
  WEFT_CHECK(batch_size > 0);
  if (sample_count != 0 && epochs > std::numeric_limits<uint64_t>::max() / sample_count) return std::nullopt;
  return epochs * sample_count / batch_size;
}

}  // namespace weft::data
