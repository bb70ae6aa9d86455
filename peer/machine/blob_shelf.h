// Which blobs the shell holds for a peer, which are on their way, and who wants them. Lists name blobs:
// snapshots, what is stood by for, uploads. What nobody names any more may go. Holds no bytes itself.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "peer/machine/peer.h"

namespace weft::peer {

// A blob that is to be fetched.
struct WantedBlob {
  Digest sha256{};
  uint64_t size = 0;
};

// Where a blob is fetched that is not the broker's to give, and an earlier copy of the same tensor.
struct BlobOrigin {
  std::shared_ptr<const proto::BlobSource> source{};
  std::optional<Digest> base{};
};
using BlobOrigins = std::map<Digest, BlobOrigin>;
BlobOrigins origins_of(const std::vector<proto::TensorReference>& tensors,
                       const std::vector<proto::BlobSource>& sources);

// Tensors that are wanted together. Those that are neither here nor under way are `to_fetch`, in order.
struct BlobList {
  std::vector<WantedBlob> blobs;  // each once, in order
  std::set<Digest> missing;
  std::deque<WantedBlob> to_fetch;
  BlobOrigins origins;  // of those that the broker has not
};

class BlobShelf {
 public:
  BlobList list_of(const std::vector<proto::TensorReference>& tensors) const;
  void restock(BlobList& list) const;

  void name(const std::vector<WantedBlob>& blobs);
  void unname(const std::vector<WantedBlob>& blobs);
  // Held, and without a name: they are held no longer. At the end of each event, for what loses one name may
  // get another within it.
  void forget_unnamed(PeerEffects& out);

  void arrived(const Digest& sha256, uint64_t size);
  bool holds(const Digest& sha256) const { return held_.contains(sha256); }
  std::set<Digest> held() const;
  int64_t bytes() const;  // here or under way

  // The next of the list's to be asked for, if that may be now: of the broker and of each peer `at_once` of
  // one kind at a time, and with a rate as many as half a second carries.
  std::optional<FetchBlob> next_fetch(BlobList& list, uint64_t rate, uint32_t at_once);
  // Under way at a stand-by's pace and needed now.
  std::optional<FetchBlob> hurry(const WantedBlob& blob, const BlobOrigins& origins);
  bool is_under_way(const Digest& sha256) const { return fetching_.contains(sha256); }
  // It has come, or failed: its size; nothing when it was not asked for.
  std::optional<uint64_t> end_fetch(const Digest& sha256);
  void end_all_fetches() { fetching_.clear(); }

  uint32_t count_failure(const Digest& sha256) { return ++failures_[sha256]; }
  void forget_failures(const Digest& sha256) { failures_.erase(sha256); }
  void forget_all_failures() { failures_.clear(); }

 private:
  FetchBlob fetch_of(const WantedBlob& blob, uint64_t rate, const BlobOrigins& origins) const;

  bool has_room(const PeerId& from, const FetchBlob& fetch, uint32_t at_once) const;

  struct UnderWay {
    uint64_t rate = 0, size = 0;
    PeerId from{};  // zeros: the broker
  };
  std::map<Digest, uint64_t> held_;   // the shell has their bytes: so many
  std::map<Digest, uint32_t> named_;  // by how many lists
  std::set<Digest> perhaps_unnamed_;  // held ones whose last name may have gone
  std::map<Digest, UnderWay> fetching_;
  std::map<Digest, uint32_t> failures_;
};

// Copies of a run's state, by step; what its stage began with is one.
class Snapshots {
 public:
  explicit Snapshots(BlobShelf& shelf) : shelf_(shelf) {}

  // A stage begins after that step: copies of steps that will be done again are of no use.
  void begin(uint64_t after_step);
  void keep(uint64_t step, std::vector<WantedBlob> blobs, size_t most);
  // The first is what the run would go back to; between that and the newest any is as good as another. Where
  // there is room for one alone that is the newest: the broker has the first too.
  void trim(size_t most);
  // Of those that nobody else keeps, the one that is needed least. False: there is none.
  bool let_go(const std::set<uint64_t>& kept_elsewhere);
  size_t count_beside(const std::set<uint64_t>& steps) const;  // of other steps
  void forget(uint64_t before);

 private:
  using Copies = std::map<uint64_t, std::vector<WantedBlob>>;
  void erase(Copies::iterator copy);

  BlobShelf& shelf_;
  Copies copies_;
};

}  // namespace weft::peer
