#include "net/connection_core.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "net/handshake.h"

namespace weft::net {

namespace {

constexpr size_t kMuchFrom = 1 << 20;  // a frame: what is not larger may come through small buffers

class ConnectionShell final : public Connection {
 public:
  explicit ConnectionShell(std::shared_ptr<ConnectionCore> core) : core_(std::move(core)) {}
  // NOLINTNEXTLINE(bugprone-exception-escape): it throws where there is no memory for a closure
  ~ConnectionShell() override {
    if (!is_closed_) core_->close(Duration::zero());
  }
  const PeerId& remote() const override { return core_->remote(); }
  std::string remote_address() const override { return core_->address(); }
  std::string local_address() const override { return core_->local_address(); }
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
  const HandshakeTurn turn = take_handshake_turn(*tls_);
  if (turn.state == HandshakeTurn::State::Waits) return;
  const bool is_done = turn.state == HandshakeTurn::State::Done;
  phase_ = is_done ? Phase::Idle : Phase::Closed;
  if (is_done) remote_ = tls_->remote();
  is_write_blocked_ = is_write_blocked_ || turn.is_write_blocked;
  if (const auto on_done = std::exchange(on_handshake_, nullptr))
    on_done(is_done ? Status{} : fail(turn.error));
  if (!is_done) release();
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

// ---- the end

void ConnectionCore::lose(Error error) {
  if (phase_ == Phase::Closing) {
    phase_ = Phase::Closed;
    return release();
  }
  queue_.clear();
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
  reader_.drop();
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
  reader_.drop();
  token_.reset();
  context_->lingering.erase(self);
  if (!tls_) return;
  tls_->transport().close();
  // Calls into it may be on the stack.
  context_->post([tls = std::shared_ptr<Tls>(std::move(tls_))] {});
}

}  // namespace weft::net
