// The broker's durable memory in one SQLite file.
//
// Beside a running broker another process may list, create and revoke tokens: the file is in WAL mode,
// writers wait for each other up to ten seconds. Every write is on the disk when it returns (synchronous
// FULL). The file is made with mode 0600 in a folder that exists; SQLite keeps NAME-wal and NAME-shm beside
// it while somebody has it open.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "broker/store.h"

namespace weft::broker {

inline constexpr int64_t kStoreFormat = 8;

struct SqliteStoreOptions {
  std::string vfs{};         // a registered sqlite3_vfs, through which all files go; empty: the system's
  int log_pages_max = 1000;  // of the write-ahead log, before it is folded into the file
  // Bytes. Every page of a file up to this size is checked at the start; of a larger one past events are not:
  // damage there is found by events().
  int64_t whole_check_size_max = int64_t{16} << 20;
};

// Makes the database where there is none, and brings one of an older format to this one.
// Errors name the file. Of this and of every function of the store: Corrupted (damaged, or no database of
// weft's), VersionMismatch (of a later weft), Unavailable (another process holds it, or the disk fails),
// ResourceExhausted (disk full), PermissionDenied, NotFound (the folder). Records that contradict what is
// stored are InvalidArgument: a job that was never submitted, an event twice, a command of another plan.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& file,
                                                 const SqliteStoreOptions& options = {});

}  // namespace weft::broker
