// Replicas that make local steps: what other numbers of them would make of a cluster, as text and as a JSON
// line, and all of it as a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/plan_report.h"
#include "plan/replicas.h"

namespace weft::cli {

// One number of replicas.
struct ReplicasOutcome {
  uint32_t count = 1;
  std::optional<plan::ReplicasPlan> plan{};  // nothing: `problem` says why
  std::string problem{};
  bool is_jobs = false;  // it is what the job takes
  double samples_per_second = 0;
  double planning_seconds = 0;  // of `plan`
};

struct ReplicasComparison {
  std::vector<ReplicasOutcome> counts{};  // ascending
  // Samples a second of one exact pipeline over whichever devices are worth it; nothing: none can be planned.
  std::optional<double> one_pipeline{};
  double planning_seconds = 0;  // of everything above
};

// Of 1 up to as many replicas as there are devices for, each number to 8 and fewer beyond. `chosen`: what the
// request itself gives.
ReplicasComparison compare_replicas(const PlannedJob& job, const plan::ReplicasRequest& request,
                                    const plan::ReplicasPlan& chosen);

// {"event":"replicas_comparison","job","replicas":[{...}],"one_pipeline_samples_per_second",...}; what there
// is none of is null.
std::string json_replicas_comparison(const ReplicasShown& shown, const ReplicasComparison& comparison);
std::string text_replicas_comparison(const ReplicasShown& shown, const ReplicasComparison& comparison);

// `comparison` may be nullptr.
std::string html_replicas(const ReplicasShown& shown, const ReplicasComparison* comparison);

}  // namespace weft::cli
