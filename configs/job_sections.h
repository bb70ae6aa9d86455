// Internal to configs: the parts of a job file, each read from its keys into the job. What is wrong with one
// is added to the reader's problems.
#pragma once

#include <cstdint>
#include <limits>

#include "configs/job.h"
#include "configs/job_data.h"
#include "configs/reader.h"

namespace weft::configs {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr uint64_t kStepsMax = uint64_t{1} << 40;
inline constexpr uint64_t kBatchMax = uint64_t{1} << 22;

// job_model.cc
void read_inputs(MapReader& root, Problems& problems, Job& job);
void read_loss(MapReader& root, Problems& problems, Job& job);
// job_serve.cc: all that a job has that serves, but for its placement. Keys of other tasks are problems.
void read_serve(MapReader& root, const PathRules& rules, Problems& problems, Job& job);
void refuse(MapReader& reader, std::string_view key);
// job_init.cc
void read_init(MapReader& root, const PathRules& rules, Problems& problems, Job& job);
// Rules of configs/rename.h: a map from patterns to what takes their place.
using RenameRules = std::vector<std::pair<std::string, std::string>>;
void read_rename(MapReader& reader, const Node& node, std::string_view key, RenameRules& rules);
// job_adapters.cc: behind `train` and `freeze`, which it goes without
void read_adapters(MapReader& root, const PathRules& rules, Problems& problems, Job& job);
void read_base(MapReader& root, Problems& problems, Job& job);
// job_output.cc: what else the job says is known
void read_output(MapReader& root, const PathRules& rules, Problems& problems, Job& job);
// job_optimizer.cc
void read_optimizer(MapReader& root, Problems& problems, Job& job);
void read_schedule(MapReader& root, Problems& problems, Job& job);
// job_replicas.cc: replicas, sync, gradient_ranges, optimizer_state. The size of a batch and of a microbatch
// are known.
void read_replicas(MapReader& root, Problems& problems, Job& job);

}  // namespace weft::configs
