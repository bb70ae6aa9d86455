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
  bool full_ = false;
};

}  // namespace weft::test
