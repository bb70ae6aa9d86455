// What one thread is to do for several stages, in an order that is fair to both kinds: somebody waits for
// each token of a served model, and a step of training is made of many tasks. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace weft::peer {

class Turns {
 public:
  // At most so many of a served model's go ahead of a task that waits.
  static constexpr int kAheadMax = 4;

  void add_ahead(std::function<void()> what) { add(ahead_, std::move(what)); }  // of a served model
  void add(std::function<void()> what) { add(others_, std::move(what)); }

  // Does one. Of each kind the order is that of adding. REQUIRES: called once for each that was added.
  void take_one() {
    std::function<void()> what;
    {
      const std::lock_guard lock(mutex_);
      const bool goes_ahead = !ahead_.empty() && (others_.empty() || in_a_row_ < kAheadMax);
      in_a_row_ = goes_ahead ? in_a_row_ + 1 : 0;
      std::deque<std::function<void()>>& from = goes_ahead ? ahead_ : others_;
      what = std::move(from.front());
      from.pop_front();
    }
    what();
  }

 private:
  void add(std::deque<std::function<void()>>& to, std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    to.push_back(std::move(what));
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> ahead_, others_;
  int in_a_row_ = 0;  // that went ahead
};

}  // namespace weft::peer
