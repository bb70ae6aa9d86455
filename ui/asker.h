// A thread that asks others and waits for them, for a server's thread that may not: what is handed over runs
// there, one after another.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/units.h"
#include "net/loop.h"

namespace weft::ui {

class Asker {
 public:
  static constexpr size_t kWaitingMax = 32;
  static constexpr Duration kIdle = std::chrono::seconds(30);

  // `on_idle`: called there when nothing was asked for kIdle.
  explicit Asker(std::function<void()> on_idle);
  // Waits for the work at hand, which its owner has interrupted; the rest is dropped.
  ~Asker();
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // Any thread. False: too much waits already, and this will not be done.
  bool ask(std::function<void()> work);

 private:
  void carry_out(const std::function<void()>& work);

  const std::function<void()> on_idle_;
  std::atomic<size_t> waiting_ = 0;
  net::Loop loop_;
  std::unique_ptr<net::Loop::Timer> idle_;  // the thread's
  std::jthread thread_;
};

}  // namespace weft::ui
