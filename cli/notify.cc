#include "cli/notify.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "base/overloaded.h"
#include "cli/say.h"

namespace weft::cli {
namespace {

constexpr auto kTimeMax = std::chrono::seconds(30);

class Notifier : public Listener {
 public:
  Notifier(std::string command, std::string name) : command_(std::move(command)), name_(std::move(name)) {}
  ~Notifier() override {
    const auto until = Clock::now() + kTimeMax;
    while (!collect()) {
      if (Clock::now() >= until) {
        end_all();
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void hear(const RunEvent& event, int64_t, proto::JobNumber job) override {
    collect();
    std::visit(Overloaded{[&](const StateEvent& e) { on_state(job, e.state, e.reason); },
                          [&](const EndEvent& e) { on_state(job, e.state, e.reason); },
                          [&](const train::Event& e) {
                            if (const auto* end = std::get_if<train::ResultEvent>(&e)) on_result(job, *end);
                          },
                          [](const auto&) {}},
               event);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void on_result(proto::JobNumber job, const train::ResultEvent& e) {
    const bool failed = e.failed || !e.diverged.empty();
    on_state(job, failed ? "failed" : e.stopped ? "stopped" : "finished", e.diverged);
  }
  // Each state once, until there is another.
  void on_state(proto::JobNumber job, const std::string& state, const std::string& reason) {
    if (std::exchange(last_, state) == state) return;
    has_run_ = has_run_ || state == "running";
    // At its beginning every job waits for a moment, and its user looks on.
    if (state == "waiting" && !has_run_) return;
    if (state != "waiting" && state != "finished" && state != "stopped" && state != "failed") return;
    const std::string who = job != 0 ? fmt::format("job {} ({})", job, name_) : name_;
    run({{"WEFT_JOB", job != 0 ? std::to_string(job) : ""},
         {"WEFT_STATE", state},
         {"WEFT_REASON", reason},
         {"WEFT_TEXT", fmt::format("{} {}{}", who, state == "waiting" ? "waits" : state,
                                   reason.empty() ? "" : ": " + reason)}});
  }

  // In a process group of its own: Ctrl-C is for weft.
  void run(const std::vector<std::pair<std::string, std::string>>& more) {
    std::vector<std::string> variables;
    for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
    for (const auto& [name, value] : more) variables.push_back(name + "=" + value);
    std::vector<char*> pointers;
    pointers.reserve(variables.size() + 1);
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    const char* arguments[] = {"sh", "-c", command_.c_str(), nullptr};
    const pid_t pid = ::fork();
    if (pid < 0) return say(stderr, "warning: --notify: the command cannot be started\n");
    if (pid == 0) {
      ::setpgid(0, 0);
      ::dup2(STDERR_FILENO, STDOUT_FILENO);
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::execve("/bin/sh", const_cast<char* const*>(arguments), pointers.data());
      ::_exit(127);
    }
    running_.push_back({pid, Clock::now()});
  }

  // Whether all have ended.
  bool collect() {
    std::erase_if(running_, [](const Running& one) {
      int status = 0;
      const pid_t got = ::waitpid(one.pid, &status, WNOHANG);
      if (got == 0 && Clock::now() - one.since < kTimeMax) return false;
      if (got == 0) end(one);
      if (got == one.pid && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        say(stderr, "warning: --notify: the command failed\n");
      return true;
    });
    return running_.empty();
  }
  struct Running {
    pid_t pid = 0;
    Clock::time_point since{};
  };
  static void end(const Running& one) {
    ::kill(-one.pid, SIGKILL);
    ::waitpid(one.pid, nullptr, 0);
    say(stderr, "warning: --notify: the command took longer than 30 s\n");
  }
  void end_all() {
    for (const Running& one : std::exchange(running_, {})) end(one);
  }

  const std::string command_, name_;
  std::string last_;
  bool has_run_ = false;
  std::vector<Running> running_;
};

}  // namespace

std::unique_ptr<Listener> make_notifier(std::string command, std::string name) {
  return std::make_unique<Notifier>(std::move(command), std::move(name));
}

}  // namespace weft::cli
