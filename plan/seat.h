// A place in a plan: one replica of one stage. What runs, what is linked and what is reported is told apart
// by it. Only replicas that make local steps have other numbers than 0 (plan/replicas.h).
#pragma once

#include <cstdint>
#include <string>

namespace weft::plan {

struct Seat {
  uint32_t stage = 0;
  uint32_t replica = 0;
  auto operator<=>(const Seat&) const = default;
};

// For people, who count from 1: "stage 2", "stage 2, replica 3".
inline std::string to_string(const Seat& seat) {
  const std::string stage = "stage " + std::to_string(seat.stage + 1);
  return seat.replica == 0 ? stage : stage + ", replica " + std::to_string(seat.replica + 1);
}

}  // namespace weft::plan
