// Internal to broker/store: the tables, and how those of older formats become these.
#pragma once

#include "broker/store/sqlite.h"

namespace weft::broker {

// Corrupted when the file is not sound where that can be seen in bounded time.
Status check_pages(Database& database, int64_t whole_check_size_max);
// Makes the tables in an empty file; brings those of an older format to this one, in one transaction.
// VersionMismatch for a later format; Corrupted for another program's database.
Status make_or_migrate(Database& database);
Status switch_to_wal(Database& database);

}  // namespace weft::broker
