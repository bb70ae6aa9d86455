// The broker's disk: records that are durable when append() returns, and blobs, durable or transient. What
// the broker's process holds in memory is elsewhere: this survives it.
#pragma once

#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "broker/store.h"
#include "sim/world.h"

namespace weft::sim {

// The state that records leave behind, applied one by one.
class SimStore final : public broker::Store {
 public:
  Status append(std::span<const broker::Record> records) override;
  Result<broker::StoredState> load() override { return state_; }
  Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from, size_t count_max) override;
  Result<std::optional<EndedJob>> ended_job(proto::JobNumber job) override;
  Result<std::vector<EndedJob>> ended_jobs(const std::optional<PeerId>&, proto::JobNumber, size_t) override {
    return std::vector<EndedJob>{};
  }
  Result<std::optional<broker::StoredJob>> job(proto::JobNumber job) override;
  Result<std::set<Digest>> blobs_of_ended(int64_t resumable_since_unix_ms) override;
  Status forget_job(proto::JobNumber) override { return {}; }  // no user there removes jobs
  Result<std::optional<std::set<uint64_t>>> revoked_tokens_if_changed() override { return std::nullopt; }
  // Tokens are another's test: every Hello's is valid here.
  Status create_token(const broker::StoredToken&) override { return {}; }
  Result<std::optional<broker::StoredToken>> find_token(uint64_t) override {
    return std::optional<broker::StoredToken>{};
  }
  Result<std::vector<broker::StoredToken>> tokens() override { return std::vector<broker::StoredToken>{}; }
  Status revoke_token(uint64_t) override { return {}; }

  void set_full(bool full) { full_ = full; }
  bool full() const { return full_; }
  const broker::StoredState& state() const { return state_; }

 private:
  void apply(const broker::Record& record);

  broker::StoredState state_;
  std::map<proto::JobNumber, std::vector<proto::JobEvent>> events_;
  std::map<proto::JobNumber, EndedJob> ended_;
  bool full_ = false;
};

class SimBlobs {
 public:
  bool has(const Digest& blob) const { return durable_.contains(blob) || transient_.contains(blob); }
  bool ask(const Digest& blob, Instant now);  // whether it is there; it is then as new again
  bool has_durable(const Digest& blob) const { return durable_.contains(blob); }
  std::optional<int64_t> size(const Digest& blob) const;
  // ResourceExhausted while the disk is full.
  Status put(const Digest& blob, int64_t size, bool durable, Instant now);
  Status make_durable(const Digest& blob, Instant now);
  Status make_durable(const std::set<Digest>& blobs, Instant now);  // NotFound: one is not there
  // What was put or asked for lately stays: somebody may be about to name it.
  void collect(const std::set<Digest>& kept, Instant now);
  void keep_transient(const std::set<Digest>& kept, Instant now, Duration young);
  void wipe_transient() { transient_.clear(); }
  void set_full(bool full) { full_ = full; }
  // Where copies travel for longer than that: a real broker keeps what a peer that is there has put.
  void set_collect_age(Duration age) { collect_age_ = age; }
  size_t transient_count() const { return transient_.size(); }

 private:
  struct Blob {
    int64_t size = 0;
    Instant since{};
  };
  struct FirstBytes {
    size_t operator()(const Digest& digest) const {
      size_t value;
      std::memcpy(&value, digest.bytes.data(), sizeof(value));
      return value;
    }
  };
  // Walked through only to take some away, which has no order.
  std::unordered_map<Digest, Blob, FirstBytes> durable_, transient_;
  Instant next_sweep_{};
  Duration collect_age_ = std::chrono::minutes(5);
  bool full_ = false;
};

}  // namespace weft::sim
