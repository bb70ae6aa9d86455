#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "plan/plan.h"

namespace weft::plan {

using dag::Graph;
using dag::ValueId;

std::vector<uint32_t> follow_stages(const Graph& other, const Graph& graph,
                                    const std::vector<uint32_t>& stage_of_op) {
  WEFT_CHECK(stage_of_op.size() == graph.ops().size());
  constexpr uint32_t kUnknown = std::numeric_limits<uint32_t>::max();
  std::unordered_map<std::string_view, uint32_t> stage_of_initializer;
  for (const auto& initializer : graph.initializers())
    stage_of_initializer[initializer.name] = stage_of_op[graph.value(initializer.value).producer.index];

  const auto count = static_cast<uint32_t>(other.ops().size());
  std::vector<uint32_t> stages(count, kUnknown);
  for (const auto& initializer : other.initializers())
    if (const auto at = stage_of_initializer.find(initializer.name); at != stage_of_initializer.end())
      stages[other.value(initializer.value).producer.index] = at->second;

  // Ops of a group stand next to each other: one pass, each group at the latest stage of what it reads. What
  // comes of inputs and constants alone is not known yet.
  std::vector<std::pair<uint32_t, uint32_t>> groups;
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin + 1;
    const dag::GroupId group = other.ops()[begin].group;
    while (group.valid() && end < count && other.ops()[end].group == group) ++end;
    groups.push_back({begin, end});
    if (!other.ops()[begin].inputs.empty()) {
      uint32_t latest = kUnknown;
      for (uint32_t i = begin; i < end; ++i)
        for (const ValueId input : other.ops()[i].inputs) {
          if (!input.valid()) continue;
          const uint32_t from = other.value(input).producer.index;
          if (from < begin && stages[from] != kUnknown)
            latest = latest == kUnknown ? stages[from] : std::max(latest, stages[from]);
        }
      std::fill(stages.begin() + begin, stages.begin() + end, latest);
    }
    begin = end;
  }
  // The rest lies where it is first read.
  const auto users = other.users();
  for (size_t g = groups.size(); g-- > 0;) {
    const auto [begin, end] = groups[g];
    if (stages[begin] != kUnknown) continue;
    uint32_t first = kUnknown;
    for (uint32_t i = begin; i < end; ++i)
      for (const ValueId output : other.ops()[i].outputs)
        for (const dag::OpId reader : users[output.index])
          if (reader.index >= end) first = std::min(first, stages[reader.index]);
    std::fill(stages.begin() + begin, stages.begin() + end, first == kUnknown ? 0 : first);
  }
  return stages;
}

}  // namespace weft::plan
