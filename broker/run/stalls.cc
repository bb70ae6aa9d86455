#include "broker/run/stalls.h"

#include <algorithm>
#include <numeric>

namespace weft::broker {

namespace {
constexpr uint32_t kAtTheEdge = 2, kElsewhere = 1;  // marks: only what stages say of themselves clears those
}

bool all_said(const std::vector<bool>& said) {
  return std::all_of(said.begin(), said.end(), [](bool has) { return has; });
}

MissingReports missing_reports_of(const std::vector<bool>& said, bool is_own) {
  MissingReports missing{.is_own = is_own};
  for (uint32_t s = 0; s < said.size(); ++s)
    if (!said[s]) missing.stages.push_back(s);
  return missing;
}

Suspects suspects_of(const MissingReports& missing, std::span<const StalledStage> stages,
                     const StallMarks& marks) {
  const auto all = static_cast<uint32_t>(stages.size());
  const bool is_partial = !missing.stages.empty() && missing.stages.size() < all;
  Suspects suspects;
  const auto suspect = [&](uint32_t stage, uint32_t mark) {
    suspects.stages.push_back(stage);
    suspects.marks[stages[stage].peer] = mark;
  };
  const auto marks_of = [&](uint32_t stage) {
    const auto at = marks.find(stages[stage].peer);
    return at == marks.end() ? 0u : at->second;
  };
  if (is_partial && missing.is_own) {
    for (const uint32_t stage : missing.stages) suspect(stage, kAtTheEdge);
    suspects.certain = suspects.stages.size();
    return suspects;
  }
  // Gradients come from behind: the deepest that has not said it stopped, or got nothing from its neighbour.
  uint32_t at = is_partial ? missing.stages.back() : 0;
  if (!is_partial)
    for (uint32_t s = 1; s < all; ++s)
      if (stages[s].segments < stages[at].segments) at = s;
  suspect(at, kAtTheEdge);
  if (at + 1 < all) suspect(at + 1, kAtTheEdge);
  if (!is_partial) {
    if (at > 0) suspect(at - 1, kAtTheEdge);
    for (uint32_t s = 0; s < all; ++s)
      if (s + 1 < at || s > at + 1) suspect(s, kElsewhere);
  }
  // The first may lack a gradient; one behind it that others went past has only kept silent.
  suspects.certain = is_partial && missing.stages.size() == 1 && at > 0 ? 1 : 0;
  std::stable_sort(suspects.stages.begin() + static_cast<long>(suspects.certain), suspects.stages.end(),
                   [&](uint32_t a, uint32_t b) { return marks_of(a) > marks_of(b); });
  return suspects;
}

}  // namespace weft::broker
