// What `weft join` is told, by its options and by the file of --config.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

struct JoinOptions {
  std::string config;  // a YAML file; empty: none
  std::string broker, token, name, memory, host_memory, data_dir, listen, advertise, emulate, region, owner,
      emulate_as, upload, download, disk, schedule, jobs, metrics;
  bool dials_private = false;
  std::vector<std::string> devices;  // empty: cpu
};

// Takes from the file what no option said. Paths in it are relative to its folder. The errors are those of
// the file: NotFound, and InvalidArgument with the line of each mistake.
Status read_join_config(JoinOptions& options);

}  // namespace weft::cli
