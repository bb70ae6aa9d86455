// A peer that is a guest on somebody's machine: what it leaves to the owner, and when it keeps away. `weft
// join
// --guest` has these defaults; each has an option of its own.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/command_line.h"
#include "cli/join_options.h"
#include "peer/desktop/machine_watch.h"
#include "peer/manners/manners.h"

namespace weft::cli {

void add_guest_options(CommandLine command, JoinOptions& options);

// When it keeps away. Errors: InvalidArgument, with the option's name.
Result<peer::MannersRules> manners_of(const JoinOptions& options);

bool has_rules(const peer::MannersRules& rules);

// What looks at this machine for them. WEFT_MACHINE_ROOT stands for / there: for tests.
std::filesystem::path machine_root();
std::unique_ptr<peer::MachineWatch> machine_watch(const peer::MannersRules& rules, bool uses_gpu);

// The device with as many threads as --cpus says; for a guest's processor without a number all but one.
Result<std::string> device_with_cpus(const std::string& device, const JoinOptions& options);

// Of what is free, how much is offered when nobody says how much.
double share_of(const JoinOptions& options);

// Whoever else computes, reads or writes on this machine comes first (nice 19, idle I/O), and when memory
// runs out this process is the one to go. Of this thread and those that it starts from now on.
void give_way_to_others();

}  // namespace weft::cli
