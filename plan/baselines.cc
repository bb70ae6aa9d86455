// What one does without a planner: equal parts, whoever gets them. To compare with.
#include <algorithm>
#include <array>
#include <numeric>

#include "base/rng.h"
#include "plan/row.h"
#include "plan/strategy.h"

namespace weft::plan {
namespace {

constexpr uint64_t kOrders = 5;

// Weight of all positions before each.
std::vector<double> ops_before(const Scope& scope) {
  const Model& model = *scope.model;
  std::vector<double> before(model.positions + 1, 0);
  const Model::Class& of = model.classes.front();
  for (size_t g = 0; g < of.groups.size(); ++g)
    if (of.groups[g].has_kernel && of.groups[g].phase == dag::Phase::Forward)
      before[of.position_of_group[g] + 1] += of.groups[g].end - of.groups[g].begin;
  std::partial_sum(before.begin(), before.end(), before.begin());
  return before;
}

std::vector<double> compute_before(const Scope& scope) {
  const std::vector<double> seconds = seconds_of_positions(*scope.model, 0, Rates{}, /*accumulates=*/false);
  std::vector<double> before(seconds.size() + 1, 0);
  std::partial_sum(seconds.begin(), seconds.end(), before.begin() + 1);
  return before;
}

std::vector<double> memory_before(const Scope& scope) {
  const Model::HeldBefore& held = scope.model->held_before;
  const PlanRequest& request = *scope.request;
  std::vector<double> before(scope.model->positions + 1, 0);
  for (size_t p = 0; p < before.size(); ++p)
    before[p] =
        static_cast<double>(held.parameters[p] * (1 + request.gradient_sums) +
                            request.beside().bytes(held.parameters[p]) + held.other[p] + held.saved[p]);
  return before;
}

std::optional<Proposal> equal_parts(const Scope& scope, const std::vector<double>& before,
                                    const std::vector<uint32_t>& order) {
  const std::vector<double> shares(order.size(), 1);
  return deal_out(scope, order,
                  [&](const PartitionProblem& problem) { return deal_row(before, shares, problem.tail); });
}

std::vector<Proposal> in_random_orders(const Scope& scope, const std::vector<double>& before) {
  std::vector<Proposal> proposals;
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    Rng rng(seed, 0);
    std::vector<uint32_t> order = scope.devices;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    order.resize(scope.stages);
    if (auto proposal = equal_parts(scope, before, order)) proposals.push_back(std::move(*proposal));
  }
  return proposals;
}

}  // namespace

std::vector<Proposal> propose_equal_ops(const Scope& scope) {
  return in_random_orders(scope, ops_before(scope));
}
std::vector<Proposal> propose_equal_compute(const Scope& scope) {
  return in_random_orders(scope, compute_before(scope));
}
std::vector<Proposal> propose_equal_memory(const Scope& scope) {
  return in_random_orders(scope, memory_before(scope));
}
std::vector<Proposal> propose_equal_ops_joining(const Scope& scope) {
  std::vector<uint32_t> order = scope.devices;
  order.resize(scope.stages);
  std::vector<Proposal> proposals;
  if (auto proposal = equal_parts(scope, ops_before(scope), order)) proposals.push_back(std::move(*proposal));
  return proposals;
}

}  // namespace weft::plan
