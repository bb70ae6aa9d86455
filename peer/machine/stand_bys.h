// Tensors of stages that others run, held in case one of them is lost: of each run the newest list that is
// here, and the one that is being fetched. They name their blobs on the shelf.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "peer/machine/blob_shelf.h"

namespace weft::peer {

class StandBys {
 public:
  struct List {
    proto::JobNumber run = 0;
    uint64_t step = 0, number = 0;
  };
  static constexpr size_t kListBytesMax = 40 << 20;  // of all lists, without the tensors that they name

  StandBys(BlobShelf& shelf, size_t runs_max) : shelf_(shelf), runs_max_(runs_max) {}

  // Begins to load the list, in the place of one that is loading, within `room` bytes for all blobs (nothing:
  // without a limit). Where it has no room beside the one that is here, that one goes first. Errors:
  // ResourceExhausted, with nothing begun.
  Status begin(const proto::StandBy& message, std::optional<int64_t> room, PeerEffects& out);
  void forget(proto::JobNumber run);
  void forget_all();

  // A blob has come: the lists that are now here. Also for what begin() found here already.
  std::vector<List> on_arrived(const Digest& sha256);
  std::optional<List> complete_if_here(proto::JobNumber run);
  // A blob cannot be had now. When it is not tried again: the lists that are given up, for the one before is
  // still here, and the next one comes with the next round.
  std::vector<List> on_failed(const Digest& sha256, bool again);
  void restock();  // the broker went, and with it what was under way
  void for_each_loading(const std::function<void(BlobList& blobs, uint64_t rate)>& visit);
  bool anything_waits() const;  // to be asked for

 private:
  struct Loading {
    List list;
    uint64_t rate = 0;
    BlobList blobs;
    std::map<dag::StateKey, Digest> tensors;
    size_t bytes = 0;  // that the list itself takes, about
  };
  struct Copies {
    std::optional<Loading> complete, loading;
  };

  BlobShelf& shelf_;
  size_t runs_max_;
  std::map<proto::JobNumber, Copies> runs_;
};

}  // namespace weft::peer
