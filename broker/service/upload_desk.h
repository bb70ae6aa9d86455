// Blobs in: whether they are there, and those that come, packed or not, in chunks. What touches the disk is
// work for a thread of its own, in the order in which it came.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "broker/service/blob_leases.h"
#include "broker/service/desk.h"
#include "broker/service/recipe_budget.h"
#include "storage/blob_store.h"
#include "weights/index.h"

namespace weft::broker {

class UploadDesk {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    // Done later, one after the other, on any one thread; what it returns is then sent to `whose`, if that is
    // there. Until then it counts for so many bytes.
    using Work = std::function<std::optional<proto::Message>()>;
    virtual void work(ConnectionId whose, size_t size, Work work) = 0;
  };
  // `blobs` and `leases` outlive this, and this the work that it gives. `weights`: what lies in files of this
  // machine, and need not be uploaded; null: nothing.
  UploadDesk(Connections& connections, Outside& outside, storage::BlobStore& blobs, BlobLeases& leases,
             std::shared_ptr<const weights::WeightIndex> weights = nullptr)
      : connections_(connections),
        outside_(outside),
        blobs_(blobs),
        leases_(leases),
        weights_(std::move(weights)) {}

  // `key`: whose connection it is; leases are its.
  void have(ConnectionId whose, const PeerId& key, const proto::HaveBlobs& request, Instant now);
  void put(ConnectionId whose, const PeerId& key, const proto::PutBlob& request, Instant now);
  void on_chunk(ConnectionId whose, net::InFrame frame, Instant now);
  void end(ConnectionId whose) { uploads_.erase(whose); }

 private:
  struct Upload;
  using UploadPtr = std::shared_ptr<Upload>;
  // What a chunk takes beside itself, as in work. Errors: it is of no blob that was announced, or too much.
  static Result<size_t> take(Upload& upload, std::span<const std::byte> bytes);
  // Those below are work.
  Status begin(Upload& upload, const proto::PutBlob& request, Instant now);
  void finish(Upload& upload, Instant now);
  proto::MissingBlobs look(const PeerId& key, const proto::HaveBlobs& request, Instant now);
  using Copy = std::function<Status(const data::ByteSink& sink)>;
  bool take_from_weights(const PeerId& key, const Digest& blob, Instant now);
  bool make_of_weights(const PeerId& key, const Digest& blob, const dag::Recipe& recipe, Instant now);
  Status store(const PeerId& key, const Digest& blob, uint64_t size, const Copy& copy, Instant now);

  Connections& connections_;
  Outside& outside_;
  storage::BlobStore& blobs_;
  BlobLeases& leases_;
  const std::shared_ptr<const weights::WeightIndex> weights_;
  RecipeBudget budget_;                        // work's
  std::map<ConnectionId, UploadPtr> uploads_;  // the last that each has begun
};

}  // namespace weft::broker
