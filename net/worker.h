// A thread with a queue: what is posted runs there, one after another. Destruction lets the work at hand
// finish and drops the rest. Work that throws is over, and said so; who waits for its answer has to see to it
// that none is thrown.
#pragma once

#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <stop_token>
#include <thread>

#include "base/mutex.h"

namespace weft::net {

class Worker {
 public:
  Worker() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  // Told under the lock: whoever waits for the work may destroy this as soon as it is done, and by then
  // nothing of this is touched any more.
  void post(std::function<void()> work) {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> work;
      {
        const MutexLock lock(mutex_);
        if (!changed_.wait(mutex_, stop, [this]() WEFT_REQUIRES(mutex_) { return !queue_.empty(); })) return;
        if (stop.stop_requested()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      // One message's absurd wish for memory is no reason for the process to end.
      try {
        work();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "error worker_failed what=\"%s\"\n", error.what());
      }
    }
  }

  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> queue_ WEFT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: joined before the rest goes
};

}  // namespace weft::net
