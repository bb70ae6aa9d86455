// A broker's life as appends to its store, the same each time, and all that a store holds as one text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "broker/store/sqlite_store.h"

namespace weft::test {

// A plan without programs: only what the broker itself needs.
std::shared_ptr<const broker::PlannedRun> small_plan(proto::JobNumber job, proto::PlanVersion version,
                                                     uint32_t stage_count, uint64_t after_step);

// One acknowledged write each. In `lives`, for the broker ends and starts again now and then.
using Write = std::function<Status(broker::Store&)>;
std::vector<std::vector<Write>> history();

// Principals, jobs with everything of theirs, past events, tokens.
Result<std::string> everything_in(broker::Store& store);

}  // namespace weft::test
