// How a connection receives: TLS records become frames, whose payloads are read to where they stay.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "net/connection_core.h"

namespace weft::net {

namespace {

constexpr size_t kReadBudget = 4 << 20;      // bytes, then others have their turn
constexpr size_t kReadCost = 4 << 10;        // what a read or a frame takes of it however small it is
constexpr size_t kPayloadAtOnce = 16 << 20;  // more memory than this only as the bytes arrive

}  // namespace

void ConnectionCore::start(Connection::Handlers handlers) {
  if (phase_ != Phase::Idle && phase_ != Phase::Failing) return;
  WEFT_CHECK_MSG(!handlers_, "start() is called once");
  handlers_ = std::make_shared<Connection::Handlers>(std::move(handlers));
  if (phase_ == Phase::Failing) return post(&ConnectionCore::report_closed);
  phase_ = Phase::Open;
  is_read_posted_ = true;
  post(&ConnectionCore::pump_read);
}

void ConnectionCore::pause_reading(bool paused) {
  if (is_paused_ == paused) return;
  is_paused_ = paused;
  if (paused || phase_ != Phase::Open || is_read_posted_) return;
  is_read_posted_ = true;
  post(&ConnectionCore::pump_read);
}

void ConnectionCore::pump_read() {
  const auto self = shared_from_this();
  is_read_posted_ = false;
  read_budget_ = kReadBudget;
  while (phase_ == Phase::Open && !is_paused_) {
    if (read_budget_ == 0) {
      if (!is_read_posted_) post(&ConnectionCore::pump_read);
      is_read_posted_ = true;
      return;
    }
    if (!read_some()) break;
  }
}

bool ConnectionCore::read_some() {
  // What OpenSSL answers by itself (an alert, a new key) goes out with the next write.
  const size_t held = record_end_ - record_begin_;
  if (inside_ == Inside::Header && held >= kFrameHeaderSize) return begin_frame();
  if (inside_ == Inside::Head && held >= std::min(frame_size_, kFrameHeadSize)) return begin_payload();
  if (inside_ == Inside::Payload && frame_received_ == frame_size_) {
    deliver();
    return true;
  }

  Io io;
  if (inside_ == Inside::Payload) {
    const std::span<std::byte> room = payload_room();
    if (room.empty()) return false;
    if (held > 0) {
      const size_t size = std::min(held, room.size());
      std::memcpy(room.data(), record_in_.get() + record_begin_, size);
      record_begin_ += size;
      frame_received_ += size;
      return true;
    }
    io = tls_->read(room);
    if (io.state == Io::State::Ready) frame_received_ += io.size;
  } else {
    io = read_record();
  }
  switch (io.state) {
    case Io::State::Ready:
      stats_.bytes_received += io.size;
      read_budget_ -= std::min(read_budget_, std::max(io.size, kReadCost));
      return true;
    case Io::State::Blocked:
      if (tls_->output_size() > 0 && !is_write_posted_ && !is_write_blocked_) {
        is_write_posted_ = true;
        post(&ConnectionCore::pump_write);
      }
      tls_->transport().arm_read();
      return false;
    case Io::State::End:
      fail_later(
          lost_.value_or(Error{ErrorCode::Unavailable, address_ + ": the other side closed the connection"}));
      return false;
    case Io::State::Failed:
      fail_later(lost_.value_or(tls_->error().within(address_)));
      return false;
  }
  return false;
}

// Behind what is held there: less than a header and a head.
Io ConnectionCore::read_record() {
  if (!record_in_)
    record_in_ =
        std::make_unique_for_overwrite<std::byte[]>(kTlsRecordSize + kFrameHeaderSize + kFrameHeadSize);
  const size_t held = record_end_ - record_begin_;
  if (held > 0) std::memmove(record_in_.get(), record_in_.get() + record_begin_, held);
  record_begin_ = 0;
  record_end_ = held;
  const Io io = tls_->read({record_in_.get() + held, kTlsRecordSize});
  if (io.state == Io::State::Ready) record_end_ += io.size;
  return io;
}

bool ConnectionCore::begin_frame() {
  uint32_t size = 0;
  for (int i = 3; i >= 0; --i)
    size = size << 8 | std::to_integer<uint32_t>(record_in_[record_begin_ + static_cast<size_t>(i)]);
  if (size > limits_.frame_size_max) {
    fail_later({ErrorCode::ResourceExhausted, address_ + ": a frame of " + std::to_string(size) +
                                                  " bytes was announced, the limit is " +
                                                  std::to_string(limits_.frame_size_max)});
    return false;
  }
  frame_.kind = std::to_integer<uint8_t>(record_in_[record_begin_ + 4]);
  record_begin_ += kFrameHeaderSize;
  frame_size_ = size;
  frame_received_ = 0;
  inside_ = Inside::Head;
  return handlers_->on_head ? true : begin_payload();
}

bool ConnectionCore::begin_payload() {
  if (handlers_->on_head && !place_payload()) return false;
  inside_ = Inside::Payload;
  if (frame_.body) return true;
  // Who was paused when it was seen may wait for long.
  return hold_payload(std::min<size_t>(frame_size_, is_paused_ ? kFrameHeadSize : kPayloadAtOnce));
}

bool ConnectionCore::place_payload() {
  const std::span<const std::byte> head{record_in_.get() + record_begin_,
                                        std::min(frame_size_, kFrameHeadSize)};
  const auto handlers = handlers_;
  try {
    auto placed = handlers->on_head(frame_.kind, frame_size_, head);
    if (phase_ != Phase::Open) return false;  // closed by it
    if (!placed) {
      fail_later(placed.error().within(address_));
      return false;
    }
    if (!placed->body) return true;
    WEFT_CHECK(placed->head_size <= head.size());
    frame_.body = std::move(placed->body);
    frame_.body_size = frame_size_ - placed->head_size;
    if (!hold_payload(placed->head_size)) return false;
    std::memcpy(frame_.payload.span().data(), head.data(), placed->head_size);
    record_begin_ += placed->head_size;
    frame_received_ = placed->head_size;
    return true;
  } catch (const std::bad_alloc&) {
    refuse_for_memory();
    return false;
  }
}

std::span<std::byte> ConnectionCore::payload_room() {
  if (frame_.body)
    return {frame_.body.get() + (frame_received_ - frame_.payload.size()), frame_size_ - frame_received_};
  const size_t size = frame_.payload.size();
  if (frame_received_ == size && !hold_payload(std::min(frame_size_, std::max(2 * size, kPayloadAtOnce))))
    return {};
  return frame_.payload.span().subspan(frame_received_);
}

bool ConnectionCore::hold_payload(size_t size) {
  try {
    Buffer larger(size);
    if (frame_received_ > 0) std::memcpy(larger.span().data(), frame_.payload.span().data(), frame_received_);
    frame_.payload = std::move(larger);
    return true;
  } catch (const std::bad_alloc&) {
    refuse_for_memory();
    return false;
  }
}

void ConnectionCore::refuse_for_memory() {
  fail_later({ErrorCode::ResourceExhausted,
              address_ + ": no memory for a frame of " + std::to_string(frame_size_) + " bytes"});
}

void ConnectionCore::deliver() {
  inside_ = Inside::Header;
  read_budget_ -= std::min(read_budget_, kReadCost);
  ++stats_.frames_received;
  InFrame frame = std::move(frame_);
  frame_ = {};
  const auto handlers = handlers_;
  if (handlers && handlers->on_frame) handlers->on_frame(std::move(frame));
}

}  // namespace weft::net
