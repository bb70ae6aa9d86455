#include "tests/attacks/peer_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace weft::attacks {

PeerProcess::PeerProcess(std::filesystem::path folder, const std::string& broker, const std::string& token,
                         const std::vector<std::string>& options)
    : folder_(std::move(folder)) {
  const char* program = std::getenv("WEFT");
  if (program == nullptr) {
    ADD_FAILURE() << "WEFT names the program";
    return;
  }
  std::vector<std::string> arguments{program, "join",       broker,          "--token",
                                     token,   "--data-dir", folder_ / "peer"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::string place = "XDG_RUNTIME_DIR=" + folder_.string();
  const std::string log = folder_ / "peer.log";
  process_ = ::fork();
  if (process_ == 0) {
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(file, STDERR_FILENO);
    ::putenv(place.data());
    ::execv(program, pointers.data());
    ::_exit(127);
  }
  EXPECT_GT(process_, 0);
}

PeerProcess::~PeerProcess() {
  if (process_ <= 0 || has_ended_) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void PeerProcess::signal(int number) const { ::kill(process_, number); }

bool PeerProcess::ends_within(Duration time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (!has_ended_) {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) {
      has_ended_ = true;
      exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    } else if (std::chrono::steady_clock::now() > deadline) {
      return false;
    } else {
      ::poll(nullptr, 0, 5);
    }
  }
  return true;
}

bool PeerProcess::is_alive() { return !ends_within(Duration::zero()); }

std::string PeerProcess::status_field(const std::string& name) const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return {};
}
Bytes PeerProcess::memory() const {
  return Bytes{std::strtoll(status_field("VmRSS").c_str(), nullptr, 10) << 10};
}
Bytes PeerProcess::memory_peak() const {
  return Bytes{std::strtoll(status_field("VmHWM").c_str(), nullptr, 10) << 10};
}
void PeerProcess::reset_peak() const {
  std::ofstream("/proc/" + std::to_string(process_) + "/clear_refs") << "5";
}

std::string PeerProcess::log_text() const {
  std::ifstream file(folder_ / "peer.log", std::ios::binary);
  return {(std::istreambuf_iterator<char>(file)), {}};
}

}  // namespace weft::attacks
