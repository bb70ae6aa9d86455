// A broker's store in memory: what has been appended is durable until the object goes. For tests of the core,
// and for the simulator, where it is the disk that survives a crash.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "broker/store.h"

namespace weft::test {

class MemoryStore final : public broker::Store {
 public:
  Status append(std::span<const broker::Record> records) override;
  Result<broker::StoredState> load() override { return state_; }
  Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from, size_t count_max) override;

  Result<std::optional<EndedJob>> ended_job(proto::JobNumber job) override;
  Result<std::vector<EndedJob>> ended_jobs(const std::optional<PeerId>& submitter, proto::JobNumber before,
                                           size_t count_max) override;
  Result<std::optional<broker::StoredJob>> job(proto::JobNumber job) override;
  Result<std::set<Digest>> blobs_of_ended(int64_t resumable_since_unix_ms) override;
  Status forget_job(proto::JobNumber job) override;
  Result<std::optional<std::set<uint64_t>>> revoked_tokens_if_changed() override;

  Status create_token(const broker::StoredToken& token) override;
  Result<std::optional<broker::StoredToken>> find_token(uint64_t id) override;
  Result<std::vector<broker::StoredToken>> tokens() override;
  Status revoke_token(uint64_t id) override;

  const broker::StoredState& state() const { return state_; }
  // The next appends fail, as of a full disk.
  void set_full(bool full) { full_ = full; }

 private:
  void apply(const broker::Record& record);
  Status check(const broker::Record& record) const;

  broker::StoredState state_;
  std::map<proto::JobNumber, std::vector<proto::JobEvent>> events_;
  std::map<uint64_t, broker::StoredToken> tokens_;
  std::map<proto::JobNumber, EndedJob> ended_;
  bool full_ = false;
};

}  // namespace weft::test
