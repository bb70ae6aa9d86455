// A queue of bytes in blocks: appended at one end, taken from the other, memory given back as it empties.
// Internal.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>

namespace weft::net {

class ByteQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void append(std::span<const std::byte> bytes);
  // Room for at least one byte at the end, to be filled and then kept by commit().
  std::span<std::byte> prepare();
  void commit(size_t size);
  std::span<const std::byte> front() const;  // the first bytes, as many as lie together
  void consume(size_t size);                 // REQUIRES: at most size()
  void clear();

 private:
  static constexpr size_t kBlockSize = 64 << 10;
  using Block = std::unique_ptr<std::byte[]>;
  std::deque<Block> blocks_;
  Block spare_;       // one is kept, so that a queue that swings about empty does not allocate
  size_t begin_ = 0;  // in the first block
  size_t end_ = 0;    // in the last
  size_t size_ = 0;
};

}  // namespace weft::net
