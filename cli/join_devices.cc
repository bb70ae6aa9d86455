#include "cli/join_devices.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/exit_codes.h"
#include "cli/signals.h"

namespace weft::cli {
namespace {

tl::unexpected<Error> cannot(const char* what) {
  return fail(ErrorCode::Internal, fmt::format("{}: {}", what, std::strerror(errno)));
}

// In the child, between fork and exec: system calls alone.
[[noreturn]] void become(const std::vector<char*>& arguments, int input, pid_t parent, const sigset_t& mask) {
  ::setpgid(0, 0);  // a terminal's Ctrl-C comes through the parent, once
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kExitFailed);  // it died before
  ::dup2(input, STDIN_FILENO);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(kExitFailed);
}

Result<pid_t> start(std::vector<std::string> arguments, const std::string& input, const sigset_t& mask) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot("a pipe");
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(pointers, ends[0], parent, mask);
  ::close(ends[0]);
  // A token fits into any pipe: this never waits.
  const bool written =
      child > 0 && ::write(ends[1], input.data(), input.size()) == static_cast<ssize_t>(input.size());
  ::close(ends[1]);
  if (child < 0) return cannot("another process");
  if (!written) return cannot("the token's pipe");
  return child;
}

}  // namespace

Result<int> run_each(const std::vector<std::vector<std::string>>& arguments, const std::string& input) {
  sigset_t wanted, before;
  sigemptyset(&wanted);
  for (const int signal : stop_signals()) sigaddset(&wanted, signal);
  sigaddset(&wanted, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &wanted, &before);
  std::vector<pid_t> children;
  const auto tell_all = [&](int signal) {
    for (const pid_t child : children)
      if (child > 0) ::kill(child, signal);
  };
  Status started;
  for (const auto& list : arguments) {
    auto child = start(list, input, before);
    if (child)
      children.push_back(*child);
    else if (started)
      started = fail(child.error());
  }
  if (!started) tell_all(SIGTERM);
  std::vector<int> codes(children.size(), 0);
  for (size_t running = children.size(); running > 0;) {
    int signal = 0;
    if (::sigwait(&wanted, &signal) != 0) break;
    if (signal != SIGCHLD) tell_all(signal);
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (children[i] <= 0 || ::waitpid(children[i], &status, WNOHANG) != children[i]) continue;
      codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
      children[i] = 0;
      --running;
    }
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!started) return fail(started.error());
  for (const int code : codes)
    if (code != 0) return code;
  return kExitOk;
}

}  // namespace weft::cli
