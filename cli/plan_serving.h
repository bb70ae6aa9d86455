// weft plan of a job that serves: its ring on a cluster, and how fast tokens come out of it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "cli/plan_cluster.h"
#include "configs/job.h"
#include "plan/serving.h"

namespace weft::cli {

// The job of that file, where it is one that serves; nothing: another, or a bare model. Errors: as of
// configs::parse_job, where the file can be read.
Result<std::optional<configs::Job>> find_serving_job(const std::filesystem::path& path,
                                                     std::span<const std::string> sets);

struct ServingShown {
  std::string job;  // its file, as it was given
  PlanCluster cluster;
  plan::ServingPlan plan;
  size_t parts = 0;
};
// Imports the model without its weights, and plans. The cluster is without what the job excludes.
Result<ServingShown> plan_serving_job(const configs::Job& job, PlanCluster cluster, bool complete);

// {"event":"plan","job","stages":[{...}],"seconds_a_token","first_token_seconds",
// "tokens_per_second_of_one","tokens_per_second",
// "positions_max","sequences","lines"}
std::string json_serving(const ServingShown& shown);
std::string text_serving(const ServingShown& shown, bool verbose);

}  // namespace weft::cli
