#include "cli/plan_placement.h"

#include <algorithm>

#include "configs/yaml.h"
#include "plan/constraints.h"

namespace weft::cli {
namespace {

std::vector<std::string> names_of(const plan::ClusterView& cluster) {
  std::vector<std::string> names;
  for (const plan::DeviceView& device : cluster.devices()) names.push_back(device.name);
  return names;
}

}  // namespace

Status exclude_peers(const configs::Job& job, PlanCluster& cluster, bool complete) {
  const std::vector<std::string>& excluded = job.placement.exclude;
  const std::vector<std::string> names = names_of(cluster.view);
  for (size_t i = 0; i < excluded.size(); ++i) {
    if (std::find(names.begin(), names.end(), excluded[i]) != names.end()) continue;
    const std::string what = "there is no peer '" + excluded[i] + "' that could be excluded";
    if (complete)
      return fail(job.error(ErrorCode::NotFound, "placement.exclude[" + std::to_string(i) + "]",
                            what + configs::suggestion(excluded[i], names)));
    cluster.notes.push_back(what);
  }
  std::vector<uint32_t> left;
  for (uint32_t i = 0; i < names.size(); ++i)
    if (std::find(excluded.begin(), excluded.end(), names[i]) == excluded.end()) left.push_back(i);
  if (left.size() == names.size()) return {};
  if (left.empty())
    return fail(job.error(ErrorCode::Infeasible, "placement.exclude", "no peer is left to plan for"));
  cluster.view = cluster.view.only(left);
  std::vector<std::string> types;
  for (const uint32_t i : left)
    if (i < cluster.types.size()) types.push_back(std::move(cluster.types[i]));
  cluster.types = std::move(types);
  cluster.notes.push_back(std::to_string(names.size() - left.size()) + " of " + std::to_string(names.size()) +
                          " peers are excluded by the job");
  return {};
}

Status apply_placement(PlannedJob& job, PlanCluster& cluster, bool complete) {
  WEFT_TRY_STATUS(exclude_peers(job.job, cluster, complete));
  const std::vector<std::string> names = names_of(cluster.view);
  const std::vector<plan::PinRule>& pins = job.job.placement.pins;
  for (size_t i = 0; i < pins.size(); ++i) {
    const plan::PinRule& rule = pins[i];
    const std::string path = "placement.pin[" + std::to_string(i) + "]";
    if (std::find(names.begin(), names.end(), rule.peer) == names.end())
      return fail(
          job.job.error(ErrorCode::NotFound, path + ".peer",
                        "there is no peer '" + rule.peer + "'" + configs::suggestion(rule.peer, names)));
    auto pin = plan::resolve_pin(rule, job.graph, cluster.view);
    if (!pin) return fail(job.job.error(pin.error().code, path + ".ops", pin.error().message));
    job.pins.push_back(std::move(*pin));
  }
  return {};
}

}  // namespace weft::cli
