#include "peer/backend/host/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace weft::peer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileMax = 64 << 10;  // these files are a page or two

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kFileMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::optional<int64_t> parse_amount(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  return value;
}

// The number behind `key` at the beginning of a line.
std::optional<int64_t> amount_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key)) return parse_amount(std::string_view(line).substr(key.size()));
  return std::nullopt;
}

std::optional<int64_t> amount_in(const fs::path& path) {
  const auto text = read_text(path);
  return text ? parse_amount(*text) : std::nullopt;  // "max" is no number: no limit
}

// What a group's limit leaves. Cached files that the kernel would give up count as free.
std::optional<int64_t> left_in(const fs::path& group, const char* limit_file, const char* used_file,
                               const char* cached_key) {
  const auto limit = amount_in(group / limit_file), used = amount_in(group / used_file);
  if (!limit || !used) return std::nullopt;
  const auto stat = read_text(group / "memory.stat");
  const int64_t cached = stat ? amount_of(*stat, cached_key).value_or(0) : 0;
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cached));
}

// Over the group and all that it lies in.
std::optional<int64_t> left_in_groups(const fs::path& root) {
  const auto groups = read_text(root / "proc/self/cgroup");
  if (!groups) return std::nullopt;
  std::optional<int64_t> least;
  const auto take = [&](std::optional<int64_t> left) {
    if (left) least = std::min(least.value_or(*left), *left);
  };
  std::istringstream lines(*groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path group = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (int depth = 0; depth < 64; ++depth, group = group.parent_path()) {
      take(unified ? left_in(top / group, "memory.max", "memory.current", "inactive_file ")
                   : left_in(top / group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file "));
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace

Result<Bytes> free_memory(const fs::path& root) {
  const auto meminfo = read_text(root / "proc/meminfo");
  const auto available = meminfo ? amount_of(*meminfo, "MemAvailable:") : std::nullopt;
  if (!available || *available > (int64_t{1} << 50))
    return fail(ErrorCode::Unavailable, (root / "proc/meminfo").string() +
                                            " does not say how much memory is available; give --memory");
  const int64_t machine = *available * 1024;
  return Bytes{std::min(machine, left_in_groups(root).value_or(machine))};
}

Result<MemoryUse> host_memory_use(Bytes used) {
  WEFT_TRY(const Bytes free, free_memory());
  return MemoryUse{used, free, {static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)}};
}

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void give_up_contents(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page * page, end = (begin + bytes.size()) / page * page;
  // Where the system keeps them after all, they go with their block.
  if (first < end)
    madvise(const_cast<std::byte*>(bytes.data()) + (first - begin), end - first, MADV_DONTNEED);
}

}  // namespace weft::peer
