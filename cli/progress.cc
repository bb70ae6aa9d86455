#include "cli/progress.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "cli/quantities.h"
#include "cli/say.h"

namespace weft::cli {

TransferLine::TransferLine(std::string verb, uint64_t total)
    : verb_(std::move(verb)), total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}

TransferLine::~TransferLine() {
  if (shown_) say(stderr, "\r\033[K");
}

void TransferLine::add(uint64_t bytes) {
  done_ += bytes;
  if (!terminal_ || Clock::now() - last_shown_ < std::chrono::milliseconds(200)) return;
  last_shown_ = Clock::now();
  shown_ = true;
  say(stderr, "\r\033[K{} {} of {}", verb_, format_bytes(static_cast<int64_t>(done_)),
      format_bytes(static_cast<int64_t>(total_)));
  std::fflush(stderr);
}

Patience::Patience(std::string what) : what_(std::move(what)) {
  // Who waits for Ctrl-C is another thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::jthread([this](const std::stop_token& stop) { wait(stop); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Patience::wait(const std::stop_token& stop) {
  static constexpr auto kFirst = std::chrono::seconds(2), kNext = std::chrono::seconds(30);
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto passes = [&](std::chrono::seconds time) {
    changed_.wait_for(lock, stop, time, [] { return false; });
    return !stop.stop_requested();
  };
  if (!passes(kFirst)) return;
  say(stderr, "{} ...\n", what_);
  while (passes(kNext)) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    say(stderr, "{} ... for {} now\n", what_, format_duration(took.count()));
  }
}

}  // namespace weft::cli
