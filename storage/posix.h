// Internal to storage: what its files do on a POSIX system, with errors that name the file and the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "storage/files.h"

namespace weft::storage {

inline constexpr std::string_view kTemporarySuffix = ".weft-tmp";

// An open file. Closes on destruction.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor();
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// `number` is an errno.
tl::unexpected<Error> system_error(int number, std::string_view operation, const std::filesystem::path& path);

// A regular file for reading, with its size.
struct Opened {
  Descriptor descriptor;
  uint64_t size = 0;
};
Result<Opened> open_to_read(const std::filesystem::path& path);

Status seek(int descriptor, uint64_t offset, const std::filesystem::path& path);
Status read_fully(int descriptor, std::span<std::byte> out, const std::filesystem::path& path);
Status write_fully(int descriptor, std::span<const std::byte> bytes, const std::filesystem::path& path);
// The same in two halves when there is a hook, which is asked before each: so a test tears a write.
Status write_hooked(const FaultHook& hook, int descriptor, std::span<const std::byte> bytes,
                    const std::filesystem::path& path);

}  // namespace weft::storage
