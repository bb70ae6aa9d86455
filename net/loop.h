// One thread's event loop. Everything in net/ belongs to the loop it was made on and is used from its thread
// alone; other threads hand it work with post(). This is the only face of Asio that other folders see.
#pragma once

#include <functional>
#include <memory>

#include "base/units.h"

namespace weft::net {

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run();   // until stop(); on the thread that owns the loop
  void stop();  // any thread
  // Runs everything that is ready or becomes so until `deadline` from now or until `done` says so; for
  // clients that wait for one answer. Whether it said so: it is not asked again once it has.
  bool run_until(Duration deadline, const std::function<bool()>& done);

  void post(std::function<void()> work);  // any thread; runs on the loop, in order of posting
  bool in_loop() const;
  Instant now() const;  // the monotonic clock

  // Calls back once after the delay. Destruction or cancel() prevents the call.
  class Timer {
   public:
    virtual ~Timer() = default;
    virtual void cancel() = 0;
  };
  std::unique_ptr<Timer> after(Duration delay, std::function<void()> work);

  // Calls back whenever the descriptor is readable, until destroyed. The descriptor is not owned.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  std::unique_ptr<Watch> watch_readable(int descriptor, std::function<void()> work);

  struct Impl;
  Impl& impl() { return *impl_; }  // net/ only

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::net
