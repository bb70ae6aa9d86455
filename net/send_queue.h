// Frames that wait to be sent, and the TLS records that they become: full ones where there is enough to send.
// Internal to net/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "net/frame.h"

namespace weft::net {

class SendQueue {
 public:
  // Whether no more than `max` bytes wait with it, each frame counted with the memory that it takes itself.
  bool has_room_for(const OutFrame& frame, size_t max) const;
  // A frame that goes first stands before all others but those, and one that has begun.
  void push(OutFrame frame);
  // Takes off what goes into the next record. The bytes lie here until the next call, or with their owner.
  // REQUIRES: not empty.
  SharedBytes next_record();
  void clear();

  bool empty() const { return frames_.empty(); }
  size_t size() const { return size_; }  // bytes, headers included, that are in no record yet
  size_t memory() const;                 // that nobody else holds: heads, and the frames themselves
  uint64_t frames_taken() const { return frames_taken_; }  // whole, since the beginning

 private:
  size_t copy_frames(std::span<std::byte> into);
  void end_front();

  std::deque<OutFrame> frames_;
  size_t first_count_ = 0;  // of those that go first: nothing stands before them but a frame that has begun
  size_t size_ = 0;
  size_t heads_size_ = 0;
  size_t front_done_ = 0;  // bytes of the first frame, header included, that were taken
  uint64_t frames_taken_ = 0;
  std::unique_ptr<std::byte[]> record_;
};

}  // namespace weft::net
