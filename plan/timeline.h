// Who computes what when and what that waits for: the first step of a prediction, from a standing start.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace weft::plan {

struct TimelineTask {
  Duration begin{}, end{};  // since the step began
  uint32_t microbatch = 0;
  bool is_backward = false;
};

// Something that a step's end waited for.
struct CriticalPart {
  // Link: what lies between two stages, latency included; Data: microbatches of data on a stage's downlink;
  // Norm: the round trip of a gradient's norm.
  enum class Kind : uint8_t { Compute, Update, Norm, Uplink, Link, Downlink, Data } kind = Kind::Compute;
  uint32_t stage = 0;
  uint32_t to_stage = 0;  // of a link its receiver, else the stage itself
  uint32_t microbatch = 0, step = 0;
  Duration begin{}, end{};
};

// From `at` on a stage holds what so many microbatches keep.
struct HeldMicrobatches {
  Duration at{};
  uint32_t count = 0;
};

struct Timeline {
  std::vector<std::vector<TimelineTask>>
      stages;  // each in order of time; tasks that take no time are left out
  std::vector<std::vector<HeldMicrobatches>> held;  // by stage, in order of time
  std::vector<CriticalPart> critical;  // the part of the chain that lies in this step, if recorded
  uint32_t microbatches = 0;           // that were simulated: the first ones of a long step
};

}  // namespace weft::plan
