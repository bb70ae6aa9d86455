#include "tests/support/peak_memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> held{0}, peak{0};

[[maybe_unused]] void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  const size_t size = malloc_usable_size(memory), now = held.fetch_add(size) + size;
  for (size_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) continue;
  return memory;
}
[[maybe_unused]] void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[maybe_unused]] void* allocate(size_t size) { return counted(std::malloc(std::max<size_t>(size, 1))); }
[[maybe_unused]] void* allocate(size_t size, std::align_val_t alignment) {
  const auto step = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(step, (std::max<size_t>(size, 1) + step - 1) / step * step));
}
[[maybe_unused]] void release(void* memory) {
  if (memory != nullptr) held -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

namespace weft::test {

PeakMemory::PeakMemory() : before_(held) { peak = before_; }
size_t PeakMemory::bytes() const { return peak - before_; }

}  // namespace weft::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The other forms of the standard library end in these.
void* operator new(size_t size) { return or_throw(allocate(size)); }
void* operator new(size_t size, std::align_val_t alignment) { return or_throw(allocate(size, alignment)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, alignment);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
#endif
