// weft broker: the service that peers join and users submit to.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "broker/service/broker_service.h"
#include "cli/broker_address.h"
#include "cli/broker_options.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/log_lines.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "web/server.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr int kPrinted[] = {STDOUT_FILENO, STDERR_FILENO};

bool is_any_address(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// An address of this machine that others may reach, for the line that people copy; a guess, which --advertise
// replaces.
std::string own_address() {
  ifaddrs* all = nullptr;
  std::string found = "127.0.0.1";
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    char host[NI_MAXHOST];
    if (getnameinfo(one->ifa_addr, sizeof(sockaddr_in), host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    found = host;
    break;
  }
  freeifaddrs(all);
  return found;
}

// Whether what is printed goes to systemd's journal, which keeps it for many to read: JOURNAL_STREAM names
// the device and inode of that stream. A terminal that systemd's user manager started has the variable, too,
// but other streams.
bool writes_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  if (stream == nullptr) return false;
  return std::any_of(std::begin(kPrinted), std::end(kPrinted), [stream](int descriptor) {
    struct stat status {};
    return ::fstat(descriptor, &status) == 0 && fmt::format("{}:{}", status.st_dev, status.st_ino) == stream;
  });
}

// Waits for signals on a thread of its own, while the broker's threads have them blocked: the first stops the
// broker, the second ends the process.
class StopOnSignal {
 public:
  explicit StopOnSignal(broker::BrokerService& service) : thread_([this, &service] { watch(service); }) {}
  ~StopOnSignal() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  static sigset_t signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : stop_signals()) sigaddset(&set, signal);
    sigaddset(&set, SIGUSR1);
    return set;
  }

 private:
  void watch(broker::BrokerService& service) {
    const sigset_t set = signals();
    for (int count = 0;;) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0 || signal == SIGUSR1) return;
      if (signal == SIGHUP && count > 0) continue;  // a terminal that goes away may say so twice
      if (++count > 1) _exit(kExitStopped);
      say(stderr, "stopping; again to end at once\n");
      service.stop();
    }
  }
  std::thread thread_;
};

void say_listening(const broker::BrokerService& service, const std::string& address, const fs::path& data_dir,
                   const std::function<void(const std::string&)>& log) {
  log(fmt::format("info listening address={} advertised={} data_dir=\"{}\" weft={} protocol={}.{}",
                  net::to_string(service.endpoint()), address, fs::absolute(data_dir).string(), WEFT_VERSION,
                  proto::kProtocolMajor, proto::kProtocolMinor));
  if (const auto metrics = service.metrics_endpoint(); metrics && !web::is_loopback(*metrics))
    log(fmt::format(
        "warning metrics_are_open address={} reason=\"other machines reach them, and they are neither "
        "encrypted nor asked a token for\"",
        net::to_string(*metrics)));
}

Result<int> run_broker(const BrokerWords& words) {
  broker::BrokerServiceOptions options;
  WEFT_TRY_STATUS(read_broker_options(words, options));
  if (options.data_dir.empty()) {
    WEFT_TRY(const fs::path folder, data_folder());
    options.data_dir = folder / "broker";
  }
  options.broker.software = WEFT_VERSION;
  options.log = [log = std::make_shared<LogLines>()](const std::string& line) { (*log)(line); };
  const auto log = options.log;
  options.program = "/proc/self/exe";  // this very program, also when its file was replaced

  const bool is_journal = writes_to_journal();
  options.makes_submitter_token = !is_journal;
  const fs::path data_dir = options.data_dir;
  const bool is_advertised = !options.advertise.empty(), has_certificate = !options.http_certificate.empty();
  const sigset_t signals = StopOnSignal::signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  WEFT_TRY(const auto service, broker::BrokerService::start(std::move(options)));
  std::string address = service->advertised();
  if (const net::Endpoint bound = service->endpoint(); !is_advertised && is_any_address(bound.host))
    address = net::to_string({own_address(), bound.port});
  WEFT_TRY_STATUS(broker::keep_address(data_dir, address));
  say_listening(*service, address, data_dir, log);
  if (is_journal)
    say(stdout,
        "no token is written to the journal: `weft token join-line --data-dir {1}` shows how peers join {0}, "
        "`weft token create --role submitter --data-dir {1}` makes a token for users\n",
        address, fs::absolute(data_dir).string());
  else
    say(stdout, "weft join {} --token {}\n", address, service->peer_token());
  if (service->submitter_token())
    say(stdout,
        "submitter token: {0}\n"
        "keep it: it is shown this once. To submit jobs from any machine: weft login {1} --token {0}\n",
        *service->submitter_token(), address);
  if (const auto http = service->http_endpoint())
    say(stdout, "served models: {}://{}/v1\n", has_certificate ? "https" : "http", net::to_string(*http));
  if (const auto metrics = service->metrics_endpoint())
    say(stdout, "metrics: http://{}/metrics\n", net::to_string(*metrics));
  std::fflush(stdout);
  const StopOnSignal stop(*service);
  WEFT_TRY_STATUS(service->wait());
  return kExitOk;
}

}  // namespace

void add_broker(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("broker", "run the service that peers join and users submit to");
  const auto words = std::make_shared<BrokerWords>();
  add_broker_options(command, *words);
  command.runs(chosen, [words] { return run_broker(*words); });
  add_broker_gc(command, chosen);
}

}  // namespace weft::cli
