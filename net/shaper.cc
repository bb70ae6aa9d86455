#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "net/byte_queue.h"
#include "net/shaped_transport.h"

namespace weft::net {

namespace {

// Timers are not set closer than this: bytes come late by it at most, and the rate does not suffer because
// what entered together is judged by the time that has passed.
constexpr Duration kGranularity = std::chrono::microseconds(100);

// This connection's part of the process's line; or none.
class Share {
 public:
  explicit Share(std::shared_ptr<AccessLine> line)
      : line_(std::move(line)), flow_(line_ ? line_->add() : SharedLine::Flow{}) {}
  ~Share() {
    if (line_) line_->remove(flow_);
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  explicit operator bool() const { return line_ != nullptr; }
  double line_rate() const { return line_ ? line_->bytes_per_second() : 0; }
  void enter(size_t size, Instant at) { line_->enter(flow_, size, at); }
  std::vector<SharedLine::Passed> take(Instant now) { return line_->take(flow_, now); }
  std::optional<Instant> next() const { return line_ ? line_->next(flow_) : std::nullopt; }

 private:
  const std::shared_ptr<AccessLine> line_;
  const SharedLine::Flow flow_;
};

// The bytes inside one direction, and when they come out: what is sent goes through the uplink and then the
// link, what is received through the link and then the downlink.
class Lane {
 public:
  enum class Direction : uint8_t { Sends, Receives };
  Lane(Direction direction, LinkModel link, std::shared_ptr<AccessLine> line)
      : direction_(direction),
        link_(std::move(link)),
        share_(std::move(line)),
        size_max_(link_.size_max(share_.line_rate())) {}

  bool is_transparent() const { return link_.is_transparent() && !share_; }
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
    take_share(now);
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
  // Not later than the next bytes are out, as far as is known.
  std::optional<Instant> next_due() const {
    if (!marks_.empty()) return marks_.front().due;
    auto next = share_.next();
    if (next && direction_ == Direction::Sends) *next += link_.delay();
    return next;
  }
  Instant end_due(Instant now) { return link_.enter(0, now); }
  // Of what is sent: what has not passed the line and the link's rate; the rest is on its way.
  size_t waiting(Instant now) {
    take_share(now);
    size_t gone = out_;
    for (const Mark& mark : marks_)
      if (mark.due <= now + link_.delay()) gone += mark.size;
    return bytes_.size() - std::min(bytes_.size(), gone);
  }

 private:
  struct Mark {
    size_t size;
    Instant first, due;  // of the first and of the last of its bytes
  };
  void note(size_t size, Instant now) {
    if (share_ && direction_ == Direction::Sends)
      share_.enter(size, now);
    else
      enter_link(size, now);
  }
  void enter_link(size_t size, Instant at) {
    while (size > 0) {
      const size_t segment = std::min(size, kSegmentSize);
      const Instant due = link_.enter(segment, at);
      if (share_ && direction_ == Direction::Receives)
        share_.enter(segment, due);
      else
        mark(segment, due);
      size -= segment;
    }
  }
  void take_share(Instant now) {
    if (!share_) return;
    for (const SharedLine::Passed& passed : share_.take(now))
      if (direction_ == Direction::Sends)
        enter_link(passed.size, passed.at);
      else
        mark(passed.size, passed.at);
  }
  void mark(size_t size, Instant due) {
    if (!marks_.empty() && due - marks_.back().first <= kGranularity / 2) {
      marks_.back().size += size;
      marks_.back().due = due;
    } else {
      marks_.push_back({size, due, due});
    }
  }

  const Direction direction_;
  LinkModel link_;
  Share share_;
  const size_t size_max_;
  ByteQueue bytes_;
  std::deque<Mark> marks_;
  size_t out_ = 0;
};

class ShapedTransport final : public Transport, Transport::Events {
 public:
  ShapedTransport(std::shared_ptr<Context> context, TransportPtr inner, const Shape& shape)
      : inner_(std::move(inner)),
        send_(Lane::Direction::Sends, LinkModel(shape.send, round_trip(shape, shape.send), shape.seed, 0),
              shape.uplink),
        receive_(Lane::Direction::Receives,
                 LinkModel(shape.receive, round_trip(shape, shape.receive), shape.seed, 1), shape.downlink),
        send_alarm_(context),
        receive_alarm_(std::move(context)) {
    inner_->set_events(this);
  }

  void set_events(Transport::Events* events) override { events_ = events; }
  const std::string& remote_address() const override { return inner_->remote_address(); }
  std::string local_address() const override { return inner_->local_address(); }

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

  size_t unsent() override {
    return inner_->unsent() + (send_.is_transparent() ? 0 : send_.waiting(steady_now()));
  }

  void set_unsent_max(size_t size) override { inner_->set_unsent_max(size); }

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

std::shared_ptr<AccessLine> AccessLine::make(double bytes_per_second) {
  return RateClock(bytes_per_second).is_limited() ? std::make_shared<AccessLine>(bytes_per_second) : nullptr;
}

void AccessLine::set_rate(double bytes_per_second) {
  const MutexLock lock(mutex_);
  rate_ = bytes_per_second;
  line_.set_rate(bytes_per_second);
}

SharedLine::Flow AccessLine::add() {
  const MutexLock lock(mutex_);
  return line_.add();
}
void AccessLine::remove(SharedLine::Flow flow) {
  const MutexLock lock(mutex_);
  line_.remove(flow);
}
void AccessLine::enter(SharedLine::Flow flow, size_t size, Instant at) {
  const MutexLock lock(mutex_);
  line_.enter(flow, size, at);
}
std::vector<SharedLine::Passed> AccessLine::take(SharedLine::Flow flow, Instant now) {
  const MutexLock lock(mutex_);
  return line_.take(flow, now);
}
std::optional<Instant> AccessLine::next(SharedLine::Flow flow) const {
  const MutexLock lock(mutex_);
  return line_.next(flow);
}

TransportPtr make_shaped_transport(std::shared_ptr<Context> context, TransportPtr inner, const Shape& shape) {
  return std::make_unique<ShapedTransport>(std::move(context), std::move(inner), shape);
}

}  // namespace weft::net
