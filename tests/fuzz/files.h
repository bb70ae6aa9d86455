// Inputs as files, for decoders that read from a disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace weft::fuzz {

// A regular file without a name on any disk.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const;

 private:
  int descriptor_;
};

// A folder of this process, gone when the process ends.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // In place of what the file held.
  std::filesystem::path write(const char* name, std::span<const std::byte> bytes) const;

 private:
  std::filesystem::path path_;
};

}  // namespace weft::fuzz
