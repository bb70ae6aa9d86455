// How a connection sends: frames are queued, and written as full TLS records.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "net/connection_core.h"

namespace weft::net {

namespace {

constexpr size_t kWriteBudget = 4 << 20;
constexpr size_t kFrameMemory = 256;  // a frame in the queue, about, beside its bytes
constexpr size_t kSharesRecordsFrom = 1 << 20;

// A body of some records is not copied, here and where it is received, because what stands before it ends a
// record. Of a longer one the one record that is copied is a small part.
bool has_own_records(const OutFrame& frame) {
  return frame.body.bytes.size() >= kTlsRecordSize && frame.body.bytes.size() < kSharesRecordsFrom;
}

}  // namespace

void ConnectionCore::send(OutFrame frame) {
  if ((phase_ != Phase::Idle && phase_ != Phase::Open) || lost_) return;
  WEFT_CHECK_MSG(frame.payload_size() <= UINT32_MAX, "a frame holds at most 4 GiB");
  const size_t size = kFrameHeaderSize + frame.payload_size();
  const size_t held = queue_size_ + queue_.size() * kFrameMemory;
  if (size > limits_.send_queue_max - std::min(limits_.send_queue_max, held))
    return fail_later({ErrorCode::ResourceExhausted, address_ + ": it takes too little of what is sent, " +
                                                         std::to_string(queue_size_) + " bytes are waiting"});
  queue_size_ += size;
  heads_size_ += frame.head.size();
  has_undrained_ = true;
  if (frame.goes_first) {
    const bool waits_for_front = front_done_ > 0 && !queue_.front().goes_first;
    const auto at = static_cast<ptrdiff_t>(first_count_++ + (waits_for_front ? 1 : 0));
    queue_.insert(queue_.begin() + at, std::move(frame));
  } else {
    queue_.push_back(std::move(frame));
  }
  if (is_write_posted_ || is_write_blocked_) return;
  is_write_posted_ = true;  // the frames of one turn go together
  post(&ConnectionCore::pump_write);
}

// Copies what comes next, as much as there is or fits.
size_t ConnectionCore::copy_frames(std::span<std::byte> into) {
  size_t filled = 0;
  while (filled < into.size() && !queue_.empty()) {
    const OutFrame& frame = queue_.front();
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

// The first frame goes, if all of it was written.
void ConnectionCore::end_front() {
  if (front_done_ < kFrameHeaderSize + queue_.front().payload_size()) return;
  front_done_ = 0;
  ++stats_.frames_sent;
  if (queue_.front().goes_first) --first_count_;
  heads_size_ -= queue_.front().head.size();
  queue_.pop_front();
}

// One record, full where there is enough to send.
Io ConnectionCore::write_record() {
  const OutFrame& frame = queue_.front();
  const size_t before_body = kFrameHeaderSize + frame.head.size();
  const auto write = [&](std::span<const std::byte> bytes) {
    queue_size_ -= bytes.size();
    stats_.bytes_sent += bytes.size();
    return tls_->write(bytes);
  };
  if (front_done_ >= before_body && frame.body.bytes.size() - (front_done_ - before_body) >= kTlsRecordSize) {
    const Io io = write(frame.body.bytes.subspan(front_done_ - before_body, kTlsRecordSize));
    front_done_ += kTlsRecordSize;
    end_front();
    return io;
  }
  if (!record_out_) record_out_ = std::make_unique_for_overwrite<std::byte[]>(kTlsRecordSize);
  const size_t size = copy_frames({record_out_.get(), kTlsRecordSize});
  return write({record_out_.get(), size});
}

void ConnectionCore::pump_write() {
  const auto self = shared_from_this();
  is_write_posted_ = false;
  size_t budget = kWriteBudget;
  while (tls_ && (phase_ == Phase::Idle || phase_ == Phase::Open || phase_ == Phase::Closing)) {
    while (!queue_.empty() && tls_->has_room())
      if (write_record().state != Io::State::Ready) return lose(tls_->error().within(address_));
    if (phase_ == Phase::Closing && queue_.empty() && !is_goodbye_said_) {
      is_goodbye_said_ = true;
      tls_->say_goodbye();
    }
    budget -= std::min(budget, tls_->output_size());
    const Io io = tls_->flush();
    if (io.state == Io::State::Blocked) {
      is_write_blocked_ = true;
      return tls_->transport().arm_write();
    }
    if (io.state != Io::State::Ready)
      return lose({ErrorCode::Unavailable, address_ + ": connection lost: " + io.error.message()});
    if (queue_.empty()) break;
    if (budget == 0) {
      is_write_posted_ = true;
      return post(&ConnectionCore::pump_write);
    }
  }
  if (!tls_ || !queue_.empty()) return;
  if (phase_ == Phase::Closing) {
    if (!is_goodbye_sent_) tls_->transport().shut_write();
    is_goodbye_sent_ = true;
    return pump_goodbye();
  }
  if (!has_undrained_) return;
  has_undrained_ = false;
  const auto handlers = handlers_;
  if (handlers && handlers->on_drained) handlers->on_drained();
}

ConnectionStats ConnectionCore::stats() const {
  ConnectionStats stats = stats_;
  stats.bytes_queued = queue_size_ + (tls_ ? tls_->output_size() : 0);
  stats.memory_queued = heads_size_ + queue_.size() * kFrameMemory;
  return stats;
}

size_t ConnectionCore::unsent() const {
  return queue_size_ + (tls_ ? tls_->output_size() + tls_->transport().unsent() : 0);
}

}  // namespace weft::net
