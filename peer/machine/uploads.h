// Snapshots and predictions on their way to the broker: hashed, offered, and what it lacks is put. They name
// their blobs on the shelf until they are through. Direct snapshots stay, for others to fetch.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "peer/machine/blob_shelf.h"
#include "peer/machine/peer.h"
#include "peer/machine/transfer_pauses.h"

namespace weft::peer {

// What a snapshot or a segment's predictions gave: waits (number 0), is offered, and then put.
struct Upload {
  Task task{};
  std::vector<proto::TensorReference> tensors{};
  std::vector<WantedBlob> blobs{};  // of the tensors, each once
  uint64_t number = 0;
  std::map<Digest, uint64_t> to_put{};  // and how many bytes of each have left
  uint32_t attempts = 0;

  bool is_snapshot() const { return task.kind == TaskKind::Snapshot; }
};

// Of one stage. Uploads are numbered on from `numbered`, which all stages of a peer share, so that what comes
// for another stage's is nobody's here. Movable while it is empty.
class Uploads {
 public:
  struct Done {
    Upload upload;
    std::optional<Error> failure;
  };
  Uploads(BlobShelf& shelf, TransferPauses& pauses, uint64_t generation, uint64_t& numbered)
      : shelf_(shelf), pauses_(pauses), generation_(generation), last_number_(numbered) {}

  // A snapshot was copied and its hashes are awaited; and they have come.
  void expect_hashes() { ++hashing_; }
  void end_hashing() { hashing_ -= hashing_ > 0; }
  void add(const Task& task, std::vector<proto::TensorReference> tensors);
  // A direct snapshot: named until its command is settled.
  void keep(const Task& task, const std::vector<proto::TensorReference>& tensors);
  // The oldest of these gives way to the next snapshot: who has not fetched it yet cannot. False: there is
  // none.
  bool drop_direct();
  // Offers what may go now, a few of each kind at once. What has no tensors is done.
  std::vector<Done> start(PeerEffects& out);
  // How the broker gets what it lacks. A snapshot goes at `snapshot_rate` (0: as fast as it can), but for
  // that of the last step: nothing is held up by it.
  struct Terms {
    uint64_t snapshot_rate = 0, last_step = 0;
    bool packs = false;
  };
  bool has(uint64_t number) const;  // under way
  // What the broker says; what it says of uploads that are not under way is dropped. What failed and may be
  // tried again is offered anew after a pause, for some of it may have been stored.
  std::optional<Done> on_missing(Instant now, uint64_t number, const Result<std::vector<Digest>>& missing,
                                 const Terms& terms, PeerEffects& out);
  std::optional<Done> on_uploaded(Instant now, uint64_t number, const Digest& sha256, const Status& stored);
  void on_sent(uint64_t number, const Digest& sha256, uint64_t bytes);
  void interrupt();                       // the broker went: everything is offered anew
  void drop_snapshots(uint64_t settled);  // nobody waits for those of commands up to it
  void clear();                           // the stage has gone, or failed

  // Copied and not through, or not settled.
  size_t snapshots() const;
  std::set<uint64_t> snapshot_steps() const;  // of those that are hashed
  // The oldest checkpoint that is not through: its step, and how many bytes of its tensors the broker has, or
  // has been sent.
  struct Saving {
    uint64_t step = 0;
    Bytes saved{};
  };
  std::optional<Saving> saving() const;
  size_t predictions() const;
  bool anything_waits() const;  // for start()

 private:
  Upload* find(uint64_t number);
  std::optional<Digest> base_of(const Upload& upload, const Digest& sha256) const;
  Done take(uint64_t number, std::optional<Error> failure = {});
  std::optional<Done> on_failed(Instant now, Upload& upload, const Error& error);

  BlobShelf& shelf_;
  TransferPauses& pauses_;
  uint64_t generation_;
  std::deque<Upload> uploads_;
  std::map<dag::StateKey, Digest> stored_;  // of the newest snapshot that the broker has
  size_t hashing_ = 0;
  uint64_t& last_number_;
};

}  // namespace weft::peer
