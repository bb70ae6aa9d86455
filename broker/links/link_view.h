// A survey as planners read it: sites, lines, what lies between sites, and the pairs that differ from theirs.
#pragma once

#include <span>
#include <vector>

#include "broker/links/link_survey.h"
#include "plan/cluster.h"

namespace weft::broker {

// Of links that nobody has measured; slower where a tenth of those that were measured are slower still.
inline constexpr plan::LinkView kAssumedLink{
    .bytes_per_second = 1.25e6, .latency = std::chrono::milliseconds(100), .is_assumed = true};
// Where a probe found no way: it may be found again, but nothing should be planned over it.
inline constexpr plan::LinkView kNoWay{
    .bytes_per_second = 12.5e3, .latency = std::chrono::milliseconds(500), .is_assumed = false};

// `numbers`: of the peers of `devices` in the survey.
plan::ClusterView view_links(const Survey& survey, std::vector<plan::DeviceView> devices,
                             std::span<const uint32_t> numbers);

}  // namespace weft::broker
