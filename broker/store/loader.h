// Internal to broker/store: the tables as the state to start from. Events are not read for it.
#pragma once

#include "broker/records.h"
#include "broker/store/sqlite.h"

namespace weft::broker {

// The caller holds a transaction.
Result<StoredState> load_state(Database& database);
// One, whether it has ended or not.
Result<std::optional<StoredJob>> load_job(Database& database, proto::JobNumber job);

}  // namespace weft::broker
