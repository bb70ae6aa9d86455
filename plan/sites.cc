#include "plan/sites.h"

#include <algorithm>
#include <optional>
#include <set>

#include "plan/placement.h"

namespace weft::plan {
namespace {

bool has_parameters(const Model& model, const Proposal& proposal, uint32_t stage) {
  const auto& before = model.held_before.parameters;
  const uint32_t begin = stage == 0 ? 0 : proposal.ends[stage - 1];
  return before[proposal.ends[stage]] > before[begin] ||
         (stage == 0 && before.back() > before[proposal.ends.back()]);  // the tail of a ring
}

// Positions nearest to a stage that have parameters: the first behind it, the last before it.
struct Nearest {
  std::optional<uint32_t> behind, before;
};
Nearest nearest_parameters(const Model& model, const Proposal& proposal, uint32_t stage) {
  const auto& held = model.held_before.parameters;
  Nearest nearest;
  for (uint32_t p = proposal.ends[stage]; p < proposal.ends.back() && !nearest.behind; ++p)
    if (held[p + 1] > held[p]) nearest.behind = p;
  for (uint32_t p = stage == 0 ? 0 : proposal.ends[stage - 1]; p-- > 0 && !nearest.before;)
    if (held[p + 1] > held[p]) nearest.before = p;
  return nearest;
}

// Every stage keeps a position; false where the row is too short for that.
bool extend(Proposal& proposal, uint32_t stage, const Nearest& nearest) {
  auto& ends = proposal.ends;
  const auto count = static_cast<uint32_t>(ends.size());
  const uint32_t begin = stage == 0 ? 0 : ends[stage - 1];
  const bool back = nearest.before && stage > 0 &&
                    (!nearest.behind || begin - *nearest.before <= *nearest.behind - ends[stage] + 1);
  if (back) {
    ends[stage - 1] = *nearest.before;
    for (uint32_t s = stage - 1; s-- > 0;) ends[s] = std::min(ends[s], ends[s + 1] - 1);
    return ends[0] > 0 && *nearest.before >= stage;
  }
  if (!nearest.behind || stage + 1 == count) return false;
  const uint32_t last = ends.back();
  ends[stage] = *nearest.behind + 1;
  for (uint32_t s = stage + 1; s + 1 < count; ++s) ends[s] = std::max(ends[s], ends[s - 1] + 1);
  return ends[count - 2] < last;
}

}  // namespace

SiteCover::SiteCover(const PlanRequest& request) : request_(request) {
  if (!request.every_site) return;
  std::set<uint32_t> sites;
  for (const DeviceView& device : request.cluster.devices()) sites.insert(device.site);
  sites_.assign(sites.begin(), sites.end());
  const dag::Graph& graph = *request.graph;
  for (const dag::Initializer& one : graph.initializers())
    if (one.role == dag::InitializerRole::Parameter)
      holders_.push_back(graph.value(one.value).producer.index);
}

bool SiteCover::is_kept(const std::vector<uint32_t>& stage_of_op,
                        const std::vector<uint32_t>& devices) const {
  if (!is_asked()) return true;
  std::set<uint32_t> covered;
  for (const uint32_t op : holders_)
    covered.insert(request_.cluster.devices()[devices[stage_of_op[op]]].site);
  return covered.size() == sites_.size();
}

bool SiteCover::cover(const Model& model, Proposal& proposal) const {
  const auto& devices = request_.cluster.devices();
  const auto site_of = [&](uint32_t stage) { return devices[proposal.devices[stage]].site; };
  const auto count = static_cast<uint32_t>(proposal.devices.size());
  for (size_t tries = 0; tries <= sites_.size(); ++tries) {
    std::set<uint32_t> there, covered;
    for (uint32_t stage = 0; stage < count; ++stage) {
      there.insert(site_of(stage));
      if (has_parameters(model, proposal, stage)) covered.insert(site_of(stage));
    }
    if (there.size() < sites_.size()) return false;
    if (covered.size() == sites_.size()) return true;
    uint32_t stage = 0;
    while (covered.contains(site_of(stage))) ++stage;
    if (!extend(proposal, stage, nearest_parameters(model, proposal, stage))) return false;
  }
  return false;
}

std::vector<Proposal> SiteCover::within(const Scope& scope, std::vector<Proposal> proposals) const {
  if (!is_asked()) return proposals;
  std::vector<Proposal> kept;
  for (Proposal& proposal : proposals) {
    const std::vector<uint32_t> ends = proposal.ends;
    if (!cover(*scope.model, proposal)) continue;
    if (ends != proposal.ends)
      proposal.score = estimate(problem_of(request_, *scope.model, proposal).cost_of(proposal.ends),
                                request_.microbatches);
    kept.push_back(std::move(proposal));
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Proposal& a, const Proposal& b) { return a.score < b.score; });
  return kept;
}

std::string SiteCover::why_not_kept() const {
  if (!is_asked()) return {};
  const std::string rule = "every site must hold an op with parameters";
  const std::string there = "there are " + std::to_string(sites_.size()) + " sites";
  if (holders_.size() < sites_.size())
    return rule + ": " + there + ", and the model has " + std::to_string(holders_.size()) + " parameters";
  if (request_.stages && *request_.stages < sites_.size())
    return rule + ": " + there + ", stages: " + std::to_string(*request_.stages) + " is fewer";
  return {};
}

}  // namespace weft::plan
