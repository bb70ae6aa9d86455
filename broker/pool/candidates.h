// Peers that may be used, as the planner sees them.
#pragma once

#include <span>
#include <vector>

#include "broker/events.h"

namespace weft::broker {

// What their devices run, each once, in order.
std::vector<dag::BackendTraits> classes_of(const std::vector<Candidate>& candidates);

// A device that needs so many times what its rates promise.
void slow_down(plan::Rates& rates, double times);

// Whose it says it is; its key where it says nothing, so that it stands for itself.
std::string owner_of(const Candidate& candidate);

// In order; `device_class` is an index into classes_of(), `site` by region.
std::vector<plan::DeviceView> device_views(const std::vector<Candidate>& candidates);

// By their regions' names, where links are not measured.
plan::ClusterView assumed_cluster(const std::vector<Candidate>& candidates);

// Goes on with these candidates alone, by index in ascending order: their classes are numbered anew.
void keep_only(StartPlanning& request, std::span<const uint32_t> left);

}  // namespace weft::broker
