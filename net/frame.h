// What a connection carries: frames, each a length, a kind and that many bytes.
//   on the wire: u32 size of the payload (little-endian), u8 kind, payload
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"

namespace weft::net {

// Bytes whose owner is somewhere else (a tensor, a file's piece): sent without being copied.
struct SharedBytes {
  std::shared_ptr<const void> owner{};
  std::span<const std::byte> bytes{};
};

// A frame to send: `head` and then `body` make the payload.
struct OutFrame {
  uint8_t kind = 0;
  std::vector<std::byte> head{};
  SharedBytes body{};
  bool goes_first = false;  // before frames of which nothing has been sent yet, but for others that go first
  size_t payload_size() const { return head.size() + body.bytes.size(); }
};

// Memory that is not zeroed before bytes are received into it.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::span<std::byte> span() { return {data_.get(), size_}; }
  std::span<const std::byte> span() const { return {data_.get(), size_}; }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

// Where a receiver wants the payload of a frame that has begun: its first `head_size` bytes by themselves,
// the rest in `body`, which has room for it. Without a body the payload is collected in a Buffer.
struct PayloadPlace {
  size_t head_size = 0;
  std::shared_ptr<std::byte[]> body{};
};

struct InFrame {
  uint8_t kind = 0;
  Buffer payload;                       // the head alone where a body was placed
  std::shared_ptr<std::byte[]> body{};  // as PayloadPlace said
  size_t body_size = 0;
  size_t size() const { return payload.size() + body_size; }
};

inline constexpr size_t kFrameHeaderSize = 5;
// What a receiver sees of a payload before it places it, or all of a shorter one.
inline constexpr size_t kFrameHeadSize = 256;

}  // namespace weft::net
