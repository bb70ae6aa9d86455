#include "serve/service/engine_thread.h"

#include <array>
#include <optional>
#include <utility>

namespace weft::serve {
namespace {

constexpr std::array kRows{1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0};

}  // namespace

Metrics EngineThread::declared_metrics() {
  Metrics metrics;
  declare_request_metrics(metrics);
  metrics.declare_histogram("weft_serve_pass_rows", "Positions that were computed in one pass.", kRows);
  metrics.declare_counter("weft_serve_guesses_total", "Tokens that were guessed and checked.");
  metrics.declare_counter("weft_serve_guesses_right_total", "Guesses that were drawn: each saved a pass.");
  metrics.declare_gauge("weft_serve_cache_bytes", "Memory that is granted to requests.");
  return metrics;
}

EngineThread::EngineThread(std::unique_ptr<Decoder> decoder, const EngineOptions& options)
    : decoder_(std::move(decoder)), engine_(*decoder_, options), counted_(declared_metrics()) {
  pulse_.last_pass = steady_now();
  publish();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

EngineThread::~EngineThread() {
  thread_.request_stop();
  changed_.notify_all();
  thread_.join();
}

void EngineThread::post(std::function<void()> command) {
  {
    const MutexLock lock(mutex_);
    if (commands_.empty()) commands_since_ = steady_now();
    commands_.push_back(std::move(command));
  }
  changed_.notify_one();
}

// Times are those of the listener's thread: what the engine takes for a token.
Listener EngineThread::counted(Listener listener) {
  struct Times {
    Instant arrived = steady_now();
    std::optional<Instant> last{};
  };
  const auto times = std::make_shared<Times>();
  Listener counting;
  counting.on_token = [this, times, on_token = std::move(listener.on_token)](const Generated& generated) {
    const Instant at = steady_now();
    counted_.observe(times->last ? "weft_serve_between_tokens_seconds" : "weft_serve_first_token_seconds",
                     seconds(at - times->last.value_or(times->arrived)));
    times->last = at;
    counted_.add("weft_serve_tokens_total");
    return on_token(generated);
  };
  counting.on_end = [this, on_end = std::move(listener.on_end)](Finish finish, const Status& status) {
    counted_.add("weft_serve_requests_total", 1, {{"finish", std::string(to_string(finish))}});
    if (is_in_pass_ && finish == Finish::Failed) pulse_.last_status = status;
    publish();  // who hears of the end and then asks how things are is told of it
    on_end(finish, status);
  };
  return counting;
}

void EngineThread::add(Request request, Listener listener, Begun begun) {
  Listener counting = counted(std::move(listener));
  post([this, request = std::move(request), counting = std::move(counting),
        begun = std::move(begun)]() mutable {
    const auto id = engine_.add(std::move(request), counting);
    if (!id) return counting.on_end(Finish::Failed, fail(id.error()));
    if (begun && !begun(*id)) engine_.cancel(*id);
  });
}

void EngineThread::cancel(uint64_t id) {
  post([this, id] { engine_.cancel(id); });
}

// Waits for one where nothing is under way. False: it is time to stop.
bool EngineThread::take_commands(const std::stop_token& stop) {
  std::deque<std::function<void()>> commands;
  {
    const MutexLock lock(mutex_);
    const bool busy = engine_.serving() + engine_.waiting() > 0;
    if (!busy) changed_.wait(mutex_, stop, [this]() WEFT_REQUIRES(mutex_) { return !commands_.empty(); });
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
  return !stop.stop_requested();
}

void EngineThread::count(const Engine::Tick& tick) {
  const bool waits = engine_.serving() + engine_.waiting() > 0;
  if (!tick.idle) counted_.observe("weft_serve_pass_rows", static_cast<double>(tick.rows));
  if (tick.guessed > 0) counted_.add("weft_serve_guesses_total", static_cast<double>(tick.guessed));
  if (tick.accepted > 0) counted_.add("weft_serve_guesses_right_total", static_cast<double>(tick.accepted));
  if (!tick.idle) pulse_.last_pass = steady_now();
  pulse_.last_status = tick.status;
  pulse_.waiting_since = waits ? std::optional(pulse_.last_pass) : std::nullopt;
  counted_.set("weft_serve_requests_serving", static_cast<double>(engine_.serving()));
  counted_.set("weft_serve_requests_waiting", static_cast<double>(engine_.waiting()));
  counted_.set("weft_serve_cache_bytes", static_cast<double>(engine_.granted().value));
}

void EngineThread::publish() {
  const MutexLock lock(mutex_);
  published_ = counted_;
  published_pulse_ = pulse_;
}

void EngineThread::run(const std::stop_token& stop) {
  while (take_commands(stop)) {
    is_in_pass_ = true;
    const Engine::Tick tick = engine_.tick();
    is_in_pass_ = false;
    count(tick);
    publish();
  }
  engine_.cancel_all();
  engine_.tick();
}

EngineThread::Pulse EngineThread::pulse() const {
  const MutexLock lock(mutex_);
  Pulse pulse = published_pulse_;
  if (!pulse.waiting_since && !commands_.empty()) pulse.waiting_since = commands_since_;
  return pulse;
}

Metrics EngineThread::metrics() const {
  const MutexLock lock(mutex_);
  return published_;
}

}  // namespace weft::serve
