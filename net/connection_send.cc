// How a connection sends: frames are queued, and written as full TLS records.
#include <algorithm>

#include "base/check.h"
#include "net/connection_core.h"

namespace weft::net {

namespace {

constexpr size_t kWriteBudget = 4 << 20;

}  // namespace

void ConnectionCore::send(OutFrame frame) {
  if ((phase_ != Phase::Idle && phase_ != Phase::Open) || lost_) return;
  WEFT_CHECK_MSG(frame.payload_size() <= UINT32_MAX, "a frame holds at most 4 GiB");
  if (!queue_.has_room_for(frame, limits_.send_queue_max))
    return fail_later({ErrorCode::ResourceExhausted, address_ + ": it takes too little of what is sent, " +
                                                         std::to_string(queue_.size()) +
                                                         " bytes are waiting"});
  has_undrained_ = true;
  queue_.push(std::move(frame));
  if (is_write_posted_ || is_write_blocked_) return;
  is_write_posted_ = true;  // the frames of one turn go together
  post(&ConnectionCore::pump_write);
}

Io ConnectionCore::write_record() {
  const SharedBytes record = queue_.next_record();
  stats_.bytes_sent += record.bytes.size();
  return tls_->write(record.bytes);
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
  stats.frames_sent = queue_.frames_taken();
  stats.bytes_queued = queue_.size() + (tls_ ? tls_->output_size() : 0);
  stats.memory_queued = queue_.memory();
  return stats;
}

size_t ConnectionCore::unsent() const {
  return queue_.size() + (tls_ ? tls_->output_size() + tls_->transport().unsent() : 0);
}

}  // namespace weft::net
