// Plans worked out for a job on a cluster, and what can be told about them without running anything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/plan_cluster.h"
#include "cli/plan_job.h"
#include "plan/plan.h"

namespace weft::cli {

// By stage, what a reader wants to see beside the plan itself.
struct StageFacts {
  uint32_t ops = 0;  // forward ones that compute
  int64_t parameters = 0;
  std::vector<std::pair<std::string, uint32_t>> kinds;  // of those ops, the most frequent first
};
std::vector<StageFacts> stage_facts(const dag::Graph& graph, const plan::Plan& plan);

// What a stage holds from `at` on, in a step from a standing start.
struct MemoryPoint {
  Duration at{};
  Bytes bytes;
};
std::vector<MemoryPoint> memory_over_time(const plan::Plan& plan, size_t stage);

// What a step waits for: the stage or the link that works for most of it.
struct Bottleneck {
  std::string name;
  double seconds = 0;  // a step
};
Bottleneck bottleneck_of(const PlannedJob& job, const plan::ClusterView& cluster, const plan::Plan& plan);
// A step's bytes over the slowest of the links that the plan uses, in its busier direction; 0: there are
// none.
int64_t bytes_over_slowest_link(const PlannedJob& job, const plan::ClusterView& cluster,
                                const plan::Plan& plan);

// One row of a comparison.
struct StrategyOutcome {
  std::string name;
  std::optional<plan::Plan> plan;  // nothing: `problem` says why
  std::string problem;
  // Samples a second with links compressed as `auto` has it, where the job itself compresses nothing.
  std::optional<double> compressed{};
  double planning_seconds = 0;  // of `plan`
};

struct Comparison {
  std::vector<StrategyOutcome> strategies;  // in the order of plan::strategies()
  // Samples a second.
  double bound = 0;                               // all devices busy all the time, memory aside
  std::optional<double> free_network;             // the default strategy, were links free
  std::optional<double> best_machine, best_site;  // the best one alone; nothing: none can hold the job
  double planning_seconds = 0;                    // of everything above
};

// Errors: the default strategy's, when no strategy finds a plan.
Result<Comparison> compare_strategies(const PlannedJob& job, const plan::ClusterView& cluster);

}  // namespace weft::cli
