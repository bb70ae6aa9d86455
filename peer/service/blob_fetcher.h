// Where the blobs that a peer is to have come from: it makes them, reads them in files of this machine, or
// fetches them. All that comes is kept in memory. Belongs to the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/loop.h"
#include "peer/machine/peer.h"
#include "peer/service/blobs_in_memory.h"
#include "peer/service/bulk_service.h"
#include "peer/service/kept_weights.h"
#include "peer/service/made_blobs.h"

namespace weft::peer {

class BlobFetcher {
 public:
  struct Outside {
    std::function<void(const Digest& sha256, const Status& fetched)> on_blob;  // perhaps within fetch()
    std::function<void(const std::string& line)> log;
  };
  // `blobs` outlives it. `weights`: null: there are none.
  BlobFetcher(net::Loop& loop, BlobsInMemory& blobs, std::shared_ptr<const weights::WeightIndex> weights,
              Outside outside)
      : blobs_(blobs), kept_(loop, std::move(weights)), outside_(std::move(outside)) {}

  // What can be made of what it names.
  void learn(const proto::AssignStage& assignment) {
    made_.learn(assignment);
    kept_.learn(assignment);
  }
  // `bulk` has to be there until reset().
  void fetch(const FetchBlob& fetch, BulkService& bulk);
  // What was asked for is not wanted; BulkService::reset() beside it.
  void reset() { kept_.reset(); }
  // As KeptWeights.
  std::string describe(const proto::AssignStage& assignment) const { return kept_.describe(assignment); }

 private:
  void fetch_from_elsewhere(const FetchBlob& fetch, BulkService& bulk);
  void take(const Digest& sha256, Result<net::SharedBytes> bytes);

  BlobsInMemory& blobs_;
  MadeBlobs made_;
  KeptWeights kept_;
  const Outside outside_;
};

}  // namespace weft::peer
