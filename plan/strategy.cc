#include "plan/strategy.h"

#include <algorithm>
#include <array>

#include "plan/placement.h"

namespace weft::plan {
namespace {

constexpr size_t kProposalsKept = 8;
constexpr uint32_t kExactPositions = 96;
// How far above the least bottleneck a partition may go for a smaller sum: few microbatches and long
// latencies make that pay.
constexpr std::array kBottleneckFactors = {1.0, 1.02, 1.1, 1.3, 1.7, 3.0};

struct MemoryView {
  bool one_in_flight = false;
  double scale = 1;
  double share = 1;  // of each device's memory: the rest is for what a microbatch needs besides what is saved
};
// What is assumed of memory, from the usual to the desperate: the exact need is known only once stages are.
constexpr std::array kMemoryViews = {
    MemoryView{false, 1},      MemoryView{true, 1},       MemoryView{true, 1.4}, MemoryView{true, 2},
    MemoryView{true, 1, 0.97}, MemoryView{true, 1, 0.92}, MemoryView{true, 0.5}};

// Of a small row the exact ones, by dynamic programming; its table would take too long for a large one.
std::vector<Partition> partitions_of(const PartitionProblem& problem) {
  if (problem.tail > kExactPositions) return partitions_by_bisection(problem, kBottleneckFactors);
  std::vector<Partition> partitions;
  const auto least = least_bottleneck(problem);
  if (!least) return partitions;
  partitions.push_back(*least);
  for (const double factor : kBottleneckFactors)
    if (auto partition = least_sum(problem, least->cost.bottleneck * factor * (1 + 1e-12)))
      partitions.push_back(std::move(*partition));
  return partitions;
}

void add_partitions(const PartitionProblem& problem, const std::vector<uint32_t>& order,
                    uint32_t microbatches, std::vector<Proposal>& proposals) {
  for (const Partition& partition : partitions_of(problem)) {
    const bool known = std::any_of(proposals.begin(), proposals.end(), [&](const Proposal& other) {
      return other.devices == order && other.ends == partition.ends;
    });
    if (known) continue;
    PartitionProblem careful = problem;
    careful.passing = true;
    proposals.push_back({order, partition.ends, estimate(careful.cost_of(partition.ends), microbatches)});
  }
}

// As much of memory as has to be assumed, all of it where the scope is tight.
void add_views(const Scope& scope, PartitionProblem problem, const std::vector<uint32_t>& order,
               std::vector<Proposal>& proposals) {
  const std::vector<PartitionProblem::Stage> stages = problem.stages;
  for (const MemoryView& view : kMemoryViews) {
    problem.stages = stages;
    problem.memory_scale = view.scale;
    for (auto& stage : problem.stages) {
      if (view.one_in_flight) stage.in_flight = 1;
      if (view.share < 1) stage.memory = static_cast<int64_t>(static_cast<double>(stage.memory) * view.share);
    }
    const size_t known = proposals.size();
    for (const bool passing : {true, false}) {
      // A bisection counts what passes a stage by on lines alone.
      if (!passing && problem.tail > kExactPositions && !problem.has_lines()) continue;
      problem.passing = passing;
      add_partitions(problem, order, scope.request->microbatches, proposals);
    }
    if (!scope.tight && proposals.size() > known) break;
  }
}

constexpr NamedStrategy kStrategies[] = {
    {"auto", propose_balanced, "searched: who works, in which order, where the cuts lie", false},
    {"op-fence", propose_op_fence, "groups of similar bandwidth in a row, ops by computing power"},
    {"equal-ops", propose_equal_ops, "as many ops each, in a random order"},
    {"equal-compute", propose_equal_compute, "as much arithmetic each, in a random order"},
    {"equal-memory", propose_equal_memory, "as much memory each, in a random order"},
    {"equal-ops-joining", propose_equal_ops_joining, "as many ops each, in the order of joining"},
};

}  // namespace

std::vector<Proposal> propose_balanced(const Scope& scope) {
  std::vector<Proposal> proposals;
  for (const auto& order : device_orders(scope))
    add_views(scope, partition_problem(*scope.request, *scope.model, order), order, proposals);
  if (scope.model->ring)
    for (const auto& order : device_orders(scope, /*as_ring=*/true))
      for (const uint32_t tail : scope.model->ring->tails)
        add_views(scope, ring_problem(*scope.request, *scope.model, order, tail), order, proposals);
  std::stable_sort(proposals.begin(), proposals.end(),
                   [](const Proposal& a, const Proposal& b) { return a.score < b.score; });
  if (proposals.size() > kProposalsKept * 4) proposals.resize(kProposalsKept * 4);
  return proposals;
}

std::span<const NamedStrategy> strategies() { return kStrategies; }

const NamedStrategy* find_strategy(std::string_view name) {
  for (const NamedStrategy& strategy : kStrategies)
    if (strategy.name == name) return &strategy;
  return nullptr;
}

}  // namespace weft::plan
