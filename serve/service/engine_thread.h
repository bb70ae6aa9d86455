// An engine at work on a thread of its own, which drives the backend. Requests come from any thread; listeners
// are told on the engine's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/metrics.h"
#include "base/mutex.h"
#include "serve/engine.h"

namespace weft::serve {

class EngineThread {
 public:
  // What is counted: weft_serve_... (docs/SERVE.md).
  static Metrics declared_metrics();

  EngineThread(std::unique_ptr<Decoder> decoder, const EngineOptions& options);
  ~EngineThread();  // what is under way ends as Cancelled
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  const Decoder& decoder() const { return *decoder_; }  // what never changes of it

  // Any thread. A request that the engine does not take ends with Failed and the engine's error. `begun` is told
  // its number first, on the engine's thread.
  void add(Request request, Listener listener, std::function<void(uint64_t id)> begun = {});
  void cancel(uint64_t id);

  // When a token, or a pass of a prompt, was last made; and since when something has been to do that no pass
  // has come of. Any thread.
  struct Pulse {
    Instant last_pass{};
    std::optional<Instant> waiting_since{};
    Status last_status{};
  };
  Pulse pulse() const;
  Metrics metrics() const;
  static Instant now();

 private:
  void run(const std::stop_token& stop);
  bool take_commands(const std::stop_token& stop);
  void post(std::function<void()> command);
  Listener counted(Listener listener);
  void count(const Engine::Tick& tick);
  void publish();

  std::unique_ptr<Decoder> decoder_;
  Engine engine_;    // the thread's
  Metrics counted_;  // the thread's
  Pulse pulse_;      // the thread's
  bool is_in_pass_ = false;  // likewise: what fails now is a pass, not a request

  mutable Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> commands_ WEFT_GUARDED_BY(mutex_);
  Instant commands_since_ WEFT_GUARDED_BY(mutex_){};  // the oldest of them
  Metrics published_ WEFT_GUARDED_BY(mutex_);
  Pulse published_pulse_ WEFT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last
};

}  // namespace weft::serve
