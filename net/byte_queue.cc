#include "net/byte_queue.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace weft::net {

std::span<std::byte> ByteQueue::prepare() {
  if (blocks_.empty() || end_ == kBlockSize) {
    blocks_.push_back(spare_ ? std::move(spare_) : std::make_unique_for_overwrite<std::byte[]>(kBlockSize));
    end_ = 0;
  }
  return {blocks_.back().get() + end_, kBlockSize - end_};
}

void ByteQueue::commit(size_t size) {
  end_ += size;
  size_ += size;
}

void ByteQueue::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = prepare();
    const size_t size = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), size);
    commit(size);
    bytes = bytes.subspan(size);
  }
}

std::span<const std::byte> ByteQueue::front() const {
  if (size_ == 0) return {};
  return {blocks_.front().get() + begin_, std::min(kBlockSize - begin_, size_)};
}

void ByteQueue::consume(size_t size) {
  WEFT_CHECK(size <= size_);
  size_ -= size;
  begin_ += size;
  while (begin_ >= kBlockSize) {
    spare_ = std::move(blocks_.front());
    blocks_.pop_front();
    begin_ -= kBlockSize;
  }
  if (size_ > 0) return;
  begin_ = 0;
  end_ = 0;
  if (blocks_.size() > 1) blocks_.resize(1);
}

void ByteQueue::clear() { consume(size_); }

}  // namespace weft::net
