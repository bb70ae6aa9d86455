// A thread with a queue: what is posted runs there, one after another. Destruction lets the work at hand
// finish and drops the rest. Work that throws is over, and said so; who waits for its answer has to see to it
// that none is thrown.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace weft::net {

class Worker {
 public:
  Worker() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
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

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  std::jthread thread_;                      // last: joined before the rest goes
};

}  // namespace weft::net
