#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "net/byte_queue.h"
#include "net/link_model.h"
#include "net/shaped_transport.h"

namespace weft::net {

namespace {

// Timers are not set closer than this: bytes come late by it at most, and the rate does not suffer because
// what entered together is judged by the time that has passed.
constexpr Duration kGranularity = std::chrono::microseconds(100);

// The bytes inside one direction of the link, and when they come out.
class Lane {
 public:
  explicit Lane(LinkModel model) : model_(std::move(model)), size_max_(model_.size_max()) {}

  bool is_transparent() const { return model_.is_transparent(); }
  size_t room() const { return size_max_ - std::min(size_max_, bytes_.size()); }
  size_t size_max() const { return size_max_; }
  bool empty() const { return bytes_.empty(); }

  void enter(std::span<const std::byte> bytes, Instant now) {
    bytes_.append(bytes);
    note(bytes.size(), now);
  }
  std::span<std::byte> prepare() { return bytes_.prepare(); }
  void commit(size_t size, Instant now) {
    bytes_.commit(size);
    note(size, now);
  }

  // The bytes that are out by now and lie together.
  std::span<const std::byte> out(Instant now) {
    while (!marks_.empty() && marks_.front().due <= now) {
      out_ += marks_.front().size;
      marks_.pop_front();
    }
    const auto front = bytes_.front();
    return front.first(std::min(front.size(), out_));
  }
  void consume(size_t size) {
    bytes_.consume(size);
    out_ -= size;
  }
  std::optional<Instant> next_due() const {
    return marks_.empty() ? std::nullopt : std::optional(marks_.front().due);
  }
  Instant end_due(Instant now) { return model_.enter(0, now); }

 private:
  struct Mark {
    size_t size;
    Instant first, due;  // of the first and of the last of its bytes
  };
  void note(size_t size, Instant now) {
    while (size > 0) {
      const size_t segment = std::min(size, kSegmentSize);
      const Instant due = model_.enter(segment, now);
      if (!marks_.empty() && due - marks_.back().first <= kGranularity / 2) {
        marks_.back().size += segment;
        marks_.back().due = due;
      } else {
        marks_.push_back({segment, due, due});
      }
      size -= segment;
    }
  }

  LinkModel model_;
  const size_t size_max_;
  ByteQueue bytes_;
  std::deque<Mark> marks_;
  size_t out_ = 0;
};

class ShapedTransport final : public Transport, Transport::Events {
 public:
  ShapedTransport(std::shared_ptr<Context> context, TransportPtr inner, const Shape& shape)
      : inner_(std::move(inner)),
        send_(LinkModel(shape.send, round_trip(shape, shape.send), shape.seed, 0)),
        receive_(LinkModel(shape.receive, round_trip(shape, shape.receive), shape.seed, 1)),
        send_alarm_(context),
        receive_alarm_(context) {
    inner_->set_events(this);
  }

  void set_events(Transport::Events* events) override { events_ = events; }
  const std::string& remote_address() const override { return inner_->remote_address(); }

  Io write(std::span<const std::byte> from) override {
    if (send_.is_transparent()) return inner_->write(from);
    if (send_error_) return Io::failed(send_error_);
    const size_t size = std::min(from.size(), send_.room());
    if (size == 0) return Io::blocked();
    send_.enter(from.first(size), steady_now());
    set_send_alarm();
    return Io::ready(size);
  }

  void arm_write() override {
    if (send_.is_transparent()) return inner_->arm_write();
    wants_write_ = true;
    if (may_write() && !is_send_alarm_set_) set_send_alarm(Duration::zero());
  }

  Io read(std::span<std::byte> into) override {
    if (receive_.is_transparent()) return inner_->read(into);
    const Instant now = steady_now();
    take_in(now);
    size_t size = 0;
    while (size < into.size()) {
      const auto bytes = receive_.out(now);
      const size_t piece = std::min(bytes.size(), into.size() - size);
      if (piece == 0) break;
      std::memcpy(into.data() + size, bytes.data(), piece);
      receive_.consume(piece);
      size += piece;
    }
    if (size > 0) return Io::ready(size);
    if (end_ && receive_.empty() && end_due_ <= now) return *end_;
    return Io::blocked();
  }

  void arm_read() override {
    if (receive_.is_transparent()) return inner_->arm_read();
    wants_read_ = true;
    take_in(steady_now());
    set_receive_alarm();
  }

  void shut_write() override {
    is_shut_ = true;
    if (send_.is_transparent() || send_.empty()) inner_->shut_write();
  }

  void close() override {
    events_ = nullptr;
    send_alarm_.cancel();
    receive_alarm_.cancel();
    inner_->close();
  }

 private:
  static Duration round_trip(const Shape& shape, const ShapeDirection& direction) {
    return std::max(shape.send.delay + shape.receive.delay, 2 * direction.delay);
  }

  // The owner may destroy this transport in its handlers: nothing follows the calls of them.
  void on_readable() override {
    if (receive_.is_transparent()) {
      if (events_ != nullptr) events_->on_readable();
      return;
    }
    take_in(steady_now());
    set_receive_alarm();
  }

  void on_writable() override {
    if (send_.is_transparent()) {
      if (events_ != nullptr) events_->on_writable();
      return;
    }
    let_out();
  }

  bool may_write() const {
    return send_error_ || send_.room() >= std::min<size_t>(send_.size_max() / 4, 64 << 10);
  }

  // What has come to the far end of the link goes to the socket.
  void let_out() {
    const Instant now = steady_now();
    while (!send_error_) {
      const auto bytes = send_.out(now);
      if (bytes.empty()) break;
      const Io io = inner_->write(bytes);
      if (io.state == Io::State::Blocked) {
        inner_->arm_write();
        break;
      }
      if (io.state == Io::State::Ready)
        send_.consume(io.size);
      else
        send_error_ = io.error ? io.error : std::make_error_code(std::errc::broken_pipe);
    }
    if (is_shut_ && send_.empty()) inner_->shut_write();
    set_send_alarm();
    if (!wants_write_ || !may_write()) return;
    wants_write_ = false;
    if (events_ != nullptr) events_->on_writable();
  }

  void set_send_alarm() {
    const auto due = send_.next_due();
    if (due && !send_error_) set_send_alarm(*due - steady_now());
  }
  void set_send_alarm(Duration delay) {
    if (is_send_alarm_set_) return;  // bytes that entered later come out later
    is_send_alarm_set_ = true;
    send_alarm_.set_after(std::max(delay, kGranularity), [this] {
      is_send_alarm_set_ = false;
      let_out();
    });
  }

  // What the socket has enters the link, as far as there is room.
  void take_in(Instant now) {
    while (!end_ && receive_.room() > 0) {
      auto room = receive_.prepare();
      room = room.first(std::min(room.size(), receive_.room()));
      const Io io = inner_->read(room);
      if (io.state == Io::State::Ready) {
        receive_.commit(io.size, now);
      } else if (io.state == Io::State::Blocked) {
        inner_->arm_read();
        return;
      } else {
        end_ = io;
        end_due_ = receive_.end_due(now);
      }
    }
  }

  void set_receive_alarm() {
    if (!wants_read_ || is_receive_alarm_set_) return;
    const Instant now = steady_now();
    Instant due = now;
    if (receive_.out(now).empty()) {
      const auto next = receive_.next_due();
      if (!next && !end_) return;
      due = next ? *next : end_due_;
    }
    is_receive_alarm_set_ = true;
    receive_alarm_.set(std::max(due, now + kGranularity), [this] {
      is_receive_alarm_set_ = false;
      wants_read_ = false;
      if (events_ != nullptr) events_->on_readable();
    });
  }

  TransportPtr inner_;
  Transport::Events* events_ = nullptr;
  Lane send_, receive_;
  Alarm send_alarm_, receive_alarm_;
  bool is_send_alarm_set_ = false, is_receive_alarm_set_ = false;
  bool wants_write_ = false, wants_read_ = false, is_shut_ = false;
  std::error_code send_error_;
  std::optional<Io> end_;
  Instant end_due_{};
};

}  // namespace

TransportPtr make_shaped_transport(std::shared_ptr<Context> context, TransportPtr inner, const Shape& shape) {
  return std::make_unique<ShapedTransport>(std::move(context), std::move(inner), shape);
}

}  // namespace weft::net
