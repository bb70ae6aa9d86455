// Pinned memory of the host, kept for reuse: to pin anew costs a millisecond for each few megabytes. Blocks
// in powers of two from 4 KiB; any thread gives them back.
#pragma once

#include <map>
#include <memory>

#include "base/mutex.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // Keeps at most `kept` bytes that nobody uses.
  PinnedPool(std::shared_ptr<Device> device, Bytes kept)
      : device_(std::move(device)), kept_max_(kept.value) {}
  ~PinnedPool();

  // Goes back to the pool with the last copy.
  Result<std::shared_ptr<std::byte[]>> take(Bytes size);

 private:
  void give(std::byte* memory, int64_t size);

  std::shared_ptr<Device> device_;
  const int64_t kept_max_;
  Mutex mutex_;
  std::multimap<int64_t, std::byte*> kept_ WEFT_GUARDED_BY(mutex_);  // by size
  int64_t kept_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::peer::cuda
