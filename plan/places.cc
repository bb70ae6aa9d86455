#include "plan/places.h"

#include <algorithm>

namespace weft::plan {

bool are_there(const Group& group, const ReplicasBefore& before) {
  return std::all_of(group.begin(), group.end(),
                     [&](uint32_t device) { return device < before.size() && before[device]; });
}

std::vector<uint32_t> places_of(const Groups& groups, const ReplicasBefore& before) {
  std::vector<std::optional<uint32_t>> places(groups.size());
  std::vector<uint32_t> there, others;  // without a place
  for (uint32_t g = 0; g < groups.size(); ++g) {
    if (!are_there(groups[g], before)) {
      others.push_back(g);
      continue;
    }
    const uint32_t own = *before[groups[g].front()];
    if (own < places.size() && !places[own])
      places[own] = g;
    else
      there.push_back(g);
  }
  const auto first =
      std::find_if(places.begin(), places.end(), [](const auto& place) { return place.has_value(); });
  if (there.empty() && first != places.end()) std::swap(*first, places.front());
  there.insert(there.end(), others.begin(), others.end());
  auto next = there.begin();
  std::vector<uint32_t> order;
  for (const auto& place : places) order.push_back(place ? *place : *next++);
  return order;
}

}  // namespace weft::plan
