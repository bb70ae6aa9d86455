// Blobs for tests of those who give and take them.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "peer/service/blob_server.h"
#include "peer/service/bulk.h"
#include "proto/messages.h"
#include "storage/blob_store.h"

namespace weft::peer::test {

using Blob = std::vector<std::byte>;

inline Blob random_blob(uint64_t seed, size_t size) {
  Rng rng(seed, 0);
  Blob bytes(size);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t draw = rng.next_u64();
    std::memcpy(bytes.data() + at, &draw, std::min(sizeof draw, size - at));
  }
  return bytes;
}

// A few numbers moved.
inline Blob moved(Blob blob) {
  for (size_t at = 0; at < blob.size(); at += 1000) blob[at] ^= std::byte{1};
  return blob;
}

inline net::SharedBytes shared(Blob blob) {
  const auto kept = std::make_shared<const Blob>(std::move(blob));
  return {kept, *kept};
}

// What a peer holds, as PeerService answers for it.
class Shelf {
 public:
  Digest put(const Blob& blob) {
    const Digest sha256 = storage::sha256(blob);
    blobs_[sha256] = shared(blob);
    return sha256;
  }
  void forget(const Digest& sha256) { blobs_.erase(sha256); }
  std::weak_ptr<const void> watch(const Digest& sha256) const { return blobs_.at(sha256).owner; }
  HeldBlob find(const proto::GetBlob& request) const {
    HeldBlob held;
    const auto blob = blobs_.find(request.sha256);
    if (blob == blobs_.end()) return held;
    held.bytes = blob->second;
    if (const auto base = request.base ? blobs_.find(*request.base) : blobs_.end(); base != blobs_.end())
      held.base = base->second;
    return held;
  }

 private:
  std::map<Digest, net::SharedBytes> blobs_;
};

}  // namespace weft::peer::test
