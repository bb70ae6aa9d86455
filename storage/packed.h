// A blob on its way over an uplink, in fewer bytes and without loss. What is sent most are floats that
// training moved a little since the copy before: the difference to that copy (its base, which both ends
// have), or else the number itself, is taken apart into its four bytes, and each of these planes compressed
// by itself; the lower ones are noise and stay as they are. A blob of anything else only loses nothing.
//
// On the wire: units, each of the next kUnit bytes of the blob (the last of what is left):
//   u32 length of what follows (little-endian), u8 form, and
//     form 0: the bytes as they are
//     form 1: n / 4 numbers of four bytes, little-endian; of each the plane of its lowest byte first:
//             4 x u32 length, of n / 4 as it is, else a zstd frame of n / 4 bytes; the planes; n % 4 bytes
// With a base a number is that of the blob minus that of the base at the same place, modulo 2^32, as zigzag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace weft::storage {

inline constexpr size_t kPackedUnit = 1 << 20;     // bytes of the blob
inline constexpr size_t kPackedHeader = 5;         // bytes before what a unit holds
inline constexpr size_t kWorthPacking = 16 << 10;  // smaller blobs cost more to pack than they save

// Holds working memory of some MiB from the first use on. One thread at a time.
class Packer {
 public:
  Packer();
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // One unit, of at most kPackedHeader bytes more than it is given. REQUIRES: 1 to kPackedUnit bytes; a base
  // that is empty or has as many.
  std::vector<std::byte> pack(std::span<const std::byte> bytes, std::span<const std::byte> base);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where the units of a blob end, without unpacking them: who only passes the bytes on knows when all have
// come.
class PackedFraming {
 public:
  explicit PackedFraming(uint64_t size) : left_(size) {}
  // OutOfRange: a unit longer than one can be, or bytes beyond the last one.
  Status take(std::span<const std::byte> piece);
  uint64_t left() const { return left_; }  // bytes of the blob, of units that have not begun to come
  bool is_complete() const { return left_ == 0 && unit_left_ == 0 && header_size_ == 0; }

 private:
  uint64_t left_;         // bytes of the blob, of units that have not begun
  size_t unit_left_ = 0;  // bytes of the unit that have not come
  uint32_t length_ = 0;
  size_t header_size_ = 0;  // bytes of the length that have come
};

// The inverse, of units that come in any pieces. Whatever the bytes are, it takes no more memory than a few
// units, and gives no more than `size` bytes in all. Who knows the blob's hash compares it afterwards.
class Unpacker {
 public:
  // REQUIRES: a base that is empty, or of `size` bytes, and lives as long as this.
  Unpacker(uint64_t size, std::span<const std::byte> base);
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // Gives the bytes of each unit that has come whole to `write`, whose errors it passes on. Corrupted: not
  // such units. After an error nothing more is to be given.
  Status take(std::span<const std::byte> piece,
              const std::function<Status(std::span<const std::byte>)>& write);
  bool is_complete() const;

 private:
  Status unpack(std::span<const std::byte> unit, std::span<std::byte> into);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::storage
