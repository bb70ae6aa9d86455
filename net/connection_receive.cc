// How a connection receives: TLS records become frames, whose payloads are read to where they stay.
#include <algorithm>
#include <new>

#include "base/check.h"
#include "net/connection_core.h"

namespace weft::net {

namespace {

constexpr size_t kReadBudget = 4 << 20;  // bytes, then others have their turn
constexpr size_t kReadCost = 4 << 10;    // what a read or a frame takes of it however small it is

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
  switch (reader_.next()) {
    case FrameReader::Next::BeginFrame:
      if (!goes_on(reader_.begin_frame(limits_.frame_size_max))) return false;
      return handlers_->on_head ? true : begin_payload();
    case FrameReader::Next::BeginPayload:
      return begin_payload();
    case FrameReader::Next::TakeHeld:
      return goes_on(reader_.take_held());
    case FrameReader::Next::Deliver:
      deliver();
      return true;
    case FrameReader::Next::Receive:
      break;
  }
  return receive();
}

bool ConnectionCore::goes_on(const Status& status) {
  if (!status) fail_later(status.error().within(address_));
  return status.has_value();
}

bool ConnectionCore::receive() {
  const auto room = reader_.room();
  if (!room) {
    fail_later(room.error().within(address_));
    return false;
  }
  const Io io = tls_->read(*room);
  switch (io.state) {
    case Io::State::Ready:
      reader_.received(io.size);
      stats_.bytes_received += io.size;
      read_budget_ -= std::min(read_budget_, std::max(io.size, kReadCost));
      return true;
    case Io::State::Blocked:
      // What OpenSSL answers by itself (an alert, a new key) goes out with the next write.
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

bool ConnectionCore::begin_payload() {
  Result<PayloadPlace> place = handlers_->on_head ? ask_for_place() : PayloadPlace{};
  if (phase_ != Phase::Open) return false;  // closed by who was asked
  if (!place) {
    fail_later(place.error().within(address_));
    return false;
  }
  // Who was paused when it was seen may wait for long.
  return goes_on(
      reader_.begin_payload(std::move(*place), is_paused_ ? kFrameHeadSize : FrameReader::kPayloadAtOnce));
}

Result<PayloadPlace> ConnectionCore::ask_for_place() {
  const auto handlers = handlers_;
  try {
    return handlers->on_head(reader_.kind(), reader_.size(), reader_.head());
  } catch (const std::bad_alloc&) {
    return tl::unexpected<Error>(reader_.no_memory());
  }
}

void ConnectionCore::deliver() {
  read_budget_ -= std::min(read_budget_, kReadCost);
  ++stats_.frames_received;
  InFrame frame = reader_.take();
  const auto handlers = handlers_;
  if (handlers && handlers->on_frame) handlers->on_frame(std::move(frame));
}

}  // namespace weft::net
