// Whether tensors of the step wait to leave this machine: copies of the state give way to them, whatever
// connection each of them takes, for all of them pass the same uplink. Any thread.
#pragma once

#include <atomic>

namespace weft::peer {

class UrgentSends {
 public:
  void set_waiting(bool waiting) { waiting_.store(waiting, std::memory_order_relaxed); }
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> waiting_ = false;
};

}  // namespace weft::peer
