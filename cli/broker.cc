// weft broker: the service that peers join and users submit to.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "broker/service/broker_service.h"
#include "cli/broker_address.h"
#include "cli/broker_options.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/log_lines.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "web/server.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

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
      if (++count > 1) {
        say(stderr, "ended at once\n");
        _exit(kExitStopped);
      }
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

// What a broker that has begun says of itself.
struct Told {
  const broker::BrokerService& service;
  std::string address;
  fs::path data_dir;
  bool is_journal = false;  // which many read: no token is written there
  bool has_certificate = false;
};

void tell_people(const Told& told) {
  if (told.is_journal)
    say(stdout,
        "no token is written to the journal: `weft token join-line --data-dir {1}` shows how peers join {0}, "
        "`weft token create --role submitter --data-dir {1}` makes a token for users\n",
        told.address, fs::absolute(told.data_dir).string());
  else
    say(stdout, "weft join {} --token {}\n", told.address, told.service.peer_token());
  if (told.service.submitter_token())
    say(stdout,
        "submitter token: {0}\n"
        "keep it: it is shown this once. To submit jobs from any machine: weft login {1} --token {0}\n",
        *told.service.submitter_token(), told.address);
  if (const auto http = told.service.http_endpoint())
    say(stdout, "served models: {}://{}/v1\n", told.has_certificate ? "https" : "http",
        net::to_string(*http));
  if (const auto metrics = told.service.metrics_endpoint())
    say(stdout, "metrics: http://{}/metrics\n", net::to_string(*metrics));
}

void tell_programs(const Told& told) {
  const auto url = [](const std::optional<net::Endpoint>& endpoint, const char* scheme, const char* path) {
    return endpoint ? nlohmann::ordered_json(std::string(scheme) + net::to_string(*endpoint) + path)
                    : nlohmann::ordered_json();
  };
  nlohmann::ordered_json event{
      {"event", "listening"},       {"address", net::to_string(told.service.endpoint())},
      {"advertised", told.address}, {"data_dir", fs::absolute(told.data_dir).string()},
      {"peer_token", nullptr},      {"submitter_token", nullptr}};
  if (!told.is_journal) event["peer_token"] = told.service.peer_token();
  if (told.service.submitter_token()) event["submitter_token"] = *told.service.submitter_token();
  event["served_models"] =
      url(told.service.http_endpoint(), told.has_certificate ? "https://" : "http://", "/v1");
  event["metrics"] = url(told.service.metrics_endpoint(), "http://", "/metrics");
  print_event(dump(event));
}

Result<int> run_broker(const BrokerWords& words) {
  broker::BrokerServiceOptions options;
  WEFT_TRY_STATUS(read_broker_options(words, options));
  if (options.data_dir.empty()) {
    WEFT_TRY(const fs::path folder, data_folder());
    options.data_dir = folder / "broker";
  }
  options.broker.software = WEFT_VERSION;
  options.log = [log = words.json() ? LogLines::of_json() : std::make_shared<LogLines>()](
                    const std::string& line) { (*log)(line); };
  const auto log = options.log;
  options.program = "/proc/self/exe";  // this very program, also when its file was replaced

  const bool is_journal = writes_to_journal(STDOUT_FILENO) || writes_to_journal(STDERR_FILENO);
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
  const Told told{*service, address, data_dir, is_journal, has_certificate};
  words.json() ? tell_programs(told) : tell_people(told);
  std::fflush(stdout);
  say_listening(*service, address, data_dir, log);
  const StopOnSignal stop(*service);
  WEFT_TRY_STATUS(service->wait());
  return kExitOk;
}

}  // namespace

void add_broker(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("broker", "run the service that peers join and users submit to");
  const auto words = std::make_shared<BrokerWords>();
  add_broker_options(command, *words);
  command.format(words->format);
  command.runs(chosen, [words] { return run_broker(*words); });
  add_broker_gc(command, chosen);
}

}  // namespace weft::cli
