// What tests of serving plans have in common: a model in parts with what each takes on each device.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "plan/serving.h"

namespace weft::plan {

inline constexpr double kPiece = 40;  // beside a row

struct Example {
  std::vector<std::vector<PartSeconds>> seconds;  // by device, by part
  ServingRequest request;

  const ServingRequest& asked() {
    request.seconds = [this](uint32_t device, uint32_t part) { return seconds[device][part]; };
    return request;
  }
};

// All parts once, in order round the ring, the entry with both ends.
inline void expect_a_ring(const ServingPlan& plan, size_t parts) {
  uint32_t next = plan.stages.front().parts.front().end;
  EXPECT_EQ(plan.stages.front().parts.front().begin, 0u);
  std::set<uint32_t> devices;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const ServingStage& stage = plan.stages[s];
    EXPECT_TRUE(devices.insert(stage.device).second);
    if (s == 0) continue;
    ASSERT_EQ(stage.parts.size(), 1u);
    EXPECT_EQ(stage.parts[0].begin, next);
    EXPECT_LT(next, stage.parts[0].end);
    next = stage.parts[0].end;
  }
  const ServingStage& entry = plan.stages.front();
  EXPECT_EQ(entry.parts.size(), plan.stages.size() == 1 ? 1u : 2u);
  if (entry.parts.size() == 2) {
    EXPECT_EQ(entry.parts[1].begin, next);
  }
  EXPECT_EQ(entry.parts.back().end, parts);
}

}  // namespace weft::plan
