// A data set that was opened, read as the loader does.
#pragma once

#include <array>
#include <vector>

#include "base/check.h"
#include "data/dataset.h"

namespace weft::fuzz {

inline void read_samples(const data::Dataset& dataset) {
  WEFT_CHECK(dataset.sample_count() >= 1 && !dataset.describe().empty());
  const std::array<uint32_t, 2> samples{dataset.sample_count() - 1, 0};
  for (size_t column = 0; column < dataset.columns().size(); ++column) {
    const auto size = static_cast<size_t>(dataset.columns()[column].sample.bytes().value);
    if (size > 1 << 20) continue;
    std::vector<std::byte> out(2 * size);
    (void)dataset.read(column, samples, out);  // damage may show only here
  }
}

}  // namespace weft::fuzz
