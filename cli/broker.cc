// weft broker: the service that peers join and users submit to.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "broker/service/broker_service.h"
#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/log_lines.h"
#include "cli/quantities.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "configs/cluster.h"
#include "configs/reader.h"
#include "configs/yaml.h"
#include "storage/files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct BrokerCommandOptions {
  std::string config, data_dir, listen, advertise, lease, replication_rate, copies, egress, quota, links,
      replan_after, compare_share, plan_memory, plan_seconds;
};

constexpr int kPrinted[] = {STDOUT_FILENO, STDERR_FILENO};
constexpr const char* kListenDefault = "0.0.0.0:7700";
constexpr int64_t kPlanMemoryMin = int64_t{64} << 20;
constexpr int kPlanSecondsMax = 24 * 60 * 60;

// What the configuration file says and the command line does not.
Status read_config(BrokerCommandOptions& options) {
  storage::Files files;
  WEFT_TRY(const auto bytes, files.read(options.config, configs::kYamlSizeMax));
  WEFT_TRY(const configs::Node tree,
           configs::parse_yaml({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options.config));
  configs::Problems problems;
  configs::MapReader reader(tree, "", problems);
  const configs::Node* format = reader.take("format");
  if (format != nullptr && reader.parse_count(*format, "format", 0, 1000).value_or(1) != 1)
    reader.problem(format->where,
                   "`format: " + format->text + "` is not known here; this weft reads format 1",
                   ErrorCode::VersionMismatch);
  const auto take = [&](const char* key, std::string& into) {
    std::string text = reader.text(key, "");
    if (into.empty()) into = std::move(text);
  };
  const fs::path folder = fs::path(options.config).parent_path();
  const bool from_file = options.data_dir.empty();
  take("data_dir", options.data_dir);
  if (from_file && !options.data_dir.empty()) options.data_dir = (folder / options.data_dir).string();
  take("listen", options.listen);
  take("advertise", options.advertise);
  take("lease", options.lease);
  take("replication_rate", options.replication_rate);
  take("copies", options.copies);
  take("egress", options.egress);
  take("quota", options.quota);
  take("links", options.links);
  take("replan_after", options.replan_after);
  take("compare_share", options.compare_share);
  take("plan_memory", options.plan_memory);
  take("plan_seconds", options.plan_seconds);
  reader.finish();
  if (!problems.empty()) return fail(problems.error());
  return {};
}

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

// Bytes a second.
Result<uint64_t> parse_replication_rate(const std::string& text) {
  if (text == "unlimited" || text == "none") return 0;
  const auto rate = configs::parse_bandwidth(text);
  if (!rate || *rate < 1)
    return fail(ErrorCode::InvalidArgument,
                "--replication-rate: '" + text + "' is no rate; write 100Mbit, 1Gbit, unlimited or none");
  return static_cast<uint64_t>(*rate);
}

// In which processes jobs are planned, and what these may take.
Status limit_planning(const BrokerCommandOptions& options, broker::BrokerServiceOptions& service) {
  service.program = "/proc/self/exe";  // this very program, also when its file was replaced
  if (options.plan_memory == "unlimited") {
    service.plan_memory = Bytes{0};
  } else if (!options.plan_memory.empty()) {
    const auto memory = configs::parse_memory(options.plan_memory);
    if (!memory || memory->value < kPlanMemoryMin)
      return fail(ErrorCode::InvalidArgument,
                  "--plan-memory: '" + options.plan_memory +
                      "' is no amount of at least 64 MiB; write 4GiB, or unlimited");
    service.plan_memory = *memory;
  }
  if (options.plan_seconds.empty()) return {};
  int seconds = 0;
  const std::string& text = options.plan_seconds;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || seconds < 1 || seconds > kPlanSecondsMax)
    return fail(ErrorCode::InvalidArgument,
                "--plan-seconds: '" + text + "' is no number of seconds from 1 to a day");
  service.plan_time = std::chrono::seconds(seconds);
  return {};
}

Result<int> run_broker(BrokerCommandOptions options) {
  if (!options.config.empty()) WEFT_TRY_STATUS(read_config(options));
  broker::BrokerServiceOptions service_options;
  if (options.data_dir.empty()) {
    WEFT_TRY(const fs::path folder, data_folder());
    options.data_dir = (folder / "broker").string();
  }
  service_options.data_dir = options.data_dir;
  WEFT_TRY(service_options.listen,
           net::parse_endpoint(options.listen.empty() ? kListenDefault : options.listen));
  if (!options.advertise.empty()) WEFT_TRY_STATUS(net::parse_endpoint(options.advertise));
  service_options.advertise = options.advertise;
  service_options.software = WEFT_VERSION;
  service_options.log = [log = std::make_shared<LogLines>()](const std::string& line) { (*log)(line); };
  if (!options.lease.empty()) {
    WEFT_TRY(service_options.lease, parse_duration(options.lease));
  }

  if (!options.replication_rate.empty()) {
    service_options.replicates = options.replication_rate != "none";
    WEFT_TRY(service_options.replication_rate, parse_replication_rate(options.replication_rate));
  }

  if (!options.copies.empty() && options.copies != "direct" && options.copies != "broker")
    return fail(ErrorCode::InvalidArgument,
                "--copies: '" + options.copies + "' is neither direct nor broker");
  service_options.copies_go_direct = options.copies != "broker";
  if (!options.egress.empty() && options.egress != "unlimited") {
    WEFT_TRY(const double rate, parse_rate_cap("--egress", options.egress));
    service_options.egress = static_cast<uint64_t>(rate);
  }
  if (!options.quota.empty()) {
    const auto bytes = configs::parse_memory(options.quota);
    if (!bytes || bytes->value <= 0)
      return fail(ErrorCode::InvalidArgument,
                  "--quota: '" + options.quota + "' is no amount of bytes; write 100GiB");
    service_options.quota.bytes = static_cast<uint64_t>(bytes->value);
  }
  if (!options.links.empty() && options.links != "measure" && options.links != "assume")
    return fail(ErrorCode::InvalidArgument, "--links: '" + options.links + "' is neither measure nor assume");
  service_options.measures_links = options.links != "assume";
  if (options.replan_after == "never") {
    service_options.replan_after = Duration{};
  } else if (!options.replan_after.empty()) {
    WEFT_TRY(service_options.replan_after, parse_duration(options.replan_after));
  }
  if (!options.compare_share.empty()) {
    const std::string& text = options.compare_share;
    double& share = service_options.compare_share;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (error != std::errc{} || end != text.data() + text.size() || !(share >= 0 && share <= 0.5))
      return fail(ErrorCode::InvalidArgument, "--compare-share: '" + text + "' is no number from 0 to 0.5");
  }
  WEFT_TRY_STATUS(limit_planning(options, service_options));

  const bool is_journal = writes_to_journal();
  service_options.makes_submitter_token = !is_journal;
  const fs::path data_dir = service_options.data_dir;
  const sigset_t signals = StopOnSignal::signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  WEFT_TRY(const auto service, broker::BrokerService::start(std::move(service_options)));
  std::string address = service->advertised();
  if (const net::Endpoint bound = service->endpoint();
      options.advertise.empty() && is_any_address(bound.host))
    address = net::to_string({own_address(), bound.port});
  WEFT_TRY_STATUS(broker::keep_address(data_dir, address));
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
  std::fflush(stdout);
  const StopOnSignal stop(*service);
  WEFT_TRY_STATUS(service->wait());
  return kExitOk;
}

}  // namespace

void add_broker(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("broker", "run the service that peers join and users submit to");
  auto options = std::make_shared<BrokerCommandOptions>();
  command.option("--config", options->config,
                 "a YAML file with data_dir, listen, advertise, lease, replication_rate, copies, "
                 "egress, quota, links, replan_after, compare_share, plan_memory, plan_seconds; options "
                 "here win");
  command.option("--data-dir", options->data_dir,
                 "identity, tokens, jobs, models and data; made where it is missing; default "
                 "~/.local/share/weft/broker");
  command.option("--listen", options->listen,
                 "HOST:PORT; default " + std::string(kListenDefault) + "; port 0: any free one");
  command.option("--advertise", options->advertise, "HOST:PORT under which others reach this broker");
  command.option("--lease", options->lease, "how long a silent peer is kept, as 10s");
  command.option("--replication-rate", options->replication_rate,
                 "how much of a peer's link copies of its state may take, as 100Mbit (the default) or "
                 "unlimited; none: a lost peer takes its run back to the last checkpoint");
  command.option("--copies", options->copies,
                 "direct (the default): copies of a state go from its stage straight to a peer of the "
                 "pool that stands by, where there is one; broker: all go through the broker");
  command.option("--egress", options->egress,
                 "how much of this broker's line copies for peers that stand by may take in all, as "
                 "500Mbit; what a stage loads goes first and at once; default unlimited");
  command.option("--quota", options->quota,
                 "how many bytes of blobs that no job uses one key may leave here, as 100GiB; default "
                 "1TiB");
  command.option("--links", options->links,
                 "measure (the default): peers that have nothing to do measure the links between them; "
                 "assume: 10 Gbit/s within a region, 100 Mbit/s between others");
  command.option("--replan-after", options->replan_after,
                 "how long after a run began, or the last look at it, it may be planned again with what "
                 "was measured since, and moved where that pays; default 30s; never");
  command.option("--compare-share", options->compare_share,
                 "of the time of a run over compressed links, what may go into running a microbatch over "
                 "dense ones beside, to see what compression does to loss and gradient; default 0.02; 0: "
                 "never");
  command.option("--plan-memory", options->plan_memory,
                 "what planning a job, in a process of its own, may take, as 4GiB (the default) or "
                 "unlimited; a model that takes more fails its job");
  command.option("--plan-seconds", options->plan_seconds,
                 "how long planning a job may take, in seconds; default 60");
  command.runs(chosen, [options] { return run_broker(*options); });
}

}  // namespace weft::cli
