// weft job-keys: every key of the job file as Markdown; docs/JOB.md is its output.
#pragma once

#include "cli/command_line.h"

namespace weft::cli {

void add_job_keys(CommandLine program, Command& chosen);

}  // namespace weft::cli
