#include "cli/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace weft::cli {
namespace {

sigset_t set_of(const Signals& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

const Signals& stop_signals() {
  static const Signals kSignals = [] {
    struct sigaction hangup {};
    const bool ignored = ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    return ignored ? Signals{SIGINT, SIGTERM} : Signals{SIGINT, SIGTERM, SIGHUP};
  }();
  return kSignals;
}

SignalsBlocked::SignalsBlocked(Signals signals) : signals_(std::move(signals)) {
  const sigset_t set = set_of(signals_);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalsBlocked::~SignalsBlocked() {
  const sigset_t set = set_of(signals_);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Result<std::unique_ptr<SignalWatch>> SignalWatch::start(net::Loop& loop, std::function<void(int)> on_signal,
                                                        const Signals& signals) {
  std::unique_ptr<SignalWatch> watch(new SignalWatch());
  const sigset_t set = set_of(signals);
  watch->descriptor_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (watch->descriptor_ < 0)
    return fail(ErrorCode::ResourceExhausted, std::string("signalfd: ") + std::strerror(errno));
  watch->on_signal_ = std::move(on_signal);
  watch->watch_ = loop.watch_readable(watch->descriptor_, [self = watch.get()] { self->read(); });
  return watch;
}

SignalWatch::~SignalWatch() {
  watch_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SignalWatch::read() {
  signalfd_siginfo info;
  while (::read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)))
    count(static_cast<int>(info.ssi_signo));
}

void SignalWatch::count(int signal) {
  if (signal != SIGHUP) return on_signal_(++count_);
  if (count_ == 0 && !std::exchange(hung_up_, true)) on_signal_(1);
}

}  // namespace weft::cli
