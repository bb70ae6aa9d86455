#include "tests/attacks/broker_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace weft::attacks {

namespace {
using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);
}  // namespace

BrokerProcess::BrokerProcess(std::filesystem::path folder, std::vector<std::string> arguments)
    : folder_(std::move(folder)), arguments_(std::move(arguments)) {
  start();
}

BrokerProcess::~BrokerProcess() { stop(SIGKILL); }

void BrokerProcess::start() {
  const char* program = std::getenv("WEFT");
  ASSERT_NE(program, nullptr) << "WEFT names the program: ctest sets it";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string data = folder_ / "broker", log = folder_ / "broker.log", listen = to_string(endpoint_);
  const int log_file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ASSERT_GE(log_file, 0);
  std::vector<std::string> words = {program, "broker", "--data-dir", data, "--listen", listen};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  process_ = ::fork();
  ASSERT_GE(process_, 0);
  if (process_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(log_file, STDERR_FILENO);
    ::execv(program, arguments.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  ::close(log_file);
  output_ = ends[0];
  // "weft join HOST:PORT --token T", and at its first start "submitter token: T".
  std::string text;
  const auto deadline = Clock::now() + kPatience;
  const auto word_after = [&](const std::string& before) -> std::string {
    const size_t at = text.find(before);
    if (at == std::string::npos) return {};
    const size_t begin = at + before.size(), end = text.find_first_of(" \n", begin);
    return end == std::string::npos ? std::string() : text.substr(begin, end - begin);
  };
  const bool is_first = endpoint_.port == 0;
  while (word_after(" --token ").empty() || (is_first && word_after("submitter token: ").empty())) {
    pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
    char bytes[4096];
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const ssize_t size =
        left > 0 && ::poll(&ready, 1, static_cast<int>(left)) == 1 ? ::read(output_, bytes, sizeof bytes) : 0;
    ASSERT_GT(size, 0) << "the broker did not start: " << log_text();
    text.append(bytes, static_cast<size_t>(size));
  }
  const auto endpoint = net::parse_endpoint(word_after("weft join "));
  ASSERT_TRUE(endpoint) << text;
  endpoint_ = *endpoint;
  peer_token_ = *security::parse_token(word_after(" --token "));
  if (is_first) submitter_token_ = *security::parse_token(word_after("submitter token: "));
}

void BrokerProcess::stop(int signal) {
  if (process_ > 0) {
    ::kill(process_, signal);
    int status = 0;
    const auto deadline = Clock::now() + kPatience;
    while (::waitpid(process_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "the broker does not end";
        ::kill(process_, SIGKILL);
        ::waitpid(process_, &status, 0);
        break;
      }
      ::poll(nullptr, 0, 2);
    }
    if (signal == SIGTERM) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << log_text();
    }
  }
  process_ = -1;
  if (output_ >= 0) ::close(output_);
  output_ = -1;
}

void BrokerProcess::restart() {
  stop(SIGTERM);
  start();
}

bool BrokerProcess::is_alive() const {
  int status = 0;
  return process_ > 0 && ::waitpid(process_, &status, WNOHANG) == 0;
}

std::string BrokerProcess::status_field(const std::string& name) const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return {};
}

Bytes BrokerProcess::memory() const {
  return Bytes{std::strtoll(status_field("VmRSS").c_str(), nullptr, 10) << 10};
}
Bytes BrokerProcess::memory_peak() const {
  return Bytes{std::strtoll(status_field("VmHWM").c_str(), nullptr, 10) << 10};
}
void BrokerProcess::reset_peak() {
  std::ofstream("/proc/" + std::to_string(process_) + "/clear_refs") << "5";
}

double BrokerProcess::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

Bytes BrokerProcess::log_size() const {
  std::error_code error;
  const auto size = std::filesystem::file_size(folder_ / "broker.log", error);
  return Bytes{error ? 0 : static_cast<int64_t>(size)};
}

std::string BrokerProcess::log_text() const {
  std::ifstream file(folder_ / "broker.log", std::ios::binary);
  return {(std::istreambuf_iterator<char>(file)), {}};
}

}  // namespace weft::attacks
