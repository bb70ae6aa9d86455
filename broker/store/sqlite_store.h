// The broker's durable memory in one SQLite file.
//
// Beside a running broker another process may list, create and revoke tokens: the file is in WAL mode,
// writers wait for each other up to ten seconds. Every write is on the disk when it returns (synchronous
// FULL). The file is made with mode 0600 in a folder that exists; SQLite keeps NAME-wal and NAME-shm beside
// it while somebody has it open.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "broker/store.h"

namespace weft::broker {

inline constexpr int64_t kStoreFormat = 1;

// Makes the database where there is none, and brings one of an older format to this one.
// Errors name the file. Of this and of every function of the store: Corrupted (damaged, or no database of
// weft's), VersionMismatch (of a later weft), Unavailable (another process holds it, or the disk fails),
// ResourceExhausted (disk full), PermissionDenied, NotFound (the folder). Records that contradict what is
// stored are InvalidArgument: a job that was never submitted, an event twice.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& file);

}  // namespace weft::broker
