#include "peer/backend/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace weft::peer::cpu {

Result<std::unique_ptr<Memory>> CpuMemory::make(Bytes size, std::shared_ptr<int64_t> used) {
  constexpr int64_t kMappedFrom = int64_t{4} << 20;
  const auto refused = [&] {
    return fail(ErrorCode::ResourceExhausted, "cpu backend: no memory for a block of " +
                                                  std::to_string(size.value) +
                                                  " bytes; try a smaller microbatch or more stages");
  };
  if (size.value < 0) return refused();
  const int64_t bytes = align_up(size.value > 0 ? size.value : 1);
  if (bytes < kMappedFrom) {
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(bytes));
    if (block == nullptr) return refused();
    return std::unique_ptr<Memory>(
        new CpuMemory(static_cast<std::byte*>(block), {bytes}, /*mapped=*/false, std::move(used)));
  }
  // The system hands out addresses it has no memory for: more than there is in the machine is refused here.
  const int64_t machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (machine > 0 && bytes > machine) return refused();
  void* block =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return refused();
#ifdef MADV_HUGEPAGE
  madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // only a hint
#endif
  return std::unique_ptr<Memory>(
      new CpuMemory(static_cast<std::byte*>(block), {bytes}, /*mapped=*/true, std::move(used)));
}

CpuMemory::~CpuMemory() {
  *used_ -= size_.value;
  if (mapped_) {
    munmap(data_, static_cast<size_t>(size_.value));
  } else {
    std::free(data_);
  }
}

}  // namespace weft::peer::cpu
