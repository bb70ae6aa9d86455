// Host memory of the cpu backend: blocks aligned to a cache line, the large ones on huge pages where the
// system gives them.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/result.h"
#include "peer/backend/kernel.h"

namespace weft::peer::cpu {

inline constexpr int64_t kAlignment = 64;
inline constexpr int64_t align_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class CpuMemory final : public Memory {
 public:
  // ResourceExhausted when the system has not that much. Its size counts in `used` while it lives.
  static Result<std::unique_ptr<Memory>> make(Bytes size, std::shared_ptr<int64_t> used);
  ~CpuMemory() override;
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  Bytes size() const override { return size_; }
  std::byte* data() const { return data_; }

 private:
  CpuMemory(std::byte* data, Bytes size, bool mapped, std::shared_ptr<int64_t> used)
      : data_(data), size_(size), mapped_(mapped), used_(std::move(used)) {
    *used_ += size_.value;
  }
  std::byte* data_;
  Bytes size_;
  bool mapped_;
  std::shared_ptr<int64_t> used_;
};

// REQUIRES: the view's memory came from this backend.
template <typename T>
T* pointer(View view) {
  if (view.memory == nullptr) return nullptr;
  return reinterpret_cast<T*>(static_cast<CpuMemory*>(view.memory)->data() + view.offset);
}

}  // namespace weft::peer::cpu
