#include "broker/run/stalls.h"

#include <algorithm>
#include <numeric>
#include <optional>

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

namespace {
using Stages = std::span<const StalledStage>;
// The neighbours in a stage's pipeline.
std::optional<uint32_t> stage_behind(Stages stages, uint32_t stage) {
  for (uint32_t s = stage + 1; s < stages.size(); ++s)
    if (stages[s].replica == stages[stage].replica) return s;
  return std::nullopt;
}
std::optional<uint32_t> stage_before(Stages stages, uint32_t stage) {
  for (uint32_t s = stage; s-- > 0;)
    if (stages[s].replica == stages[stage].replica) return s;
  return std::nullopt;
}
// Of several stages, all of them, and of no other replica any.
bool is_whole_pipeline(const MissingReports& missing, Stages stages) {
  const uint32_t replica = stages[missing.stages.front()].replica;
  const auto is_of_it = [&](const StalledStage& stage) { return stage.replica == replica; };
  const auto all = std::count_if(stages.begin(), stages.end(), is_of_it);
  return all > 1 && static_cast<ptrdiff_t>(missing.stages.size()) == all &&
         std::all_of(missing.stages.begin(), missing.stages.end(),
                     [&](uint32_t stage) { return is_of_it(stages[stage]); });
}
}  // namespace

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
  // Where none of its pipeline has said it that tells nothing: any of them may have sent nothing.
  const bool is_of_one = is_partial && !missing.is_mutual && is_whole_pipeline(missing, stages);
  const auto may_be = [&](uint32_t stage) {
    return !is_of_one || stages[stage].replica == stages[missing.stages.front()].replica;
  };
  const bool tells_nothing = !is_partial || is_of_one;
  uint32_t at = !is_partial ? 0 : is_of_one ? missing.stages.front() : missing.stages.back();
  for (uint32_t s = 0; tells_nothing && s < all; ++s)
    if (may_be(s) && stages[s].segments < stages[at].segments) at = s;
  const auto behind = stage_behind(stages, at), before = stage_before(stages, at);
  suspect(at, kAtTheEdge);
  if (behind) suspect(*behind, kAtTheEdge);
  if (tells_nothing) {
    if (before) suspect(*before, kAtTheEdge);
    for (uint32_t s = 0; s < all; ++s)
      if (may_be(s) && s != at && s != behind && s != before) suspect(s, kElsewhere);
  } else if (missing.is_mutual) {
    for (const uint32_t stage : missing.stages)
      if (stage != at && stage != behind) suspect(stage, kAtTheEdge);
  }
  // The first may lack a gradient; one behind it that others went past has only kept silent.
  suspects.certain = is_partial && !missing.is_mutual && missing.stages.size() == 1 && before ? 1 : 0;
  std::stable_sort(suspects.stages.begin() + static_cast<long>(suspects.certain), suspects.stages.end(),
                   [&](uint32_t a, uint32_t b) { return marks_of(a) > marks_of(b); });
  return suspects;
}

}  // namespace weft::broker
