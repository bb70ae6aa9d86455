// What a broker takes for many peers that do nothing: each a protocol client with a key of its own and a
// heartbeat a second, all in this process; the broker is another one, started by this one.
//   weft_bench_broker_load [PEERS [SECONDS [ENDED_JOBS]]]
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "broker/service/broker_service.h"
#include "broker/store/sqlite_store.h"
#include "tests/attacks/honest_peers.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void store_ended_jobs(const std::filesystem::path& data, uint64_t count) {
  const auto store = broker::open_sqlite_store(data / "broker.sqlite");
  if (!store) return std::fprintf(stderr, "%s\n", store.error().message.c_str()), std::exit(1);
  for (uint64_t job = 1; job <= count; ++job) {
    std::vector<broker::Record> records{
        broker::JobSubmitted{.job = job,
                             .submission = proto::SubmitJob{.name = "ended-" + std::to_string(job)}},
        broker::JobChanged{.job = job, .state = proto::JobState::Finished}};
    for (uint64_t sequence = 1; sequence <= 20; ++sequence)
      records.push_back(
          proto::JobEvent{.job = job, .sequence = sequence, .kind = proto::JobEventKind::Notice});
    if (const Status stored = (*store)->append(records); !stored)
      return std::fprintf(stderr, "%s\n", stored.error().message.c_str()), std::exit(1);
  }
}

// The broker's process: tells where it is, and serves until it is killed.
int serve(const std::filesystem::path& data, int tell) {
  broker::BrokerServiceOptions options;
  options.data_dir = data;
  options.listen = {"127.0.0.1", 0};
  options.broker.software = "bench";
  options.log = [](const std::string&) {};
  options.broker.lease = std::chrono::seconds(5);                               // a heartbeat a second
  options.broker.measures_links = false;                                        // these have none
  options.limits.connections_max_per_address = options.limits.connections_max;  // all are of this machine
  const auto service = broker::BrokerService::start(std::move(options));
  if (!service) return std::fprintf(stderr, "%s\n", service.error().message.c_str()), 1;
  const std::string line = net::to_string((*service)->endpoint()) + " " + (*service)->peer_token() + "\n";
  if (::write(tell, line.data(), line.size()) < 0) return 1;
  (void)(*service)->wait();
  return 0;
}

std::string field(pid_t process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return "0";
}
double megabytes(pid_t process, const std::string& name) {
  return std::strtod(field(process, name).c_str(), nullptr) / 1024;
}
double cpu_seconds(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int run(size_t count, int seconds_long, uint64_t ended_jobs) {
  std::string folder = (std::filesystem::temp_directory_path() / "weft-broker-load-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return std::perror("mkdtemp"), 1;
  if (ended_jobs > 0) store_ended_jobs(folder, ended_jobs);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::perror("pipe2"), 1;
  const auto begin = Clock::now();
  const pid_t broker = ::fork();
  if (broker == 0) ::_exit(serve(folder, ends[1]));
  ::close(ends[1]);
  char text[512] = {};
  if (::read(ends[0], text, sizeof text - 1) <= 0) return std::fprintf(stderr, "no broker\n"), 1;
  std::printf("broker ready after %.2f s, %.1f MB\n", since(begin), megabytes(broker, "VmRSS"));
  std::istringstream words(text);
  std::string endpoint, token;
  words >> endpoint >> token;

  int result = 0;
  {
    const auto join_begin = Clock::now();
    attacks::HonestPeers peers(*net::parse_endpoint(endpoint), *security::parse_token(token), count);
    const bool all = peers.wait_until_joined(std::chrono::seconds(120));
    std::printf("%zu joins in %.2f s, %.2f s of the broker's processor time\n", peers.report().joined,
                since(join_begin), cpu_seconds(broker));
    std::fflush(stdout);
    const double cpu_before = cpu_seconds(broker);
    const auto load_begin = Clock::now();
    ::poll(nullptr, 0, seconds_long * 1000);
    const attacks::HonestPeers::Report report = peers.report();
    std::printf(
        "%zu peers, %.0f s: %.1f heartbeats a second, worst round trip %.0f ms, %zu lost; broker: %.3f of a "
        "core, %.1f MB now, %.1f MB at most\n",
        report.joined, since(load_begin), static_cast<double>(report.answered) / since(load_begin),
        1e3 * seconds(report.worst_round_trip), report.lost,
        (cpu_seconds(broker) - cpu_before) / since(load_begin), megabytes(broker, "VmRSS"),
        megabytes(broker, "VmHWM"));
    if (!all || report.lost > 0) result = 1;
    if (!report.reason.empty()) std::printf("last lost: %s\n", report.reason.c_str());
  }
  ::kill(broker, SIGKILL);
  ::waitpid(broker, nullptr, 0);
  std::filesystem::remove_all(folder);
  return result;
}

}  // namespace
}  // namespace weft

int main(int count, char** words) {
  const auto number = [&](int at, long otherwise) {
    return count > at ? std::strtol(words[at], nullptr, 10) : otherwise;
  };
  return weft::run(static_cast<size_t>(number(1, 1000)), static_cast<int>(number(2, 60)),
                   static_cast<uint64_t>(number(3, 0)));
}
