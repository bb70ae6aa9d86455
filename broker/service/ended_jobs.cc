#include "broker/service/ended_jobs.h"

#include <optional>
#include <set>

#include "broker/broker.h"
#include "broker/service/blob_keeper.h"
#include "broker/service/disk_state.h"
#include "broker/service/wall_clock.h"
#include "broker/store/sqlite_store.h"
#include "storage/files.h"

namespace weft::broker {

namespace fs = std::filesystem;

namespace {

Result<storage::FolderLock> lock_of(storage::Files& files, const fs::path& data_dir) {
  auto lock = storage::FolderLock::acquire(files, data_dir);
  if (!lock && lock.error().code == ErrorCode::Unavailable)
    return fail(ErrorCode::Unavailable, "a broker runs on " + data_dir.string() +
                                            ": started with --keep 7d it does this by itself; else stop it "
                                            "first, or say --dry-run");
  return lock;
}

int64_t sizes_of(const storage::BlobStore& blobs, const std::set<Digest>& which,
                 const std::set<Digest>& kept) {
  int64_t bytes = 0;
  for (const Digest& blob : which)
    if (!kept.contains(blob)) bytes += static_cast<int64_t>(blobs.size(blob).value_or(0));
  return bytes;
}

}  // namespace

Result<Collected> collect_ended(const fs::path& data_dir, Duration keep, bool tries) {
  std::error_code code;
  if (!fs::exists(data_dir / "broker.sqlite", code))
    return fail(ErrorCode::NotFound, data_dir.string() + " holds no broker: is --data-dir right?");
  storage::Files files;
  std::optional<storage::FolderLock> lock;
  if (!tries) {
    WEFT_TRY(auto taken, lock_of(files, data_dir));
    lock.emplace(std::move(taken));
  }
  WEFT_TRY(const auto store, open_sqlite_store(data_dir / "broker.sqlite"));
  WEFT_TRY(const auto blobs, storage::BlobStore::open(data_dir / "blobs"));
  WEFT_TRY(const StoredState state, store->load());
  std::set<Digest> kept = Broker({}, state).referenced_blobs();

  const int64_t now = unix_ms();
  const int64_t before = now - std::chrono::duration_cast<std::chrono::milliseconds>(keep).count();
  WEFT_TRY(const Store::Forgotten forgotten, store->forget_ended(before, tries));
  WEFT_TRY(const std::set<Digest> ended, store->blobs_of_ended(BlobKeeper::resumable_since(now)));
  Collected collected{.jobs = forgotten.jobs};
  if (tries) {
    collected.freed.value = sizes_of(*blobs, forgotten.blobs, kept);
    collected.left.value = look_at_disk(data_dir).blobs.value - collected.freed.value;
    return collected;
  }
  kept.insert(ended.begin(), ended.end());
  WEFT_TRY(const uint64_t freed, blobs->collect(kept));
  collected.freed.value = static_cast<int64_t>(freed);
  collected.left = look_at_disk(data_dir).blobs;
  return collected;
}

}  // namespace weft::broker
