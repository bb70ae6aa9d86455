#include "peer/backend/cuda/kernel_cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/rng.h"

namespace weft::peer::cuda {
namespace {

namespace fs = std::filesystem;

// A file: head, key, code, checksum of all that.
struct Head {
  char magic[16] = "weft kernels 01";
  uint64_t key_bytes = 0, code_bytes = 0;
};
constexpr size_t kChecksumDigits = 32;
constexpr auto kAbandoned = std::chrono::hours(1);  // a temporary file that nobody is writing any more

std::string file_text(std::string_view key, std::span<const char> code) {
  const Head head{.key_bytes = key.size(), .code_bytes = code.size()};
  std::string text(reinterpret_cast<const char*>(&head), sizeof(head));
  text.append(key).append(code.data(), code.size());
  return text.append(checksum(text));
}

// The code, when the file is whole and of this key.
std::optional<std::vector<char>> code_of(std::string_view text, std::string_view key) {
  Head head;
  if (text.size() < sizeof(head) + kChecksumDigits) return {};
  const Head expected;
  std::memcpy(&head, text.data(), sizeof(head));
  if (std::memcmp(head.magic, expected.magic, sizeof(head.magic)) != 0) return {};
  const std::string_view body = text.substr(sizeof(head), text.size() - sizeof(head) - kChecksumDigits);
  if (head.key_bytes > body.size() || head.code_bytes != body.size() - head.key_bytes) return {};
  if (body.substr(0, head.key_bytes) != key) return {};
  if (checksum(text.substr(0, sizeof(head) + body.size())) != text.substr(sizeof(head) + body.size()))
    return {};
  const std::string_view code = body.substr(head.key_bytes);
  return std::vector<char>(code.begin(), code.end());
}

std::optional<std::string> read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) return {};
  return text;
}

bool write(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out.good();
}

struct Entry {
  fs::path path;
  fs::file_time_type used;
  int64_t size;
};

std::vector<Entry> entries_of(const fs::path& folder) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code mine;
    const auto used = at->last_write_time(mine);
    if (mine || !at->is_regular_file(mine) || mine) continue;
    const auto size = at->file_size(mine);
    if (!mine) entries.push_back({at->path(), used, static_cast<int64_t>(size)});
  }
  return entries;
}

}  // namespace

std::string checksum(std::string_view text) {
  // Philox as a compression function in Davies and Meyer's form: a permutation of the state mixed with the
  // block, keyed by the place, and the block once more.
  PhiloxBlock state{0x77656674, 0, static_cast<uint32_t>(text.size()),
                    static_cast<uint32_t>(static_cast<uint64_t>(text.size()) >> 32)};
  for (size_t at = 0; at < text.size(); at += sizeof(state)) {
    PhiloxBlock block{};
    std::memcpy(block.data(), text.data() + at, std::min(sizeof(block), text.size() - at));
    for (size_t i = 0; i < state.size(); ++i) state[i] ^= block[i];
    state =
        philox(state, {static_cast<uint32_t>(at), static_cast<uint32_t>(static_cast<uint64_t>(at) >> 32)});
    for (size_t i = 0; i < state.size(); ++i) state[i] ^= block[i];
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (const uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) digits += kDigits[word >> shift & 15];
  return digits;
}

Bytes KernelCache::default_size_max() {
  constexpr Bytes kUsual{int64_t{256} << 20};
  const char* given = std::getenv("WEFT_KERNEL_CACHE_MAX");
  if (given == nullptr) return kUsual;
  char* end = nullptr;
  const long long bytes = std::strtoll(given, &end, 10);
  return end == given || *end != '\0' || bytes < 0 ? kUsual : Bytes{bytes};
}

fs::path KernelCache::default_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "weft" / "kernels";
  const char* home = std::getenv("HOME");
  if (home != nullptr && fs::path(home).is_absolute()) return fs::path(home) / ".cache" / "weft" / "kernels";
  return {};
}

fs::path KernelCache::file_of(std::string_view key) const { return folder_ / (checksum(key) + ".kernels"); }

std::optional<std::vector<char>> KernelCache::find(std::string_view key) const {
  if (folder_.empty()) return {};
  const fs::path path = file_of(key);
  const std::optional<std::string> text = read(path);
  if (!text) return {};
  auto code = code_of(*text, key);
  std::error_code ignored;
  if (code) fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used now
  return code;
}

void KernelCache::keep(std::string_view key, std::span<const char> code) const {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return;
  const std::string text = file_text(key, code);
  const int64_t left = size_max_.value - static_cast<int64_t>(text.size());
  if (left < 0) return;
  trim(left);
  static std::atomic<unsigned> number{0};
  const fs::path path = file_of(key);
  fs::path temporary = path;
  temporary += "." + std::to_string(getpid()) + "." + std::to_string(number++);
  if (write(temporary, text)) fs::rename(temporary, path, error);
  fs::remove(temporary, error);  // still there only where one of the two failed
}

void KernelCache::trim(int64_t size_max) const {
  std::vector<Entry> entries = entries_of(folder_);
  const auto now = fs::file_time_type::clock::now();
  std::error_code ignored;
  std::erase_if(entries, [&](const Entry& entry) {
    if (entry.path.extension() == ".kernels") return false;
    if (now - entry.used > kAbandoned) fs::remove(entry.path, ignored);
    return true;
  });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used > b.used; });
  int64_t size = 0;
  for (const Entry& entry : entries) {
    size += entry.size;
    if (size > size_max) fs::remove(entry.path, ignored);
  }
}

}  // namespace weft::peer::cuda
