// What stands behind a Loop. Sockets hold it by shared_ptr, so that a connection which outlives its loop is
// dead but harmless. Asio's handlers refer to their objects weakly: destroying the loop frees everything.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "net/loop.h"

namespace weft::net {

// Something that must let go of its handlers when the loop ends, because they may own it.
class LoopMember {
 public:
  virtual void on_loop_destroyed() = 0;

 protected:
  ~LoopMember() = default;
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  asio::io_context io{1};
  // Without it Asio would take a loop that is idle for one that was stopped.
  asio::executor_work_guard<asio::io_context::executor_type> guard{io.get_executor()};
  std::atomic<std::thread::id> owner{std::this_thread::get_id()};

  std::set<LoopMember*> members;              // all that are alive
  std::set<std::shared_ptr<void>> lingering;  // closed by their owners, still saying goodbye

  void post(std::function<void()> work);  // any thread; in order
  void shut_down();                       // the loop is being destroyed

 private:
  void run_posted();

  Mutex mutex_;
  std::deque<std::function<void()>> posted_ WEFT_GUARDED_BY(mutex_);
  bool is_shut_ WEFT_GUARDED_BY(mutex_) = false;
};

struct Loop::Impl {
  std::shared_ptr<Context> context = std::make_shared<Context>();
};

inline Instant to_instant(std::chrono::steady_clock::time_point time) {
  return Instant(std::chrono::duration_cast<Duration>(time.time_since_epoch()));
}
inline std::chrono::steady_clock::time_point from_instant(Instant instant) {
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(instant.time_since_epoch()));
}
inline Instant steady_now() { return to_instant(std::chrono::steady_clock::now()); }

// A timer that can be set again and again. The work may destroy it; with it goes what it waits for.
class Alarm {
 public:
  explicit Alarm(std::shared_ptr<Context> context);
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  void set(Instant at, std::function<void()> work);  // instead of what was set before
  void set_after(Duration delay, std::function<void()> work);
  void cancel();

 private:
  struct State {
    std::function<void()> work;
    uint64_t turn = 0;  // a handler of an earlier turn does nothing
  };
  std::shared_ptr<Context> context_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  asio::steady_timer timer_;
};

}  // namespace weft::net
