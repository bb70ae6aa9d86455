// What other threads leave for the core's thread to do, which the bus wakes for it.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "broker/service/bus.h"

namespace weft::broker {

class Inbox {
 public:
  explicit Inbox(Bus& bus) : wake_(std::make_unique<GateSocket>(bus, "planner")) {}

  void leave(std::function<void()> work);  // any thread
  void empty();                            // the core's thread, woken

 private:
  Mutex mutex_, wake_mutex_;
  std::deque<std::function<void()>> work_ WEFT_GUARDED_BY(mutex_);
  std::unique_ptr<GateSocket> wake_ WEFT_GUARDED_BY(wake_mutex_);
};

}  // namespace weft::broker
