// Compiled kernels on disk, so that a peer which starts again does not compile again. An entry is found by
// all that decides the code (the key) and holds that text, so that names which collide are harmless. A cache
// that cannot be read or written is an empty one.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace weft::peer::cuda {

// 128 bits of the text, as hexadecimal digits. Finds damage and spreads names; no defence against forgery.
std::string checksum(std::string_view text);

// Any thread and process at once: files appear whole or not at all.
class KernelCache {
 public:
  // An empty folder: nothing is kept.
  explicit KernelCache(std::filesystem::path folder, Bytes size_max = default_size_max())
      : folder_(std::move(folder)), size_max_(size_max) {}
  // WEFT_KERNEL_CACHE_MAX, in bytes (`weft join --disk` sets it), else 256 MiB.
  static Bytes default_size_max();
  // $XDG_CACHE_HOME/weft/kernels or ~/.cache/weft/kernels; empty when there is no home.
  static std::filesystem::path default_folder();

  std::optional<std::vector<char>> find(std::string_view key) const;
  // What was used longest ago goes first, so that the folder never has more than its size; what is larger by
  // itself is not kept.
  void keep(std::string_view key, std::span<const char> code) const;

 private:
  std::filesystem::path file_of(std::string_view key) const;
  void trim(int64_t size_max) const;

  const std::filesystem::path folder_;
  const Bytes size_max_;
};

}  // namespace weft::peer::cuda
