#include "plan/row.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace weft::plan {

std::vector<uint32_t> deal_row(const std::vector<double>& weight_before, const std::vector<double>& shares) {
  const auto positions = static_cast<uint32_t>(weight_before.size() - 1);
  const auto stages = static_cast<uint32_t>(shares.size());
  WEFT_CHECK(stages >= 1 && stages <= positions);
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0), total = weight_before.back();
  std::vector<uint32_t> ends;
  double share = 0;
  for (uint32_t stage = 0, begin = 0; stage < stages; ++stage) {
    share += shares[stage];
    const double wanted = all > 0 ? total * share / all : total * (stage + 1) / stages;
    const auto at = std::lower_bound(weight_before.begin(), weight_before.end(), wanted);
    auto end = static_cast<uint32_t>(std::min<ptrdiff_t>(at - weight_before.begin(), positions));
    if (end > 0 && wanted - weight_before[end - 1] < weight_before[end] - wanted) --end;  // the nearer one
    begin = std::clamp(end, begin + 1, positions - (stages - 1 - stage));
    ends.push_back(begin);
  }
  ends.back() = positions;
  return ends;
}

void respect_memory(const PartitionProblem& problem, std::vector<uint32_t>& ends) {
  const auto stages = static_cast<uint32_t>(ends.size());
  const auto begin = [&](uint32_t stage) { return stage == 0 ? 0 : ends[stage - 1]; };
  for (uint32_t stage = 0; stage + 1 < stages; ++stage) {
    ends[stage] = std::max(ends[stage], begin(stage) + 1);
    while (ends[stage] > begin(stage) + 1 && !problem.fits(begin(stage), ends[stage], stage)) --ends[stage];
  }
  for (uint32_t stage = stages; stage-- > 1;) {
    while (ends[stage - 1] + 1 < ends[stage] && !problem.fits(ends[stage - 1], ends[stage], stage))
      ++ends[stage - 1];
    ends[stage - 1] = std::min(ends[stage - 1], ends[stage] - 1);
  }
}

}  // namespace weft::plan
