// The core's desk of blobs: which are spoken of, what may go, and what may be damaged. What touches the disk
// is work for a thread of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "broker/events.h"
#include "broker/service/blob_leases.h"
#include "storage/blob_store.h"

namespace weft::broker {

class BlobKeeper {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void on_disk(std::function<void()> work) = 0;  // later, one after the other
    // Any thread.
    virtual void on_verified(const BlobsVerified& verified) = 0;
    virtual void on_kept(const BlobsKept& kept) = 0;
    virtual void on_line(const std::string& line) = 0;  // of the log
  };
  // `blobs` and `leases` outlive this, and this the work that it gives.
  BlobKeeper(storage::BlobStore& blobs, BlobLeases& leases, Outside& outside, Duration collect_every)
      : blobs_(blobs), leases_(leases), outside_(outside), collect_every_(collect_every) {}

  void begin(ConnectionId connection, const PeerId& who) { recipients_[connection] = {.who = who}; }
  void end(ConnectionId connection) { recipients_.erase(connection); }
  void on_sent(const Send& sent);
  // What a peer says may have to do with damage here.
  void on_received(const Received& report, Instant now);
  // Of those that it names, how many are not here.
  uint32_t missing_of(const proto::CheckpointReport& report) const;
  void on_durable(std::span<const Record> records);
  void verify(VerifyBlobs request);
  void make_durable(KeepBlobs request);

  // What a broker before this one left: states in memory that spilled, and files of jobs that are not open.
  void remove_old(const std::filesystem::path& jobs, const std::set<proto::JobNumber>& open);
  void keep_transient(KeepTransient keep);
  bool collection_is_due(Instant now) const { return now >= next_collection_; }
  // Data of jobs that ended since then stays: they may be resumed.
  static int64_t resumable_since(int64_t unix_ms);
  // `open`: what jobs that go on refer to; `ended`: those that ended lately.
  void collect(Instant now, std::set<Digest> open, Result<std::set<Digest>> ended);

 private:
  struct Recipient {  // a connection that is there, and what it was told last
    PeerId who{};
    std::map<proto::JobNumber, std::shared_ptr<const proto::Message>> stages{};
    std::shared_ptr<const proto::Message> stand_by{};
  };
  bool may_fetch(const Recipient& who, const Digest& blob) const;

  storage::BlobStore& blobs_;
  BlobLeases& leases_;
  Outside& outside_;
  const Duration collect_every_;
  Instant next_collection_{};
  std::map<ConnectionId, Recipient> recipients_;
  std::map<PeerId, Instant> damage_looked_for_;  // because it said so
  std::vector<Digest> transient_kept_;           // by the last round
};

}  // namespace weft::broker
