#include "peer/backend/cuda/pinned.h"

#include <algorithm>
#include <bit>

namespace weft::peer::cuda {

PinnedPool::~PinnedPool() {
  for (const auto& [size, memory] : kept_) device_->deallocate_pinned(memory);
}

Result<std::shared_ptr<std::byte[]>> PinnedPool::take(Bytes size) {
  constexpr int64_t kSmallest = 4096;
  const auto rounded =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(size.value, kSmallest))));
  std::byte* memory = nullptr;
  {
    const MutexLock lock(mutex_);
    if (const auto found = kept_.find(rounded); found != kept_.end()) {
      memory = found->second;
      kept_.erase(found);
      kept_bytes_ -= rounded;
    }
  }
  if (memory == nullptr) {
    WEFT_TRY(memory, device_->allocate_pinned({rounded}));
  }
  return std::shared_ptr<std::byte[]>(
      memory, [pool = shared_from_this(), rounded](std::byte* given) { pool->give(given, rounded); });
}

void PinnedPool::give(std::byte* memory, int64_t size) {
  {
    const MutexLock lock(mutex_);
    if (kept_bytes_ + size <= kept_max_) {
      kept_.emplace(size, memory);
      kept_bytes_ += size;
      return;
    }
  }
  device_->deallocate_pinned(memory);
}

}  // namespace weft::peer::cuda
