// A store in memory that fails when it is told to.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "tests/support/memory_store.h"

namespace weft::broker {

class FlakyStore final : public Store {
 public:
  // What the next appends answer, before anything is done; nothing: they are done. Any thread.
  void set_verdict(std::function<Status(std::span<const Record>)> verdict) {
    const std::lock_guard lock(mutex_);
    verdict_ = std::move(verdict);
  }
  test::MemoryStore& memory() { return memory_; }  // before and after the core has it
  size_t appends() const { return appends_; }

  Status append(std::span<const Record> records) override;
  Result<StoredState> load() override { return memory_.load(); }
  Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from,
                                              size_t count_max) override {
    return memory_.events(job, from, count_max);
  }
  Result<std::optional<EndedJob>> ended_job(proto::JobNumber job) override { return memory_.ended_job(job); }
  Result<std::vector<EndedJob>> ended_jobs(const std::optional<PeerId>& submitter, proto::JobNumber before,
                                           size_t count_max) override {
    return memory_.ended_jobs(submitter, before, count_max);
  }
  Result<std::optional<StoredJob>> job(proto::JobNumber job) override { return memory_.job(job); }
  Result<std::set<Digest>> blobs_of_ended(int64_t since) override { return memory_.blobs_of_ended(since); }
  Status forget_job(proto::JobNumber job) override { return memory_.forget_job(job); }
  Result<std::optional<std::set<uint64_t>>> revoked_tokens_if_changed() override {
    return memory_.revoked_tokens_if_changed();
  }
  Status create_token(const StoredToken& token) override { return memory_.create_token(token); }
  Result<std::optional<StoredToken>> find_token(uint64_t id) override { return memory_.find_token(id); }
  Result<std::vector<StoredToken>> tokens() override { return memory_.tokens(); }
  Status revoke_token(uint64_t id) override { return memory_.revoke_token(id); }

 private:
  test::MemoryStore memory_;
  std::mutex mutex_;
  std::function<Status(std::span<const Record>)> verdict_;  // guarded by mutex_
  std::atomic<size_t> appends_{0};
};

}  // namespace weft::broker
