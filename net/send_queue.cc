#include "net/send_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "net/tls.h"

namespace weft::net {

namespace {

constexpr size_t kFrameMemory = 256;  // a frame in the queue, about, beside its bytes
constexpr size_t kSharesRecordsFrom = 1 << 20;

// A body of some records is not copied, here and where it is received, because what stands before it ends a
// record. Of a longer one the one record that is copied is a small part.
bool has_own_records(const OutFrame& frame) {
  return frame.body.bytes.size() >= kTlsRecordSize && frame.body.bytes.size() < kSharesRecordsFrom;
}

}  // namespace

bool SendQueue::has_room_for(const OutFrame& frame, size_t max) const {
  const size_t held = size_ + frames_.size() * kFrameMemory;
  return kFrameHeaderSize + frame.payload_size() <= max - std::min(max, held);
}

void SendQueue::push(OutFrame frame) {
  size_ += kFrameHeaderSize + frame.payload_size();
  heads_size_ += frame.head.size();
  if (!frame.goes_first) return frames_.push_back(std::move(frame));
  const bool waits_for_front = front_done_ > 0 && !frames_.front().goes_first;
  const auto at = static_cast<ptrdiff_t>(first_count_++ + (waits_for_front ? 1 : 0));
  frames_.insert(frames_.begin() + at, std::move(frame));
}

void SendQueue::clear() {
  frames_.clear();
  first_count_ = size_ = heads_size_ = front_done_ = 0;
}

size_t SendQueue::memory() const { return heads_size_ + frames_.size() * kFrameMemory; }

SharedBytes SendQueue::next_record() {
  const OutFrame& frame = frames_.front();
  const size_t before_body = kFrameHeaderSize + frame.head.size();
  SharedBytes record;
  if (front_done_ >= before_body && frame.body.bytes.size() - (front_done_ - before_body) >= kTlsRecordSize) {
    record = {frame.body.owner, frame.body.bytes.subspan(front_done_ - before_body, kTlsRecordSize)};
    front_done_ += kTlsRecordSize;
    end_front();
  } else {
    if (!record_) record_ = std::make_unique_for_overwrite<std::byte[]>(kTlsRecordSize);
    record.bytes = {record_.get(), copy_frames({record_.get(), kTlsRecordSize})};
  }
  size_ -= record.bytes.size();
  return record;
}

// Copies what comes next, as much as there is or fits.
size_t SendQueue::copy_frames(std::span<std::byte> into) {
  size_t filled = 0;
  while (filled < into.size() && !frames_.empty()) {
    const OutFrame& frame = frames_.front();
    const bool is_apart = has_own_records(frame);
    if (is_apart && front_done_ == kFrameHeaderSize + frame.head.size()) break;
    const auto payload_size = static_cast<uint32_t>(frame.payload_size());
    std::array<std::byte, kFrameHeaderSize> header;
    for (size_t i = 0; i < 4; ++i) header[i] = static_cast<std::byte>(payload_size >> (8 * i));
    header[4] = static_cast<std::byte>(frame.kind);
    size_t skip = front_done_;
    for (const std::span<const std::byte> piece :
         {std::span<const std::byte>(header), std::span<const std::byte>(frame.head), frame.body.bytes}) {
      if (is_apart && skip == 0 && piece.data() == frame.body.bytes.data()) break;
      if (skip >= piece.size()) {
        skip -= piece.size();
        continue;
      }
      const size_t size = std::min(piece.size() - skip, into.size() - filled);
      std::memcpy(into.data() + filled, piece.data() + skip, size);
      filled += size;
      front_done_ += size;
      if (skip + size < piece.size()) break;
      skip = 0;
    }
    end_front();
  }
  return filled;
}

// The first frame goes, if all of it was taken.
void SendQueue::end_front() {
  if (front_done_ < kFrameHeaderSize + frames_.front().payload_size()) return;
  front_done_ = 0;
  ++frames_taken_;
  if (frames_.front().goes_first) --first_count_;
  heads_size_ -= frames_.front().head.size();
  frames_.pop_front();
}

}  // namespace weft::net
