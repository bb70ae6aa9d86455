// Signals, Ctrl-C and SIGTERM above all, as events of a loop, for commands that wait for the network.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "net/loop.h"

namespace weft::cli {

using Signals = std::vector<int>;
// SIGINT, SIGTERM, and SIGHUP, which comes when the terminal goes away, unless it was ignored from the start
// (nohup).
const Signals& stop_signals();

// The signals are kept waiting in this thread and in those that it starts from now on; the destructor lets
// them through again in this thread.
class SignalsBlocked {
 public:
  explicit SignalsBlocked(Signals signals = stop_signals());
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  const Signals signals_;
};

// Calls back on the loop, with how many have come by now. SIGHUP counts as the first, and never as another:
// who closes a terminal does not ask for more haste, and it may come twice. REQUIRES: the signals are blocked
// in every thread.
class SignalWatch {
 public:
  static Result<std::unique_ptr<SignalWatch>> start(net::Loop& loop, std::function<void(int count)> on_signal,
                                                    const Signals& signals = stop_signals());
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  SignalWatch() = default;
  void read();

  void count(int signal);

  int descriptor_ = -1;
  int count_ = 0;
  bool hung_up_ = false;
  std::function<void(int)> on_signal_;
  std::unique_ptr<net::Loop::Watch> watch_;
};

}  // namespace weft::cli
