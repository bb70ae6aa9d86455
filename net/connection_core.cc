#include "net/connection_core.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace weft::net {

namespace {

constexpr size_t kReadBudget = 4 << 20;  // bytes, then others have their turn
constexpr size_t kReadCost = 4 << 10;    // what a read or a frame takes of it however small it is
constexpr size_t kWriteBudget = 4 << 20;
constexpr size_t kFrameMemory = 256;  // a frame in the queue, about, beside its bytes
constexpr size_t kSharesRecordsFrom = 1 << 20;
constexpr size_t kMuchFrom = 1 << 20;        // a frame: what is not larger may come through small buffers
constexpr size_t kPayloadAtOnce = 16 << 20;  // more memory than this only as the bytes arrive

// A body of some records is not copied, here and where it is received, because what stands before it ends a
// record. Of a longer one the one record that is copied is a small part.
bool has_own_records(const OutFrame& frame) {
  return frame.body.bytes.size() >= kTlsRecordSize && frame.body.bytes.size() < kSharesRecordsFrom;
}

class ConnectionShell final : public Connection {
 public:
  explicit ConnectionShell(std::shared_ptr<ConnectionCore> core) : core_(std::move(core)) {}
  ~ConnectionShell() override {
    if (!is_closed_) core_->close(Duration::zero());
  }
  const PeerId& remote() const override { return core_->remote(); }
  std::string remote_address() const override { return core_->address(); }
  void set_limits(const ConnectionLimits& limits) override { core_->set_limits(limits); }
  void start(Handlers handlers) override { core_->start(std::move(handlers)); }
  void send(OutFrame frame) override { core_->send(std::move(frame)); }
  void pause_reading(bool paused) override { core_->pause_reading(paused); }
  void close(Duration deadline) override {
    is_closed_ = true;  // one that still says goodbye goes on without this shell
    core_->close(deadline);
  }
  ConnectionStats stats() const override { return core_->stats(); }
  size_t unsent() const override { return core_->unsent(); }

 private:
  const std::shared_ptr<ConnectionCore> core_;
  bool is_closed_ = false;
};

}  // namespace

ConnectionCore::ConnectionCore(std::shared_ptr<Context> context, std::unique_ptr<Tls> tls,
                               std::shared_ptr<void> token)
    : context_(std::move(context)),
      tls_(std::move(tls)),
      token_(std::move(token)),
      address_(tls_->transport().remote_address()),
      deadline_(context_) {
  context_->members.insert(this);
  tls_->transport().set_events(this);
}

ConnectionCore::~ConnectionCore() {
  context_->members.erase(this);
  if (tls_) tls_->transport().close();
}

void ConnectionCore::on_loop_destroyed() {
  const auto self = shared_from_this();
  phase_ = Phase::Closed;
  release();
}

void ConnectionCore::post(void (ConnectionCore::*work)()) {
  context_->post([weak = weak_from_this(), work] {
    if (const auto self = weak.lock()) (self.get()->*work)();
  });
}

ConnectionPtr ConnectionCore::make_connection() {
  WEFT_CHECK(phase_ == Phase::Idle);
  return std::make_shared<ConnectionShell>(shared_from_this());
}

void ConnectionCore::set_limits(const ConnectionLimits& limits) {
  if (tls_ && limits.unsent_max != limits_.unsent_max) tls_->transport().set_unsent_max(limits.unsent_max);
  if (tls_ && limits.frame_size_max > kMuchFrom) tls_->expect_much();
  limits_ = limits;
}

// ---- handshake

void ConnectionCore::handshake(std::function<void(Status)> on_done) {
  on_handshake_ = std::move(on_done);
  pump_handshake();
}

void ConnectionCore::pump_handshake() {
  const auto self = shared_from_this();
  const Io io = tls_->handshake();
  const Io sent = tls_->flush();  // an alert, too
  const auto finish = [&](Status status) {
    const auto on_done = std::move(on_handshake_);
    on_handshake_ = nullptr;
    if (on_done) on_done(std::move(status));
  };
  if (io.state == Io::State::Ready) {
    remote_ = tls_->remote();
    phase_ = Phase::Idle;
    if (sent.state == Io::State::Blocked) {
      is_write_blocked_ = true;
      tls_->transport().arm_write();
    }
    return finish({});
  }
  if (io.state == Io::State::Blocked) {
    if (sent.state == Io::State::Blocked) tls_->transport().arm_write();
    tls_->transport().arm_read();
    return;
  }
  const Error error =
      io.state == Io::State::End ? Error{ErrorCode::Unavailable, "the other side hung up"} : tls_->error();
  phase_ = Phase::Closed;
  finish(fail(error));
  release();
}

// ---- events

void ConnectionCore::on_readable() {
  const auto self = shared_from_this();
  switch (phase_) {
    case Phase::Handshake:
      return pump_handshake();
    case Phase::Open:
      return pump_read();
    case Phase::Closing:
      return pump_goodbye();
    case Phase::Idle:
    case Phase::Failing:
    case Phase::Closed:
      return;
  }
}

void ConnectionCore::on_writable() {
  const auto self = shared_from_this();
  is_write_blocked_ = false;
  if (phase_ == Phase::Handshake) {
    const Io io = tls_->flush();
    if (io.state == Io::State::Blocked) tls_->transport().arm_write();
    return;  // an error shows when reading
  }
  pump_write();
}

// ---- receiving

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

// ---- sending

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

// ---- the end

void ConnectionCore::lose(Error error) {
  if (phase_ == Phase::Closing) {
    phase_ = Phase::Closed;
    return release();
  }
  queue_.clear();
  first_count_ = 0;
  queue_size_ = heads_size_ = 0;
  front_done_ = 0;
  if (phase_ != Phase::Open || is_paused_) return fail_later(std::move(error));
  // What the other side said before it went may explain why; reading comes upon the end by itself.
  if (!lost_) lost_ = std::move(error);
  is_write_blocked_ = true;  // never again
  tls_->transport().arm_read();
}

void ConnectionCore::fail_later(Error error) {
  if (phase_ == Phase::Failing || phase_ == Phase::Closing || phase_ == Phase::Closed) return;
  phase_ = Phase::Failing;
  queue_.clear();
  first_count_ = 0;
  queue_size_ = heads_size_ = 0;
  if (tls_) tls_->transport().close();
  lost_ = std::move(error);
  post(&ConnectionCore::report_closed);
}

void ConnectionCore::report_closed() {
  if (phase_ != Phase::Failing || !handlers_) return;  // start() comes back to it
  phase_ = Phase::Closed;
  const auto handlers = handlers_;
  release();
  if (handlers->on_closed) handlers->on_closed(*lost_);
}

void ConnectionCore::close(Duration deadline) {
  if (phase_ == Phase::Closed || (phase_ == Phase::Closing && deadline > Duration::zero())) return;
  const auto self = shared_from_this();
  handlers_.reset();
  if (deadline <= Duration::zero() || !tls_ || lost_ || (phase_ != Phase::Idle && phase_ != Phase::Open)) {
    phase_ = Phase::Closed;
    return release();
  }
  phase_ = Phase::Closing;
  frame_ = {};  // what has come of it nobody will have
  context_->lingering.insert(self);
  deadline_.set_after(deadline, [weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core) return;
    core->phase_ = Phase::Closed;
    core->release();
  });
  if (!is_write_posted_ && !is_write_blocked_) {
    is_write_posted_ = true;
    post(&ConnectionCore::pump_write);
  }
  tls_->transport().arm_read();
}

// Bytes that nobody reads would turn the end into a reset, which can destroy what the other side has not read
// yet.
void ConnectionCore::pump_goodbye() {
  std::array<std::byte, 16 << 10> thrown_away;
  for (int turns = 0;; ++turns) {
    if (turns == 64) return post(&ConnectionCore::pump_goodbye);
    if (phase_ != Phase::Closing || !tls_) return;
    const Io io = tls_->transport().read(thrown_away);
    if (io.state == Io::State::Ready) continue;
    if (io.state == Io::State::Blocked) return tls_->transport().arm_read();
    if (io.state == Io::State::End && !is_goodbye_sent_) return;  // it still takes what is queued
    phase_ = Phase::Closed;
    return release();
  }
}

void ConnectionCore::release() {
  const auto self = shared_from_this();
  handlers_.reset();
  on_handshake_ = nullptr;
  deadline_.cancel();
  queue_.clear();
  first_count_ = 0;
  queue_size_ = heads_size_ = 0;
  frame_ = {};
  token_.reset();
  context_->lingering.erase(self);
  if (!tls_) return;
  tls_->transport().close();
  // Calls into it may be on the stack.
  context_->post([tls = std::shared_ptr<Tls>(std::move(tls_))] {});
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
