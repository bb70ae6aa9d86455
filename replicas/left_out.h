// Replicas that were lost in a round, which the others end without them: their steps do not count, and what
// they were to add up is added up by another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "replicas/terms.h"

namespace weft::replicas {

struct LeftOut {
  std::vector<uint32_t> replicas{};  // ascending
  uint32_t owner = 0;                // who takes the means in their place: none of them
  // At an agreement, which begins again with each that made steps: so many of them did.
  uint32_t attempt = 0;

  bool has(uint32_t replica) const { return std::binary_search(replicas.begin(), replicas.end(), replica); }
  bool includes(const LeftOut& other) const {
    return std::includes(replicas.begin(), replicas.end(), other.replicas.begin(), other.replicas.end());
  }
  // Of a tensor whose mean that replica was to take.
  uint32_t owner_of(uint32_t planned) const { return has(planned) ? owner : planned; }
  bool operator==(const LeftOut&) const = default;
};
inline bool is_valid(const LeftOut& left_out) {
  const auto& replicas = left_out.replicas;
  return std::adjacent_find(replicas.begin(), replicas.end(), std::greater_equal<>()) == replicas.end() &&
         (replicas.empty() ||
          (!left_out.has(left_out.owner) && left_out.owner < kReplicasMax && replicas.back() < kReplicasMax));
}

}  // namespace weft::replicas
