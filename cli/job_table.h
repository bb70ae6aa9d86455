// How jobs are shown to people: a line each, or one job in several. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/messages.h"

namespace weft::cli {

// With a heading. Whose each is stands there where they are of several people. `now`: milliseconds since
// 1970.
std::vector<std::string> job_table(const std::vector<proto::JobStatus>& jobs, int64_t now);
// What a job, its stages and their links are doing. `verbose`: of the plan everything.
std::vector<std::string> job_lines(const proto::JobStatus& job, bool verbose, int64_t now);
// Of a job that was resumed: from where.
std::string way_on(const proto::JobStatus& job);

}  // namespace weft::cli
