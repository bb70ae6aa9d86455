#include "plan/proposal.h"

#include <algorithm>

namespace weft::plan {

std::vector<uint32_t> Proposal::stages(const Model& of) const {
  std::vector<uint32_t> stage_of(of.positions, 0);  // a ring's tail is the first stage's
  for (uint32_t stage = 0, p = 0; stage < ends.size(); ++stage)
    for (; p < ends[stage]; ++p) stage_of[p] = stage;
  for (const MovedPosition& other : moved) stage_of[other.position] = other.stage;
  return stage_of;
}

bool Proposal::has_all_stages(const Model& of) const {
  if (moved.empty()) return true;  // of a row each has
  const std::vector<uint32_t> stage_of = stages(of);
  for (uint32_t stage = 0; stage < ends.size(); ++stage)
    if (std::find(stage_of.begin(), stage_of.end(), stage) == stage_of.end()) return false;
  return true;
}

}  // namespace weft::plan
