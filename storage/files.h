// The door to the disk for what must survive: whole files, written so that after a crash a name holds either
// the old bytes or the new ones, and never half of them. Every error names the file and the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::storage {

// Called before each operation on the disk ("open", "write", "sync", "rename", "sync directory", "read",
// "list", "remove", "make directory", "lock"); an error takes the operation's place. This is how a test fails
// the n-th one. A piece is written in two halves, with a call before each, so that an error at the second one
// leaves half of it.
using FaultHook = std::function<Status(std::string_view operation, const std::filesystem::path& path)>;

struct WriteOptions {
  uint32_t mode = 0600;        // of the new file; the process's umask applies too
  bool sync_directory = true;  // false when the caller syncs the folder once for many files
};

class Descriptor;  // storage/posix.h

// One thread at a time, for it numbers its temporary files.
class Files {
 public:
  Files() = default;
  explicit Files(FaultHook hook) : hook_(std::move(hook)) {}

  // The whole file. NotFound; ResourceExhausted when it is larger than size_max; InvalidArgument when it is
  // not a file.
  Result<std::vector<std::byte>> read(const std::filesystem::path& path, uint64_t size_max);
  // The whole file in pieces of at most 1 MiB, in order.
  Status read_pieces(const std::filesystem::path& path,
                     const std::function<void(std::span<const std::byte>)>& visit);
  // Its bytes, which must be exactly out.size() many: Corrupted otherwise.
  Status read_exactly(const std::filesystem::path& path, std::span<std::byte> out);

  // Temporary file beside it (O_EXCL), write, fsync, rename, fsync of the folder. After an error `path` holds
  // what it held before, or, when only the last fsync failed, maybe the new bytes; the temporary file is
  // removed if that can be done.
  using Sink = std::function<Status(std::span<const std::byte>)>;
  Status write_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes,
                      WriteOptions options = {});
  // The same for bytes that come in pieces: `produce` hands them to the sink; its error abandons the file.
  Status write_atomic_pieces(const std::filesystem::path& path,
                             const std::function<Status(const Sink&)>& produce, WriteOptions options = {});

  // The same for pieces that come in any order, each with its offset. What none covers is zero.
  using PlacedSink = std::function<Status(uint64_t offset, std::span<const std::byte>)>;
  Status write_atomic_placed(const std::filesystem::path& path,
                             const std::function<Status(const PlacedSink&)>& produce,
                             WriteOptions options = {});
  // Whether write_atomic() could put a file there now, as far as that can be told without doing so: the
  // folder takes a new file, and what has the name already, if anything, is a file that another may replace.
  // InvalidArgument where it is not, or where its name is mounted or a folder's; else what the system says.
  Status check_writable(const std::filesystem::path& path);

  // The names in the folder, sorted. ResourceExhausted beyond count_max.
  Result<std::vector<std::string>> list(const std::filesystem::path& folder, size_t count_max);
  Result<uint64_t> size(const std::filesystem::path& path);      // of a regular file
  Status remove(const std::filesystem::path& path);              // NotFound when there is none
  Status make_directories(const std::filesystem::path& folder);  // durably, with those above it
  Status sync_directory(const std::filesystem::path& folder);

  // Whether both are there and are the same file, by whatever name or link.
  static bool is_same_file(const std::filesystem::path& one, const std::filesystem::path& other);

  // Whether a name is that of a temporary file which a crash may have left behind.
  static bool is_temporary_name(std::string_view name);

 private:
  Status allow(std::string_view operation, const std::filesystem::path& path) const {
    return hook_ ? hook_(operation, path) : Status{};
  }
  Result<std::pair<std::filesystem::path, Descriptor>> make_temporary(const std::filesystem::path& path,
                                                                      uint32_t mode);
  // Hands a fresh file to `write`, syncs it and gives it its name.
  Status write_new(const std::filesystem::path& path, WriteOptions options,
                   const std::function<Status(int descriptor, const std::filesystem::path&)>& write);

  friend class FolderLock;
  FaultHook hook_;
  uint64_t temporary_count_ = 0;
};

// An advisory lock on a folder for as long as this lives. Released by the system when the process ends.
class FolderLock {
 public:
  // Unavailable when another process, or another lock of this one, holds it.
  static Result<FolderLock> acquire(Files& files, const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace weft::storage
