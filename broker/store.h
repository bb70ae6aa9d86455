// The broker's durable memory. SQLite stands behind it (broker/store/sqlite_store.h); a server's database
// can.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/records.h"

namespace weft::broker {

struct StoredToken {
  uint64_t id = 0;
  proto::Role role = proto::Role::Peer;
  Digest secret_digest;
  int64_t created_unix_ms = 0;
  std::optional<int64_t> expires_unix_ms;
  std::optional<uint32_t> uses_max;  // how many keys may be admitted by it; nothing: no limit
  uint32_t uses = 0;
  bool revoked = false;
  std::string label{};  // for people: whom it was given to
};

// One thread at a time. After append() came back with ResourceExhausted (the disk is full) nothing of it was
// done, and it may be tried again, also later. With PermissionDenied or InvalidArgument nothing of it was
// done either, and trying again is of no use. Any other error means that the process must end: what the disk
// holds is not known any more, all of the append or nothing.
class Store {
 public:
  virtual ~Store() = default;

  // All of them, in order, or none; durable when it returns. An admission is refused (PermissionDenied) when
  // its token has no use left by then.
  virtual Status append(std::span<const Record> records) = 0;
  virtual Result<StoredState> load() = 0;
  // At most `count_max` events of the job with sequence >= from, in order.
  virtual Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from,
                                                      size_t count_max) = 0;

  // Of a job that has ended: whose it was, and what was said of it last. Nothing: no such job, or it is open.
  struct EndedJob {
    PeerId submitter{};
    proto::JobStatus status{};
  };
  virtual Result<std::optional<EndedJob>> ended_job(proto::JobNumber job) = 0;
  // The newest `count_max` below `before` (0: of all), newest first; of one submitter where one is named.
  virtual Result<std::vector<EndedJob>> ended_jobs(const std::optional<PeerId>& submitter,
                                                   proto::JobNumber before, size_t count_max) = 0;
  // As load() has it, whether it has ended or not.
  virtual Result<std::optional<StoredJob>> job(proto::JobNumber job) = 0;
  // What is kept of jobs that have ended: models, checkpoints, results and predictions; the data, too, of
  // those that failed or were stopped after `resumable_since`.
  virtual Result<std::set<Digest>> blobs_of_ended(int64_t resumable_since_unix_ms) = 0;

  // Forgets jobs that ended before then: all that is known of them but that their numbers are taken.
  struct Forgotten {
    std::vector<proto::JobNumber> jobs{};
    std::set<Digest> blobs{};  // that no job which has ended names any more; one that is open may
  };
  // `tries`: nothing is forgotten, only said. A store that keeps nothing has nothing to forget.
  virtual Result<Forgotten> forget_ended(int64_t /*before_unix_ms*/, bool /*tries*/) { return Forgotten{}; }
  // The same of one job, whenever it ended. NotFound: there is none, or it has not ended.
  virtual Status forget_job(proto::JobNumber job) = 0;

  // Tokens that are revoked, when anything in the database was changed by another process since the last
  // time; else nothing.
  virtual Result<std::optional<std::set<uint64_t>>> revoked_tokens_if_changed() = 0;

  virtual Status create_token(const StoredToken& token) = 0;
  virtual Result<std::optional<StoredToken>> find_token(uint64_t id) = 0;
  virtual Result<std::vector<StoredToken>> tokens() = 0;
  virtual Status revoke_token(uint64_t id) = 0;  // NotFound; again is fine
};

}  // namespace weft::broker
