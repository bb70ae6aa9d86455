#include "net/byte_connect.h"

#include <asio/ip/tcp.hpp>
#include <vector>

#include "net/context.h"
#include "net/tcp.h"

namespace weft::net {

namespace {

using asio::ip::tcp;
using OnBytes = std::function<void(Result<TransportPtr>)>;

// Name, then addresses, under one deadline. connect.cc has the same steps with more to look at on the way.
class BytesAttempt final : public std::enable_shared_from_this<BytesAttempt> {
 public:
  BytesAttempt(std::shared_ptr<Context> context, Endpoint endpoint, OnBytes on_result)
      : context_(std::move(context)),
        endpoint_(std::move(endpoint)),
        on_result_(std::move(on_result)),
        resolver_(context_->io),
        socket_(context_->io),
        deadline_(context_),
        address_deadline_(context_) {}

  // A handler that does nothing once this has gone.
  template <typename Work>
  auto held(Work work) {
    return [weak = weak_from_this(), work] {
      if (const auto self = weak.lock(); self && self->on_result_) work(*self);
    };
  }

  void begin(Duration deadline) {
    ends_at_ = steady_now() + deadline;
    deadline_.set_after(deadline, held([deadline](BytesAttempt& self) {
                          self.finish(fail(ErrorCode::Timeout, "no connection within " +
                                                                   std::to_string(seconds(deadline)) + " s"));
                        }));
    context_->post(held([](BytesAttempt& self) { self.resolve(); }));
  }

  void cancel() {
    on_result_ = nullptr;
    resolver_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    address_deadline_.cancel();
  }

 private:
  void finish(Result<TransportPtr> result) {
    const auto on_result = std::move(on_result_);
    cancel();
    if (!result) result = fail(result.error().within(to_string(endpoint_)));
    on_result(std::move(result));
  }

  void resolve() {
    asio::error_code error;
    const auto literal = asio::ip::make_address(endpoint_.host, error);
    if (!error) {
      addresses_ = {tcp::endpoint(literal, endpoint_.port)};
      return connect_next();
    }
    resolver_.async_resolve(
        endpoint_.host, std::to_string(endpoint_.port), tcp::resolver::numeric_service,
        [weak = weak_from_this()](const asio::error_code& failed, const tcp::resolver::results_type& found) {
          const auto self = weak.lock();
          if (!self || !self->on_result_) return;
          if (failed)
            return self->finish(
                fail(ErrorCode::Unavailable, "the name cannot be looked up: " + failed.message()));
          for (const auto& entry : found) self->addresses_.push_back(entry.endpoint());
          self->connect_next();
        });
  }

  void connect_next() {
    if (next_ == addresses_.size())
      return finish(fail(ErrorCode::Unavailable,
                         "cannot connect: " + (last_error_ ? last_error_.message() : "it has no address")));
    const tcp::endpoint address = addresses_[next_++];
    asio::error_code ignored;
    socket_.close(ignored);
    // An address that swallows everything leaves time for those after it.
    if (next_ < addresses_.size()) {
      const auto share = (ends_at_ - steady_now()) / static_cast<int>(addresses_.size() - next_ + 1);
      address_deadline_.set_after(share, held([](BytesAttempt& self) {
                                    self.last_error_ = asio::error::timed_out;
                                    ++self.turn_;
                                    self.connect_next();
                                  }));
    }
    socket_.async_connect(address, [weak = weak_from_this(), turn = ++turn_](const asio::error_code& failed) {
      const auto self = weak.lock();
      if (!self || !self->on_result_ || turn != self->turn_) return;
      self->address_deadline_.cancel();
      if (!failed) return self->finish(make_tcp_transport(self->context_, std::move(self->socket_)));
      self->last_error_ = failed;
      self->connect_next();
    });
  }

  const std::shared_ptr<Context> context_;
  const Endpoint endpoint_;
  OnBytes on_result_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  Alarm deadline_, address_deadline_;
  Instant ends_at_{};
  std::vector<tcp::endpoint> addresses_;
  size_t next_ = 0;
  uint64_t turn_ = 0;  // of the address; an answer of an earlier one counts no more
  asio::error_code last_error_;
};

class HeldAttempt final : public ByteDial {
 public:
  explicit HeldAttempt(std::shared_ptr<BytesAttempt> attempt) : attempt_(std::move(attempt)) {}
  ~HeldAttempt() override { attempt_->cancel(); }

 private:
  const std::shared_ptr<BytesAttempt> attempt_;
};

}  // namespace

std::unique_ptr<ByteDial> connect_bytes(Loop& loop, const Endpoint& endpoint, Duration deadline,
                                        OnBytes on_result) {
  auto attempt = std::make_shared<BytesAttempt>(loop.impl().context, endpoint, std::move(on_result));
  attempt->begin(deadline);
  return std::make_unique<HeldAttempt>(std::move(attempt));
}

}  // namespace weft::net
