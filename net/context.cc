#include "net/context.h"

#include <asio/post.hpp>

namespace weft::net {

void Context::post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    if (is_shut_) return;
    posted_.push_back(std::move(work));
  }
  asio::post(io, [this] { run_posted(); });
}

void Context::run_posted() {
  std::function<void()> work;
  {
    const MutexLock lock(mutex_);
    if (posted_.empty()) return;
    work = std::move(posted_.front());
    posted_.pop_front();
  }
  work();
}

void Context::shut_down() {
  std::deque<std::function<void()>> dropped;
  {
    const MutexLock lock(mutex_);
    is_shut_ = true;
    dropped.swap(posted_);
  }
  dropped.clear();
  while (!members.empty()) {
    LoopMember* member = *members.begin();
    members.erase(members.begin());
    member->on_loop_destroyed();
  }
  const auto last = std::move(lingering);
  lingering.clear();
}

Alarm::Alarm(std::shared_ptr<Context> context) : context_(std::move(context)), timer_(context_->io) {}

void Alarm::set(Instant at, std::function<void()> work) {
  const uint64_t turn = ++state_->turn;
  state_->work = std::move(work);
  timer_.expires_at(from_instant(at));  // cancels the wait before
  timer_.async_wait([weak = std::weak_ptr(state_), turn](const asio::error_code& error) {
    const auto state = weak.lock();
    if (error || !state || state->turn != turn) return;
    const auto ready = std::move(state->work);
    state->work = nullptr;
    ready();
  });
}

void Alarm::set_after(Duration delay, std::function<void()> work) {
  // A delay of years must not overflow the clock.
  set(steady_now() + std::min(delay, Duration(std::chrono::hours(24 * 365))), std::move(work));
}

void Alarm::cancel() {
  ++state_->turn;
  state_->work = nullptr;
  timer_.cancel();
}

}  // namespace weft::net
