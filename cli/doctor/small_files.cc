#include "cli/doctor/small_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr size_t kFileMax = 64 << 10;
constexpr int kDepthMax = 64;  // of groups

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

template <typename T>
void take_less(std::optional<T>& least, std::optional<T> other) {
  if (other) least = std::min(least.value_or(*other), *other);
}

std::optional<int64_t> limit_in(const fs::path& file) {
  const auto text = read_small(file);
  return text ? number_of(*text) : std::nullopt;  // "max" is no number: no limit
}

// "50000 100000": microseconds of processors in each such time.
std::optional<double> processors_in(const fs::path& file) {
  const auto text = read_small(file);
  const auto words = words_of(text.value_or(""));
  if (words.size() != 2) return std::nullopt;
  const auto share = number_of(words[0]), period = number_of(words[1]);
  if (!share || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*share) / static_cast<double>(*period);
}

// The group of the one hierarchy: the line "0::/user.slice".
std::optional<fs::path> own_group(const fs::path& root) {
  const auto groups = read_small(root / "proc/self/cgroup");
  std::istringstream lines(groups.value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("0::")) return fs::path(line.substr(3)).relative_path().lexically_normal();
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_small(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kFileMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.pop_back();
  return text;
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

GroupLimits group_limits(const fs::path& root) {
  GroupLimits limits;
  auto group = own_group(root);
  if (!group) return limits;
  for (int depth = 0; depth < kDepthMax; ++depth, group = group->parent_path()) {
    const fs::path folder = root / "sys/fs/cgroup" / *group;
    take_less(limits.processors, processors_in(folder / "cpu.max"));
    take_less(limits.threads, limit_in(folder / "pids.max"));
    take_less(limits.memory, limit_in(folder / "memory.max"));
    if (group->empty()) break;
  }
  return limits;
}

}  // namespace weft::cli
