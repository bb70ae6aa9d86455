#include "serve/cache.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace weft::serve {

using dag::CacheSpec;
using dag::DType;

int64_t rounded_capacity(int64_t positions, int64_t context) {
  const int64_t step = positions <= 256 ? 64 : positions <= 2048 ? 128 : 512;
  return std::min(context, (positions + step - 1) / step * step);
}

CacheLayout::CacheLayout(std::vector<CacheSpec> caches, peer::Backend& backend) : backend_(backend) {
  for (CacheSpec& cache : caches) caches_.emplace(cache.name, std::move(cache));
}

std::vector<int64_t> CacheLayout::offsets(int64_t capacity) const {
  std::vector<int64_t> offsets{0};
  for (const auto& [name, cache] : caches_)
    offsets.push_back(offsets.back() +
                      peer::align_up(backend_.storage_bytes(cache.with(capacity), dag::Layout::Plain).value,
                                     backend_.alignment()));
  return offsets;
}

Status Cache::reserve(int64_t positions, int64_t kept, const CacheLayout& layout, int64_t context) {
  if (positions <= capacity_) return {};
  peer::Backend& backend = layout.backend();
  const int64_t capacity = rounded_capacity(positions, context);
  const Bytes size = layout.bytes(capacity);
  WEFT_TRY(auto memory, backend.allocate(size));
  // A masked key has weight zero, and zero times NaN would count.
  const int64_t element = backend.storage_bytes({DType::U8, {1}}, dag::Layout::Plain).value;
  WEFT_TRY_STATUS(backend.fill_zero({memory.get(), 0}, {DType::U8, {size.value / element}}));
  if (kept > 0) WEFT_TRY_STATUS(move(*memory, capacity, kept, layout));
  memory_ = std::move(memory);
  capacity_ = capacity;
  return {};
}

Status Cache::move(peer::Memory& to, int64_t capacity, int64_t kept, const CacheLayout& layout) const {
  peer::Backend& backend = layout.backend();
  const std::vector<int64_t> old_offsets = layout.offsets(capacity_), new_offsets = layout.offsets(capacity);
  size_t i = 0;
  for (const auto& [name, cache] : layout.caches()) {
    const auto split = cache.shape.begin() + static_cast<std::ptrdiff_t>(cache.axis);
    const int64_t outer = std::accumulate(cache.shape.begin(), split, int64_t{1}, std::multiplies<>());
    dag::TensorSpec slice{cache.dtype, {kept}}, one{cache.dtype, {1}};
    slice.shape.insert(slice.shape.end(), split, cache.shape.end());
    one.shape.insert(one.shape.end(), split, cache.shape.end());
    const int64_t bytes = backend.storage_bytes(one, dag::Layout::Plain).value;
    for (int64_t o = 0; o < outer; ++o)
      WEFT_TRY_STATUS(backend.copy(at(old_offsets[i] + o * capacity_ * bytes),
                                   {&to, new_offsets[i] + o * capacity * bytes}, slice));
    ++i;
  }
  return {};
}

}  // namespace weft::serve
