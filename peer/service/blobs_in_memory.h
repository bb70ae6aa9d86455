// The bytes of blobs that a peer holds, by their hash: what it fetched, and what snapshots copied. The
// machine says how long each stays (peer/machine/blob_shelf.h). One thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "net/frame.h"
#include "peer/service/blob_server.h"
#include "peer/service/bulk.h"
#include "proto/messages.h"

namespace weft::peer {

class BlobsInMemory {
 public:
  void keep(const Digest& sha256, net::SharedBytes bytes) {
    if (const auto [at, is_new] = blobs_.try_emplace(sha256); is_new) at->second = std::move(bytes);
  }
  void forget(std::span<const Digest> blobs);
  // Null: it is not here.
  const net::SharedBytes* find(const Digest& sha256) const;
  // Those of the tensors that are here.
  std::map<Digest, net::SharedBytes> of(std::span<const proto::TensorReference> tensors) const;
  // For packed bytes to be differences to, where it is here.
  std::optional<BulkTransfers::Base> base(const std::optional<Digest>& sha256) const;
  // For another peer that asks. The machine has no part in it: what it keeps is there to be asked for.
  HeldBlob held(const proto::GetBlob& request) const;

 private:
  std::map<Digest, net::SharedBytes> blobs_;
};

}  // namespace weft::peer
