// What the kernel says of the machine in small files: of power, heat and the programs that run. `root` stands
// for / in tests. What is not there, or makes no sense, is not said.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "peer/manners/manners.h"

namespace weft::peer {

// Whether a battery of the machine itself gives the power: a mouse has one, too, and is none.
bool is_on_battery(const std::filesystem::path& root = "/");

// The hottest sensor of the processor; where none is known to be its own, of all zones of the machine.
std::optional<MannersReadings::Heat> hottest_of_processor(const std::filesystem::path& root = "/");

// The first of the names under which a program runs, whatever its case; empty: none. Looks at no more than
// 65536 processes.
std::string program_that_runs(const std::vector<std::string>& names, const std::filesystem::path& root = "/");

// For how long the machine has been asleep since it was started, by its clocks; under another root as its
// file `asleep` says, in seconds.
Duration time_asleep(const std::filesystem::path& root = "/");

}  // namespace weft::peer
