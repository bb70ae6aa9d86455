// A plan, or a comparison of strategies, as text for people and as a JSON line for programs.
#pragma once

#include <cstdio>
#include <string>

#include "cli/plan_outcome.h"
#include "plan/replicas.h"

namespace weft::cli {

struct PlanShown {
  const PlannedJob* job = nullptr;
  const PlanCluster* cluster = nullptr;
  const plan::Plan* plan = nullptr;
  std::vector<StageFacts> stages;
};

// {"event":"plan","job","stages":[{...}],"predicted_step_seconds","predicted_samples_per_second","lines"}
std::string json_plan(const PlanShown& shown);
// {"event":"comparison","strategies":[{...}],...}; what there is none of is null.
std::string json_comparison(const PlannedJob& job, const PlanCluster& cluster, const Comparison& comparison);

std::string text_plan(const PlanShown& shown, bool verbose);
std::string text_comparison(const PlannedJob& job, const PlanCluster& cluster, const Comparison& comparison);

// Of replicas that make local steps: the same, all their stages, each with its `replica`; the critical path
// is the slowest one's. A step is one of each.
struct ReplicasShown {
  const PlannedJob* job = nullptr;
  const PlanCluster* cluster = nullptr;
  const plan::ReplicasPlan* plan = nullptr;
};
std::string json_replicas(const ReplicasShown& shown);
std::string text_replicas(const ReplicasShown& shown, bool verbose);

// Columns as wide as their widest cell; the first `left` of them to the left, others to the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows, size_t left);
// "53.1 samples/s" in three digits that count.
std::string format_rate(double samples_per_second);
// "step 83.2 ms, 53.1 samples/s"
std::string prediction_line(const PlanShown& shown);
// Elements as "124M".
std::string format_count(int64_t count);

}  // namespace weft::cli
