// Rows of jobs that have ended: when each did, and their end.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "broker/store/sqlite.h"
#include "proto/messages.h"

namespace weft::broker {

// Jobs that ended before then, by number: when is the time of a job's last event.
Result<std::vector<proto::JobNumber>> ended_before(Database& database, int64_t unix_ms);
// REQUIRES: within a transaction; the jobs have ended. Their numbers are not given again.
Status erase_jobs(Database& database, const std::vector<proto::JobNumber>& jobs);

}  // namespace weft::broker
