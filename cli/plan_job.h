// What is planned: a job, or a bare model, as a graph. No weights are read. Data that are there tell what
// feeds the model, and are looked through; where they are not, it is assumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/lower.h"
#include "plan/request.h"

namespace weft::cli {

struct PlannedJob {
  std::string name;  // the file, as it was given
  configs::Job job;
  dag::Graph graph;  // of a microbatch, with its backward phase when it trains
  std::vector<std::shared_ptr<const dag::Lowered>> lowered;  // for each class of devices
  uint32_t microbatches = 1;                                 // a step
  std::vector<std::string> notes;                            // what was assumed
  std::vector<plan::Pin> pins{};                             // of a cluster: cli/plan_placement.h

  // Without a cluster.
  plan::PlanRequest request() const;
  double samples_per_second(double step_seconds) const;
};

// As the devices of the catalogue are taken to run a graph.
inline constexpr dag::BackendTraits kCatalogueTraits{.fuse_elementwise = true,
                                                     .convolution_layout = dag::Layout::Plain};

// Prepared as a broker prepares it (train/prepare.h). `path`: a job file, or a model (*.onnx), which stands
// for a job that adds up the model's first output, with adamw, a sample at a time; `sets` change it as they
// would a job file. `sizes` bind symbolic dims. `microbatch_size`: of a job that says auto; 0: the smallest
// that it may be.
Result<PlannedJob> open_planned_job(const std::filesystem::path& path, std::span<const std::string> sets,
                                    const std::map<std::string, int64_t>& sizes, uint32_t microbatch_size = 0,
                                    std::span<const dag::BackendTraits> classes = {&kCatalogueTraits, 1});

// A job file as a planner reads it: what it names need not be there.
Result<configs::Job> read_planned_job(const std::filesystem::path& path, std::span<const std::string> sets);

// What looking through the job's data says (train/data_check.h), where its files are there; a bare model has
// none.
Result<std::vector<std::string>> look_at_data(const PlannedJob& planned);

// What `microbatch_size: auto` of such a job may become; none where it says a size.
Result<std::vector<uint32_t>> open_microbatch_sizes(const std::filesystem::path& path,
                                                    std::span<const std::string> sets);

}  // namespace weft::cli
