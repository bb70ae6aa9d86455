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

namespace {

// A masked key has weight zero, and zero times NaN would count.
Status clear(peer::Backend& backend, peer::Memory& memory, int64_t begin, int64_t end) {
  const int64_t element = backend.storage_bytes({DType::U8, {1}}, dag::Layout::Plain).value;
  return backend.fill_zero({&memory, begin}, {DType::U8, {(end - begin) / element}});
}

// Slices of positions, and elements of a position in one.
std::pair<int64_t, int64_t> around(const dag::CacheSpec& cache) {
  const auto split = cache.shape.begin() + static_cast<std::ptrdiff_t>(cache.axis);
  return {std::accumulate(cache.shape.begin(), split, int64_t{1}, std::multiplies<>()),
          std::accumulate(split, cache.shape.end(), int64_t{1}, std::multiplies<>())};
}

// Towards the end of the same memory, or elsewhere: the last bytes first, so that none is written over before
// it has been read, and no single copy overlaps.
Status copy_up(peer::Backend& backend, peer::View from, peer::View to, DType dtype, int64_t count,
               int64_t element) {
  const int64_t apart = from.memory == to.memory ? to.offset - from.offset : count * element;
  if (apart == 0) return {};
  const int64_t step = std::max<int64_t>(1, std::min(count, apart / element));
  for (int64_t left = count; left > 0;) {
    const int64_t now = std::min(step, left);
    left -= now;
    WEFT_TRY_STATUS(backend.copy({from.memory, from.offset + left * element},
                                 {to.memory, to.offset + left * element}, {dtype, {now}}));
  }
  return {};
}

}  // namespace

Status Cache::reserve(int64_t positions, int64_t room, int64_t kept, const CacheLayout& layout,
                      int64_t context) {
  if (positions <= capacity_) return {};
  peer::Backend& backend = layout.backend();
  const int64_t capacity = rounded_capacity(positions, context);
  const int64_t wanted = layout.bytes(capacity).value;
  if (memory_ && memory_->size().value >= wanted) {
    if (cleared_ < wanted) WEFT_TRY_STATUS(clear(backend, *memory_, cleared_, wanted));
    WEFT_TRY_STATUS(move(*memory_, capacity, kept, layout));
  } else {
    WEFT_TRY(auto memory, backend.allocate(layout.bytes(
                              rounded_capacity(std::max(positions, std::min(room, context)), context))));
    WEFT_TRY_STATUS(clear(backend, *memory, 0, wanted));
    if (kept > 0) WEFT_TRY_STATUS(move(*memory, capacity, kept, layout));
    memory_ = std::move(memory);
    cleared_ = 0;
  }
  capacity_ = capacity;
  cleared_ = std::max(cleared_, wanted);
  return {};
}

Status Cache::prepare(const CacheLayout& layout, int64_t context) {
  constexpr int64_t kPasses = 48;  // there are 64 until the cache grows again, at least
  if (!memory_ || capacity_ == context) return {};
  const int64_t used = layout.bytes(capacity_).value;
  const int64_t next =
      std::min(layout.bytes(rounded_capacity(capacity_ + 1, context)).value, memory_->size().value);
  if (cleared_ >= next) return {};
  const int64_t end =
      std::min(next, cleared_ + peer::align_up((next - used) / kPasses, layout.backend().alignment()));
  WEFT_TRY_STATUS(clear(layout.backend(), *memory_, cleared_, end));
  cleared_ = end;
  return {};
}

Status Cache::clear_behind(int64_t kept, const CacheLayout& layout) const {
  if (kept >= capacity_) return {};
  peer::Backend& backend = layout.backend();
  const std::vector<int64_t> offsets = layout.offsets(capacity_);
  size_t i = 0;
  for (const auto& [name, cache] : layout.caches()) {
    const auto [outer, inner] = around(cache);
    const int64_t element = backend.storage_bytes({cache.dtype, {1}}, dag::Layout::Plain).value;
    for (int64_t o = 0; o < outer; ++o)
      WEFT_TRY_STATUS(backend.fill_zero(at(offsets[i] + (o * capacity_ + kept) * inner * element),
                                        {cache.dtype, {(capacity_ - kept) * inner}}));
    ++i;
  }
  return {};
}

// From the last slice to the first: in the same memory each lands behind where it lay, and before what was
// moved.
Status Cache::move(peer::Memory& to, int64_t capacity, int64_t kept, const CacheLayout& layout) const {
  peer::Backend& backend = layout.backend();
  const std::vector<int64_t> old_offsets = layout.offsets(capacity_), new_offsets = layout.offsets(capacity);
  size_t i = layout.caches().size();
  for (auto one = layout.caches().rbegin(); one != layout.caches().rend(); ++one) {
    --i;
    const CacheSpec& cache = one->second;
    const auto [outer, inner] = around(cache);
    const int64_t element = backend.storage_bytes({cache.dtype, {1}}, dag::Layout::Plain).value;
    for (int64_t o = outer; o-- > 0;)
      WEFT_TRY_STATUS(copy_up(backend, at(old_offsets[i] + o * capacity_ * inner * element),
                              {&to, new_offsets[i] + o * capacity * inner * element}, cache.dtype,
                              kept * inner, element));
  }
  return {};
}

}  // namespace weft::serve
