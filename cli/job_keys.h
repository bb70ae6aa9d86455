// weft job-keys: every key of the job file as Markdown; docs/JOB.md is its output.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/command_line.h"
#include "configs/job_keys.h"

namespace weft::cli {

// One key: its name, what it means, what it takes, an example. Markdown.
Result<std::string> explain_job_key(const configs::JobKey& key);

void add_job_keys(CommandLine program, Command& chosen);

}  // namespace weft::cli
