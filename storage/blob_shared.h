// Internal to storage: what a BlobStore and its writers share.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

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
  std::mutex mutex;  // of what follows
  Files files;
  std::set<std::filesystem::path> made;  // folders of blobs, durably there
  struct TransientBlob {
    uint64_t size = 0;
    std::chrono::steady_clock::time_point asked{};
  };
  std::map<Digest, TransientBlob> transient;
  std::set<std::filesystem::path> older;  // folders of blobs, written by processes before this one
  std::set<Digest> unsynced;              // have their durable name, which a crash could still take
  uint64_t promised = 0;                  // bytes that open writers have still to write

  // Whether there is a transient one; it is then young again.
  bool ask_transient(const Digest& sha256) {
    const std::lock_guard hold(mutex);
    const auto found = transient.find(sha256);
    if (found == transient.end()) return false;
    found->second.asked = std::chrono::steady_clock::now();
    return true;
  }
  bool knows_transient(const Digest& sha256) {
    const std::lock_guard hold(mutex);
    return transient.contains(sha256);
  }
  bool is_unsynced(const Digest& sha256) {
    const std::lock_guard hold(mutex);
    return unsynced.contains(sha256);
  }
  void mark_unsynced(const Digest& sha256, bool is) {
    const std::lock_guard hold(mutex);
    if (is)
      unsynced.insert(sha256);
    else
      unsynced.erase(sha256);
  }
  Status make_directories(const std::filesystem::path& folder) {
    const std::lock_guard hold(mutex);
    if (made.contains(folder)) return {};
    WEFT_TRY_STATUS(files.make_directories(folder));
    made.insert(folder);
    return {};
  }
};

}  // namespace weft::storage
