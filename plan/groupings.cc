#include "plan/groupings.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "plan/communities.h"
#include "plan/cost.h"
#include "plan/owners.h"
#include "plan/row.h"

namespace weft::plan {
namespace {

class Grouping {
 public:
  Grouping(const PlanRequest& request, const std::vector<double>& speeds,
           const std::vector<uint32_t>& devices, uint32_t count, uint32_t least)
      : request_(request), speeds_(speeds), devices_(devices), count_(count), least_(least) {}

  std::vector<Groups> run() {
    const std::vector<Group> near = communities(request_.cluster, devices_);
    const Group row = row_of(near);
    add(parts_of(row, [&](uint32_t device) { return speeds_[device]; }));
    add(parts_of(row, [&](uint32_t device) {
      return static_cast<double>(request_.cluster.devices()[device].memory.value);
    }));
    Groups each;
    each.reserve(devices_.size());
    for (const uint32_t device : devices_) each.push_back({device});
    add(dealt(each));
    if (near.size() >= count_) add(dealt(near));
    return std::move(found_);
  }

 private:
  // Where an owner may have only so much, its machines belong to one replica: they stand together, too.
  Group row_of(const std::vector<Group>& near) const {
    Group row;
    for (const Group& group : near) row.insert(row.end(), group.begin(), group.end());
    if (request_.owner_share_max >= 1) return row;
    const std::vector<uint32_t> owners = owners_of(request_.cluster);
    std::map<uint32_t, size_t> first;
    for (const uint32_t device : row) first.try_emplace(owners[device], first.size());
    std::stable_sort(row.begin(), row.end(),
                     [&](uint32_t a, uint32_t b) { return first[owners[a]] < first[owners[b]]; });
    return row;
  }

  template <typename Weight>
  Groups parts_of(const Group& row, const Weight& weight) const {
    std::vector<double> before{0};
    for (const uint32_t device : row) before.push_back(before.back() + weight(device));
    const auto size = static_cast<uint32_t>(row.size());
    std::vector<uint32_t> ends = deal_row(before, std::vector<double>(count_, 1), size);
    for (uint32_t g = 0; g < count_; ++g) ends[g] = std::max(ends[g], (g > 0 ? ends[g - 1] : 0) + least_);
    ends[count_ - 1] = size;
    for (uint32_t g = count_ - 1; g-- > 0;) ends[g] = std::min(ends[g], ends[g + 1] - least_);
    Groups groups;
    for (uint32_t g = 0, begin = 0; g < count_; begin = ends[g++])
      groups.emplace_back(row.begin() + begin, row.begin() + ends[g]);
    return groups;
  }

  // The fastest first, each to the slowest group; the last ones to those that are short of devices.
  Groups dealt(std::vector<Group> pieces) const {
    const auto speed = [&](const Group& piece) {
      return std::accumulate(piece.begin(), piece.end(), 0.0,
                             [&](double sum, uint32_t device) { return sum + speeds_[device]; });
    };
    std::stable_sort(pieces.begin(), pieces.end(),
                     [&](const Group& a, const Group& b) { return speed(a) > speed(b); });
    Groups groups(count_);
    std::vector<double> sums(count_, 0);
    size_t left = devices_.size();
    for (const Group& piece : pieces) {
      size_t lacking = 0;
      for (const Group& group : groups) lacking += least_ - std::min<size_t>(least_, group.size());
      size_t to = count_;
      for (size_t g = 0; g < count_; ++g) {
        if (left <= lacking && groups[g].size() >= least_) continue;
        if (to == count_ || sums[g] < sums[to]) to = g;
      }
      if (to == count_) to = 0;
      groups[to].insert(groups[to].end(), piece.begin(), piece.end());
      sums[to] += speed(piece);
      left -= piece.size();
    }
    return groups;
  }

  void add(Groups groups) {
    for (Group& group : groups) {
      if (group.size() < least_) return;
      std::sort(group.begin(), group.end());
    }
    std::sort(groups.begin(), groups.end());
    if (std::find(found_.begin(), found_.end(), groups) == found_.end()) found_.push_back(std::move(groups));
  }

  const PlanRequest& request_;
  const std::vector<double>& speeds_;
  const std::vector<uint32_t>& devices_;
  const uint32_t count_, least_;
  std::vector<Groups> found_;
};

}  // namespace

std::vector<double> speeds_of(const PlanRequest& request) {
  std::vector<std::vector<GroupCost>> costs;  // by class
  costs.reserve(request.classes.size() + 1);
  for (const auto& lowered : request.classes) costs.push_back(group_costs(lowered->graph));
  if (costs.empty()) costs.push_back(group_costs(*request.graph));
  std::vector<double> speeds;
  speeds.reserve(request.cluster.devices().size());
  for (const DeviceView& device : request.cluster.devices()) {
    double seconds = 0;
    for (const GroupCost& group : costs[device.device_class]) seconds += seconds_of(group, device.rates);
    speeds.push_back(1 / std::max(1e-12, seconds));
  }
  return speeds;
}

std::vector<Groups> propose_groups(const PlanRequest& request, const std::vector<double>& speeds,
                                   const std::vector<uint32_t>& devices, uint32_t count, uint32_t least) {
  return Grouping(request, speeds, devices, count, least).run();
}

}  // namespace weft::plan
