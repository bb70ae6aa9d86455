// Small files of the system, and what they say of limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

// At most 64 KiB of it, without white space at its end; nothing: it cannot be read.
std::optional<std::string> read_small(const std::filesystem::path& path);
std::vector<std::string> words_of(std::string_view text);  // apart at white space

// The tightest of the groups that this process lies in (cgroup v2).
struct GroupLimits {
  std::optional<double> processors;
  std::optional<int64_t> threads, memory;
};
GroupLimits group_limits(const std::filesystem::path& root);

}  // namespace weft::cli
