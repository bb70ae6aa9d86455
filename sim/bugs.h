// Mistakes that can be switched on, each in the simulated world around the production machines: what a
// simulation that works must find.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace weft::sim {

enum class Bug : uint8_t {
  None,
  EffectsBeforeDurable,
  TransientCalledDurable,
  TensorTwice,
  ReportDropped,
  SnapshotLate,
  WrongGeneration,
  CommandTwice,
  LeaseNeverExpires,
  StaleTensors,
  WrongNorm,
  DataShifted,
  DiskFullForgets,
  MeanAsItComes,
  LeftOutCounts,
  MomentumForgotten,
};
struct BugName {
  Bug bug;
  std::string_view name, what;
};
std::span<const BugName> bugs();
std::optional<Bug> bug_named(std::string_view name);

}  // namespace weft::sim
