// How the bytes of a connection become frames: what comes next, where its bytes go, what of it has come. Each
// payload is received to where it stays. It reads nothing: the connection asks where bytes are to go, and
// says how many came. Internal to net/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "net/frame.h"

namespace weft::net {

class FrameReader {
 public:
  enum class Next : uint8_t { Receive, BeginFrame, BeginPayload, TakeHeld, Deliver };
  Next next() const;

  // BeginFrame. Then the head is waited for, unless the payload is begun at once. Errors: ResourceExhausted
  // for one of more than `size_max` bytes.
  Status begin_frame(size_t size_max);
  // BeginPayload: as much of the payload as a receiver wants to see before it places it.
  uint8_t kind() const { return frame_.kind; }
  size_t size() const { return size_; }  // of the payload
  std::span<const std::byte> head() const;
  // Where it goes; without a body into memory, of which at most `at_once` bytes before as many have come.
  // Errors: ResourceExhausted without memory. REQUIRES: place.head_size is at most the head's.
  Status begin_payload(PayloadPlace place, size_t at_once);
  // TakeHeld: what came together with the header. Errors: as room().
  Status take_held();
  // Receive: where the next bytes go, never empty. Errors: ResourceExhausted without memory.
  Result<std::span<std::byte>> room();
  void received(size_t size);
  InFrame take();  // Deliver

  void drop() { frame_ = {}; }  // nobody will have what has come of it
  Error no_memory() const;

  // More memory than this only as the bytes arrive.
  static constexpr size_t kPayloadAtOnce = 16 << 20;

 private:
  enum class Inside : uint8_t { Header, Head, Payload };
  size_t held() const { return record_end_ - record_begin_; }
  std::span<std::byte> record_room();
  Result<std::span<std::byte>> payload_room();
  Status hold(size_t size);

  Inside inside_ = Inside::Header;  // what of a frame comes next
  InFrame frame_;
  size_t size_ = 0, received_ = 0;
  std::unique_ptr<std::byte[]> record_;
  size_t record_begin_ = 0, record_end_ = 0;  // held there, not yet looked at
};

}  // namespace weft::net
