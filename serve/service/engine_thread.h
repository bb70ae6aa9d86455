// An engine at work on a thread of its own, which drives the backend. Requests come from any thread;
// listeners are told on the engine's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "serve/service/token_source.h"

namespace weft::serve {

class EngineThread final : public TokenSource {
 public:
  static Metrics declared_metrics();

  EngineThread(std::unique_ptr<Decoder> decoder, const EngineOptions& options);
  ~EngineThread() override;  // what is under way ends as Cancelled
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  int64_t context() const override { return decoder_->context(); }
  int64_t vocabulary() const override { return decoder_->vocabulary(); }
  void add(Request request, Listener listener, Begun begun = {}) override;
  void cancel(uint64_t id) override;
  Pulse pulse() const override;
  Metrics metrics() const override;

 private:
  void run(const std::stop_token& stop);
  bool take_commands(const std::stop_token& stop);
  void post(std::function<void()> command);
  Listener counted(Listener listener);
  void count(const Engine::Tick& tick);
  void publish();

  std::unique_ptr<Decoder> decoder_;
  Engine engine_;            // the thread's
  Metrics counted_;          // the thread's
  Pulse pulse_;              // the thread's
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
