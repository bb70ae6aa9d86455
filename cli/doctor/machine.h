// What of this machine can keep weft from working. Each looks at the files of the system beneath `root`,
// which is / but in tests.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "cli/doctor/check.h"

namespace weft::cli {

// The device that computes, by whatever opens it; what it says of itself is shown.
using OpenDevice = std::function<Result<std::string>()>;
Check check_device(const std::string& device, const OpenDevice& open);
// NVIDIA's card and driver. `is_wanted`: the device is a GPU, and does not work without.
Check check_driver(const std::filesystem::path& root, bool is_wanted);
Check check_memory(const std::filesystem::path& root);
// What the control groups of this process leave of the machine: processors, threads, memory.
Check check_groups(const std::filesystem::path& root, unsigned processors);
// How many files and connections this process may have open.
Check check_descriptors(const std::filesystem::path& root);
// Whether the machine goes to sleep by itself.
Check check_sleep(const std::filesystem::path& root);
// Whether what is kept in a folder, or where it would be made, can be written. Writes a little there and
// leaves nothing.
Check check_disk(const std::filesystem::path& folder);

}  // namespace weft::cli
