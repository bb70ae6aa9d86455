#include "peer/service/blobs_in_memory.h"

#include "peer/backend/host/host_memory.h"

namespace weft::peer {

void BlobsInMemory::forget(std::span<const Digest> blobs) {
  constexpr size_t kLarge = 16 << 20;
  size_t bytes = 0;
  for (const Digest& sha256 : blobs)
    if (const auto at = blobs_.find(sha256); at != blobs_.end()) {
      bytes += at->second.bytes.size();
      blobs_.erase(at);
    }
  if (bytes >= kLarge) return_freed_memory();
}

const net::SharedBytes* BlobsInMemory::find(const Digest& sha256) const {
  const auto at = blobs_.find(sha256);
  return at == blobs_.end() ? nullptr : &at->second;
}

std::map<Digest, net::SharedBytes> BlobsInMemory::of(std::span<const proto::TensorReference> tensors) const {
  std::map<Digest, net::SharedBytes> blobs;
  for (const proto::TensorReference& tensor : tensors)
    if (const auto at = blobs_.find(tensor.sha256); at != blobs_.end()) blobs.insert(*at);
  return blobs;
}

std::optional<BulkTransfers::Base> BlobsInMemory::base(const std::optional<Digest>& sha256) const {
  const net::SharedBytes* bytes = sha256 ? find(*sha256) : nullptr;
  if (bytes == nullptr) return std::nullopt;
  return BulkTransfers::Base{*sha256, bytes->owner, bytes->bytes};
}

HeldBlob BlobsInMemory::held(const proto::GetBlob& request) const {
  HeldBlob held;
  const net::SharedBytes* blob = find(request.sha256);
  if (blob == nullptr) return held;
  held.bytes = *blob;
  const net::SharedBytes* base = request.base ? find(*request.base) : nullptr;
  if (base != nullptr && base->bytes.size() == blob->bytes.size()) held.base = *base;
  return held;
}

}  // namespace weft::peer
