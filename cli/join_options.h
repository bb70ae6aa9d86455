// What `weft join` is told, by its options and by the file of --config.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

// As a guest of a machine's owner (guest.h).
struct GuestOptions {
  bool is_guest = false;
  std::string cpus, gpu_memory, battery, idle, temperature, settle;
  std::vector<std::string> pause_for;
};

struct JoinOptions {
  std::string config;  // a YAML file; empty: none
  std::string broker, token, name, memory, host_memory, data_dir, listen, advertise, emulate, region, owner,
      emulate_as, upload, download, disk, schedule, jobs, metrics, weights;
  std::string format = "text";  // of what is printed
  bool dials_private = false;
  std::vector<std::string> devices;  // empty: cpu
  GuestOptions guest;
};

// Takes from the file what no option said. Paths in it are relative to its folder. The errors are those of
// the file: NotFound, and InvalidArgument with the line of each mistake.
Status read_join_config(JoinOptions& options);

}  // namespace weft::cli
