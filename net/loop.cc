#include "net/loop.h"

#include <unistd.h>

#include <asio/posix/stream_descriptor.hpp>

#include "net/context.h"

namespace weft::net {

namespace {

class LoopTimer final : public Loop::Timer {
 public:
  LoopTimer(std::shared_ptr<Context> context, Duration delay, std::function<void()> work)
      : alarm_(std::move(context)) {
    alarm_.set_after(delay, std::move(work));
  }
  void cancel() override { alarm_.cancel(); }

 private:
  Alarm alarm_;
};

class LoopWatch final : public Loop::Watch {
 public:
  LoopWatch(std::shared_ptr<Context> context, int descriptor, std::function<void()> work)
      : context_(std::move(context)), state_(std::make_shared<State>(context_->io, std::move(work))) {
    asio::error_code error;
    state_->descriptor.assign(descriptor, error);
    if (!error) wait(state_);
  }
  ~LoopWatch() override { state_->descriptor.release(); }

 private:
  struct State {
    State(asio::io_context& io, std::function<void()> ready) : descriptor(io), work(std::move(ready)) {}
    asio::posix::stream_descriptor descriptor;
    std::function<void()> work;
  };
  static void wait(const std::shared_ptr<State>& state) {
    state->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                 [weak = std::weak_ptr(state)](const asio::error_code& error) {
                                   const auto self = weak.lock();
                                   if (error || !self || !self->descriptor.is_open()) return;
                                   self->work();
                                   if (self->descriptor.is_open()) wait(self);
                                 });
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<State> state_;
};

}  // namespace

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() { impl_->context->shut_down(); }

void Loop::run() {
  Context& context = *impl_->context;
  context.owner = std::this_thread::get_id();
  context.io.run();
  context.io.restart();
}

void Loop::stop() { impl_->context->io.stop(); }

bool Loop::run_until(Duration deadline, const std::function<bool()>& done) {
  Context& context = *impl_->context;
  context.owner = std::this_thread::get_id();
  const auto end = from_instant(steady_now() + std::min(deadline, Duration(std::chrono::hours(24 * 365))));
  bool is_done = done();
  while (!is_done && context.io.run_one_until(end) > 0) is_done = done();
  if (context.io.stopped()) context.io.restart();
  return is_done;
}

void Loop::post(std::function<void()> work) { impl_->context->post(std::move(work)); }
bool Loop::in_loop() const { return impl_->context->owner == std::this_thread::get_id(); }
Instant Loop::now() const { return steady_now(); }

std::unique_ptr<Loop::Timer> Loop::after(Duration delay, std::function<void()> work) {
  return std::make_unique<LoopTimer>(impl_->context, delay, std::move(work));
}

std::unique_ptr<Loop::Watch> Loop::watch_readable(int descriptor, std::function<void()> work) {
  return std::make_unique<LoopWatch>(impl_->context, descriptor, std::move(work));
}

}  // namespace weft::net
