#include "cli/notifier.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::cli {

// The one that runs. It has until the next one to end by itself.
struct Notifier::Started {
  pid_t process = -1;

  Started() = default;
  ~Started() { end(); }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  void end() {
    if (process <= 0) return;
    if (::waitpid(process, nullptr, WNOHANG) == 0) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    process = -1;
  }
};

Notifier::Notifier() : started_(std::make_shared<Started>()) {}

void Notifier::operator()(const std::string& title, const std::string& text) const {
  started_->end();
  const char* const arguments[] = {"notify-send", "--app-name=weft", "--urgency=low", "--",
                                   title.c_str(), text.c_str(),      nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): execve's type; it changes none of them
  if (::posix_spawnp(&started_->process, arguments[0], &actions, &attributes,
                     const_cast<char* const*>(arguments), environ) != 0)
    started_->process = -1;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
}

}  // namespace weft::cli
