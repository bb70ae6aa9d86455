#include "plan/owners.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "plan/constraints.h"
#include "plan/placement.h"

namespace weft::plan {
namespace {

constexpr double kRounding = 1e-9;
constexpr uint32_t kTablePositions = 128;
constexpr int kVariants = 4;  // of a proposal, with more and more owners

bool is_counted(dag::InitializerRole role) {
  return role == dag::InitializerRole::Parameter || role == dag::InitializerRole::Frozen;
}

// The table takes long for long rows.
std::optional<Partition> partitioned(const PartitionProblem& problem) {
  if (problem.model->positions <= kTablePositions) return least_bottleneck(problem);
  constexpr double kLeast[] = {1.0};
  auto found = partitions_by_bisection(problem, kLeast);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + "%"; }

}  // namespace

std::vector<uint32_t> owners_of(const ClusterView& cluster) {
  std::map<std::string, uint32_t> known;
  std::vector<uint32_t> owners;
  uint32_t count = 0;
  for (const DeviceView& device : cluster.devices()) {
    const bool is_new = device.owner.empty() || known.try_emplace(device.owner, count).second;
    owners.push_back(is_new ? count++ : known.at(device.owner));
  }
  return owners;
}

OwnerShares::OwnerShares(const PlanRequest& request)
    : request_(request), share_max_(request.owner_share_max), owner_of_(owners_of(request.cluster)) {
  if (!are_limited()) return;
  const auto& devices = request.cluster.devices();
  for (size_t d = 0; d < devices.size(); ++d)
    if (owner_of_[d] == names_.size())
      names_.push_back(devices[d].owner.empty() ? devices[d].name : devices[d].owner);
  const dag::Graph& graph = *request.graph;
  const auto users = graph.users();
  for (const dag::Initializer& one : graph.initializers()) {
    if (!is_counted(one.role)) continue;
    Held held{graph.spec(one.value).bytes().value, {graph.value(one.value).producer.index}};
    for (const dag::OpId reader : users[one.value.index]) held.ops.push_back(reader.index);
    all_ += held.bytes;
    held_.push_back(std::move(held));
  }
}

std::vector<double> OwnerShares::shares(const std::vector<uint32_t>& stage_of_op,
                                        const std::vector<uint32_t>& devices) const {
  std::vector<double> shares(names_.size(), 0);
  std::set<uint32_t> owners;
  for (const Held& held : held_) {
    owners.clear();
    for (const uint32_t op : held.ops) owners.insert(owner_of_[devices[stage_of_op[op]]]);
    for (const uint32_t owner : owners) shares[owner] += static_cast<double>(held.bytes);
  }
  for (double& share : shares) share /= static_cast<double>(std::max<int64_t>(1, all_));
  return shares;
}

bool OwnerShares::are_kept(const std::vector<uint32_t>& stage_of_op,
                           const std::vector<uint32_t>& devices) const {
  if (!are_limited()) return true;
  const std::vector<double> all = shares(stage_of_op, devices);
  return *std::max_element(all.begin(), all.end()) <= share_max_ + kRounding;
}

size_t OwnerShares::owners_needed() const {
  return static_cast<size_t>(std::ceil(1 / share_max_ - kRounding));
}

// Whether an even deal of the stages would keep the share; at most one stage too many for one of uneven
// sizes.
bool OwnerShares::is_spread(const std::map<uint32_t, uint32_t>& stages_of, size_t stages) const {
  if (stages_of.size() < owners_needed()) return false;
  const double most = std::ceil(share_max_ * static_cast<double>(stages) - kRounding);
  return std::all_of(stages_of.begin(), stages_of.end(),
                     [&](const auto& entry) { return static_cast<double>(entry.second) <= most; });
}

// The slowest device of the owner with most stages makes place: for one of an owner who has none as long as
// owners are missing, else of one who has two fewer; of its own site where there is one, and the fastest.
bool OwnerShares::replace(const Scope& scope, const std::map<uint32_t, uint32_t>& stages_of,
                          std::vector<uint32_t>& row) const {
  const auto& devices = request_.cluster.devices();
  const auto speed = [&](uint32_t device) { return devices[device].rates.matmul_flops_per_second; };
  const auto stages = [&](uint32_t device) {
    const auto at = stages_of.find(owner_of_[device]);
    return at == stages_of.end() ? 0u : at->second;
  };
  std::optional<size_t> goes;
  for (size_t s = 0; s < row.size(); ++s) {
    const bool pinned = std::any_of(scope.pinned.begin(), scope.pinned.end(),
                                    [&](const PinnedRange& range) { return range.device == row[s]; });
    if (pinned || stages(row[s]) < 2) continue;
    const auto rank = [&](uint32_t device) { return std::pair(stages(device), -speed(device)); };
    if (!goes || rank(row[s]) > rank(row[*goes])) goes = s;
  }
  if (!goes) return false;
  const uint32_t most = stages_of.size() < owners_needed() ? 0 : stages(row[*goes]) - 2;
  const std::set<uint32_t> used(row.begin(), row.end());
  std::optional<uint32_t> comes;
  const auto rank = [&](uint32_t device) {
    return std::tuple(devices[device].site == devices[row[*goes]].site, -int64_t{stages(device)},
                      speed(device));
  };
  for (const uint32_t device : scope.devices)
    if (stages(device) <= most && !used.contains(device) && (!comes || rank(device) > rank(*comes)))
      comes = device;
  if (!comes) return false;
  row[*goes] = *comes;
  // Who is of one site stays together, so that what lies between is crossed once.
  if (!scope.pinned.empty()) return true;
  std::map<uint32_t, size_t> first;
  for (size_t s = 0; s < row.size(); ++s) first.try_emplace(devices[row[s]].site, s);
  std::stable_sort(row.begin(), row.end(), [&](uint32_t a, uint32_t b) {
    return first.at(devices[a].site) < first.at(devices[b].site);
  });
  return true;
}

// What one owner may have is dealt out among the stages on that owner's devices by their speed.
void OwnerShares::limit(const Model& model, const std::vector<uint32_t>& row,
                        PartitionProblem& problem) const {
  const auto& devices = request_.cluster.devices();
  const auto speed = [&](uint32_t device) { return devices[device].rates.matmul_flops_per_second; };
  std::map<uint32_t, double> speed_of;
  for (const uint32_t device : row) speed_of[owner_of_[device]] += speed(device);
  const auto all = static_cast<double>(model.held_before.parameters.back() + model.held_before.other.back());
  for (size_t s = 0; s < row.size(); ++s)
    problem.stages[s].weights_max =
        static_cast<int64_t>(share_max_ * all * speed(row[s]) / speed_of[owner_of_[row[s]]]);
}

std::vector<Proposal> OwnerShares::within(const Scope& scope, std::vector<Proposal> proposals) const {
  if (!are_limited()) return proposals;
  std::vector<Proposal> kept;
  const auto add = [&](const Proposal& like) {
    PartitionProblem problem = problem_of(request_, *scope.model, like);
    limit(*scope.model, like.devices, problem);
    const auto partition = partitioned(problem);
    if (!partition) return;
    Proposal proposal{like.devices, partition->ends, estimate(partition->cost, request_.microbatches)};
    const bool known = std::any_of(kept.begin(), kept.end(), [&](const Proposal& other) {
      return other.devices == proposal.devices && other.ends == proposal.ends;
    });
    if (!known && keeps_ranges(scope.pinned, proposal.devices, proposal.ends))
      kept.push_back(std::move(proposal));
  };
  for (Proposal& proposal : proposals)
    for (int variants = 0; variants < kVariants;) {
      std::map<uint32_t, uint32_t> stages_of;
      for (const uint32_t device : proposal.devices) ++stages_of[owner_of_[device]];
      if (is_spread(stages_of, proposal.devices.size())) add(proposal), ++variants;
      if (!replace(scope, stages_of, proposal.devices)) break;
    }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Proposal& a, const Proposal& b) { return a.score < b.score; });
  return kept;
}

std::string OwnerShares::describe_limit() const {
  if (!are_limited()) return {};
  return "at most " + percent(share_max_) + " of the parameters on one owner's machines";
}

std::string OwnerShares::why_not_kept() const {
  if (!are_limited()) return {};
  const std::string limit = describe_limit();
  if (names_.size() < owners_needed())
    return limit + " needs " + std::to_string(owners_needed()) + " owners, there " +
           (names_.size() == 1 ? "is 1" : "are " + std::to_string(names_.size()));
  if (request_.stages && *request_.stages < owners_needed())
    return limit + " needs " + std::to_string(owners_needed()) +
           " stages, stages: " + std::to_string(*request_.stages) + " is fewer";
  const auto largest = std::max_element(held_.begin(), held_.end(),
                                        [](const Held& a, const Held& b) { return a.bytes < b.bytes; });
  if (largest != held_.end() &&
      static_cast<double>(largest->bytes) > share_max_ * static_cast<double>(all_)) {
    const double share = static_cast<double>(largest->bytes) / static_cast<double>(all_);
    return limit + " cannot be: one tensor alone is " + percent(share);
  }
  return {};
}

std::string OwnerShares::describe(const std::vector<uint32_t>& stage_of_op,
                                  const std::vector<uint32_t>& devices) const {
  if (!are_limited()) return {};
  std::string text;
  const std::vector<double> all = shares(stage_of_op, devices);
  for (size_t owner = 0; owner < all.size(); ++owner)
    if (all[owner] > 0) text += (text.empty() ? "" : ", ") + names_[owner] + " " + percent(all[owner]);
  return describe_limit() + ": " + text;
}

}  // namespace weft::plan
