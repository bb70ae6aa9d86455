// Internal to storage: what a BlobStore and its writers share.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/blob_store.h"
#include "storage/sha256.h"

namespace weft::storage {

inline Digest digest_of(Sha256& hash) { return *digest_from_hex(hash.hex()); }

inline Status allow(const FaultHook& hook, std::string_view operation, const std::filesystem::path& path) {
  return hook ? hook(operation, path) : Status{};
}

// A lock on a temporary file tells other processes that its writer lives: it goes when the process does.
bool lock_temporary(int descriptor);

struct BlobStore::Shared {
  explicit Shared(BlobStoreOptions all) : options(std::move(all)), files(options.hook) {}

  const BlobStoreOptions options;
  Mutex mutex;
  Files files WEFT_GUARDED_BY(mutex);
  std::set<std::filesystem::path> made WEFT_GUARDED_BY(mutex);  // folders of blobs, durably there
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct TransientBlob {
    uint64_t size = 0;
    std::chrono::steady_clock::time_point asked{};
    Bytes bytes{};  // null: in its file
  };
  std::unordered_map<Digest, TransientBlob> transient WEFT_GUARDED_BY(mutex);
  // Each of them once, with a time at or before which it was last asked for: the oldest come first, nearly,
  // so that removing looks at those only.
  std::deque<std::pair<std::chrono::steady_clock::time_point, Digest>> ages WEFT_GUARDED_BY(mutex);
  // Bytes of these, and of what has come of others.
  uint64_t in_memory WEFT_GUARDED_BY(mutex) = 0;
  // Folders of blobs, written by processes before this one.
  std::set<std::filesystem::path> older WEFT_GUARDED_BY(mutex);
  // They have their durable name, which a crash could still take.
  std::set<Digest> unsynced WEFT_GUARDED_BY(mutex);
  // Bytes that open writers have room for and did not write yet.
  uint64_t promised WEFT_GUARDED_BY(mutex) = 0;

  // Whether there is a transient one; it is then young again.
  bool ask_transient(const Digest& sha256) {
    const MutexLock hold(mutex);
    const auto found = transient.find(sha256);
    if (found == transient.end()) return false;
    found->second.asked = std::chrono::steady_clock::now();
    return true;
  }
  bool knows_transient(const Digest& sha256) {
    const MutexLock hold(mutex);
    return transient.contains(sha256);
  }
  // Null when it is not held in memory.
  Bytes find_in_memory(const Digest& sha256) {
    const MutexLock hold(mutex);
    const auto found = transient.find(sha256);
    return found == transient.end() ? nullptr : found->second.bytes;
  }
  // Two writers may have brought the same: the file stays the one that is known, so that it goes in its turn.
  void add_transient(const Digest& sha256, TransientBlob blob) {
    const MutexLock hold(mutex);
    const auto found = transient.find(sha256);
    if (found == transient.end()) {
      ages.emplace_back(blob.asked, sha256);
      transient[sha256] = std::move(blob);
      return;
    }
    if (found->second.bytes || blob.bytes) in_memory -= blob.size;
    found->second.asked = blob.asked;
    if (!blob.bytes) found->second.bytes = nullptr;
  }
  bool is_unsynced(const Digest& sha256) {
    const MutexLock hold(mutex);
    return unsynced.contains(sha256);
  }
  void mark_unsynced(const Digest& sha256, bool is) {
    const MutexLock hold(mutex);
    if (is)
      unsynced.insert(sha256);
    else
      unsynced.erase(sha256);
  }
  Status make_directories(const std::filesystem::path& folder) {
    const MutexLock hold(mutex);
    if (made.contains(folder)) return {};
    WEFT_TRY_STATUS(files.make_directories(folder));
    made.insert(folder);
    return {};
  }
};

}  // namespace weft::storage
