// The largest of any range of a list, in constant time: a table of the largest of each run of 1, 2, 4, ... of
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace weft::plan {

class RangeMax {
 public:
  RangeMax() = default;
  explicit RangeMax(std::vector<int64_t> list) : levels_{std::move(list)} {
    for (size_t run = 2; run <= levels_.front().size(); run *= 2) {
      const std::vector<int64_t>& halves = levels_.back();
      std::vector<int64_t> runs(levels_.front().size() - run + 1);
      for (size_t i = 0; i < runs.size(); ++i) runs[i] = std::max(halves[i], halves[i + run / 2]);
      levels_.push_back(std::move(runs));
    }
  }
  // Of [begin, end), which lies in the list; 0 where it is empty.
  int64_t of(uint32_t begin, uint32_t end) const {
    if (begin >= end) return 0;
    const auto level = static_cast<uint32_t>(std::bit_width(end - begin) - 1);
    return std::max(levels_[level][begin], levels_[level][end - (uint32_t{1} << level)]);
  }

 private:
  std::vector<std::vector<int64_t>> levels_;
};

}  // namespace weft::plan
