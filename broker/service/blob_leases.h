// Durable blobs that a key put or asked for and that nothing refers to yet. They are not collected while one
// of its connections is there, and for an hour after that: what they are for (a checkpoint, a submission) may
// still be on its way. What a key put counts against its quota until something refers to it.
//
// A lease ends after a day all the same: a peer stays for weeks, and what became of its failed uploads is not
// known.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace weft::broker {

struct BlobQuota {  // of one key
  uint64_t bytes = uint64_t{1} << 40;
  size_t blobs = 200'000;
};

// Any thread.
class BlobLeases {
 public:
  explicit BlobLeases(BlobQuota quota = {}) : quota_(quota) {}

  void connect(const PeerId& key);
  void disconnect(const PeerId& key, Instant now);

  // A blob of `size` bytes is about to come, which is not there. Errors: ResourceExhausted. Where the quota
  // is full, `is_there` is asked which of the key's blobs still are, at most once a minute.
  Status put(const PeerId& key, const Digest& blob, uint64_t size, Instant now,
             const std::function<bool(const Digest&)>& is_there);
  void drop(const PeerId& key, const Digest& blob);  // it did not come after all
  // It is there, and was asked for. Beyond the quota of blobs nothing is kept: it stays as long as any young
  // one.
  void ask(const PeerId& key, const Digest& blob, Instant now);

  // Something durable names them from now on.
  void refer(std::span<const Digest> blobs);
  void refer(const std::set<Digest>& blobs);

  std::set<Digest> held(Instant now);

  struct Use {
    uint64_t bytes = 0;
    size_t blobs = 0;
  };
  Use use_of(const PeerId& key) const;

 private:
  static constexpr Duration kAfterLeaving = std::chrono::hours(1), kLongest = std::chrono::hours(24);
  static constexpr Duration kLookAgain = std::chrono::minutes(1);
  struct Lease {
    uint64_t size = 0;  // 0: put by somebody else
    Instant since{};
  };
  struct Key {
    size_t connections = 0;
    Instant left_at{};
    std::optional<Instant> looked_at{};
    uint64_t bytes = 0;
    std::unordered_map<Digest, Lease> leases{};
  };
  using Keys = std::map<PeerId, Key>;
  void end(Keys::iterator key, const Digest& blob) WEFT_REQUIRES(mutex_);
  void end_for_all(const Digest& blob) WEFT_REQUIRES(mutex_);
  void add(Keys::iterator key, const Digest& blob, uint64_t size, Instant now) WEFT_REQUIRES(mutex_);

  const BlobQuota quota_;
  mutable Mutex mutex_;
  Keys keys_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<Digest, std::vector<PeerId>> holders_ WEFT_GUARDED_BY(mutex_);  // who has a lease on it
};

}  // namespace weft::broker
