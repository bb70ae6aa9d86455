// weft join: offers this machine to a broker, as a peer.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "cli/attending.h"
#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/exit_codes.h"
#include "cli/guest.h"
#include "cli/join_devices.h"
#include "cli/join_limits.h"
#include "cli/join_options.h"
#include "cli/log_lines.h"
#include "cli/notifier.h"
#include "cli/quantities.h"
#include "cli/say.h"
#include "cli/schedule.h"
#include "cli/signals.h"
#include "configs/cluster.h"
#include "peer/service/peer_service.h"
#include "storage/files.h"
#include "web/metrics_page.h"
#include "weights/index.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kDiskMin = int64_t{1} << 20;  // bytes

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

net::ShapeDirection direction_of(const configs::LinkProfile& link) {
  return {.bytes_per_second = link.bytes_per_second,
          .delay = link.latency,
          .jitter = link.jitter,
          .loss = link.loss};
}

// What the owner lets this peer send and receive, in bytes a second; 0: all that goes.
struct Caps {
  double upload = 0, download = 0;
};
Result<Caps> parse_caps(const JoinOptions& options) {
  Caps caps;
  if (!options.upload.empty()) {
    WEFT_TRY(caps.upload, parse_rate_cap("--upload", options.upload));
  }
  if (!options.download.empty()) {
    WEFT_TRY(caps.download, parse_rate_cap("--download", options.download));
  }
  return caps;
}
// A cap and an emulated line lie one behind the other: what passes both passes the slower.
double slower(double cap, const std::optional<double>& line) {
  if (cap == 0 || line.value_or(0) == 0) return cap + line.value_or(0);
  return std::min(cap, *line);
}

// The lines of this peer, and with --emulate the links between here and the regions, as this side has to make
// them: all of a pair's link, for the other side does nothing of it. With neither, nothing lies in the way.
Status set_shape(const JoinOptions& options, const Caps& caps, uint64_t seed,
                 peer::PeerServiceOptions& service, net::Shape& open) {
  if (options.emulate.empty() && !options.emulate_as.empty())
    return fail(ErrorCode::InvalidArgument,
                "--as " + options.emulate_as + " needs --emulate FILE: the cluster file that it is in");
  if (!options.emulate.empty() && options.region.empty())
    return fail(ErrorCode::InvalidArgument,
                "--emulate needs --region NAME: where in the cluster file this peer is");
  std::shared_ptr<configs::Cluster> cluster;
  configs::ClusterDevice device;  // no lines
  if (!options.emulate.empty()) {
    cluster = std::make_shared<configs::Cluster>();
    WEFT_TRY(*cluster, configs::load_cluster(options.emulate));
    WEFT_TRY_STATUS(configs::link_between(*cluster, options.region, options.region));
    if (!options.emulate_as.empty()) {
      WEFT_TRY(device, configs::device_in(*cluster, options.emulate_as, options.region));
    }
  }
  open = {.seed = seed,  // to where no pair's link lies
          .uplink = net::AccessLine::make(slower(caps.upload, device.uplink)),
          .downlink = net::AccessLine::make(slower(caps.download, device.downlink))};
  if (open.uplink || open.downlink) service.accepted_shape = open;
  if (!cluster) {
    if (service.accepted_shape) service.shape = [open](const std::string&) { return open; };
    return {};
  }
  service.shape = [cluster, mine = options.region, open](const std::string& region) {
    net::Shape shape = open;
    const std::string& theirs = region.empty() ? cluster->broker : region;
    const auto there = configs::link_between(*cluster, mine, theirs),
               back = configs::link_between(*cluster, theirs, mine);
    if (!there || !back) return shape;  // a peer from elsewhere, or a broker that is everywhere
    shape.send = direction_of(*there);
    shape.receive = direction_of(*back);
    return shape;
  };
  return {};
}

// The cluster file was changed: what is joined by these lines from now on passes them at their new rates, or
// at their owner's where those are lower.
Status change_lines(const JoinOptions& options, const Caps& caps, const net::Shape& open) {
  WEFT_TRY(const configs::Cluster loaded, configs::load_cluster(options.emulate));
  WEFT_TRY(const configs::ClusterDevice device,
           configs::device_in(loaded, options.emulate_as, options.region));
  for (const auto& [line, rate] : {std::pair{open.uplink, slower(caps.upload, device.uplink)},
                                   {open.downlink, slower(caps.download, device.downlink)}}) {
    if (!line && rate > 0)
      return fail(ErrorCode::InvalidArgument,
                  options.emulate + ": a line that had no rate at first has none now either");
    if (line && net::AccessLine::make(rate) == nullptr)
      return fail(ErrorCode::InvalidArgument, options.emulate + ": a line that had a rate needs one now too");
    if (line) line->set_rate(rate);
  }
  return {};
}

// Of what a peer writes only kernels that were compiled for a GPU take more than a few hundred bytes: weft's
// own cache of them, and that of NVIDIA's driver. Each has half; both give up what was used longest ago.
Status set_disk_max(const JoinOptions& options) {
  if (options.disk.empty()) return {};
  const auto size = configs::parse_memory(options.disk);
  if (!size || size->value < kDiskMin)
    return fail(ErrorCode::InvalidArgument,
                "--disk: '" + options.disk + "' is no size of at least 1MiB: say as 512MiB or 4GiB");
  const std::string half = std::to_string(size->value / 2);
  ::setenv("WEFT_KERNEL_CACHE_MAX", half.c_str(), /*overwrite=*/1);
  ::setenv("CUDA_CACHE_MAXSIZE", half.c_str(), /*overwrite=*/1);
  return {};
}

Status set_listen(const JoinOptions& options, peer::PeerServiceOptions& service) {
  if (options.listen.empty()) {
    if (!options.advertise.empty())
      return fail(ErrorCode::InvalidArgument, "--advertise needs --listen HOST:PORT: nothing would be there");
    return {};
  }
  WEFT_TRY(const net::Endpoint listen, net::parse_endpoint(options.listen));
  if (!options.advertise.empty()) {
    WEFT_TRY_STATUS(net::parse_endpoint(options.advertise));
  } else if (listen.host == "0.0.0.0" || listen.host == "::") {
    return fail(ErrorCode::InvalidArgument,
                "--listen " + options.listen +
                    " is no address that others can dial: say --advertise HOST:PORT as well");
  }
  service.listen = listen;
  service.advertise = options.advertise;
  return {};
}

Result<OfferedMemory> parse_offered(const JoinOptions& options, const Device& device) {
  OfferedMemory offered{.device = {}, .host = {}, .share = share_of(options)};
  const bool of_gpu = device.cuda && !options.guest.gpu_memory.empty();
  for (const auto& [option, text, bytes] :
       {std::tuple{of_gpu ? "--gpu-memory" : "--memory", of_gpu ? &options.guest.gpu_memory : &options.memory,
                   &offered.device},
        {"--host-memory", &options.host_memory, &offered.host}}) {
    if (text->empty()) continue;
    *bytes = configs::parse_memory(*text);
    if (!*bytes)
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("{}: '{}' is no size: say as 4GiB or 512MiB", option, *text));
  }
  if (offered.host && !device.cuda)
    return fail(ErrorCode::InvalidArgument,
                "--host-memory is what a GPU's peer takes beside its own memory; of " + device.text +
                    " say --memory");
  return offered;
}

Result<std::unique_ptr<web::Server>> start_metrics(const std::string& address,
                                                   std::shared_ptr<const web::LatestMetrics> metrics,
                                                   const std::function<void(const std::string&)>& log) {
  const auto endpoint = net::parse_endpoint(address);
  if (!endpoint) return fail(endpoint.error().within("--metrics"));
  auto server = web::serve_metrics(*endpoint, std::move(metrics));
  if (!server) return fail(server.error().within("--metrics"));
  log(fmt::format("info metrics address=http://{}/metrics", net::to_string((*server)->endpoint())));
  if (!web::is_loopback(*endpoint))
    log("warning metrics_are_open reason=\"other machines reach them, and nobody is asked a token\"");
  return server;
}

// The hashes of what lies there are kept beside the peer's identity.
Result<std::shared_ptr<const weights::WeightIndex>> open_weights(
    const std::string& folder, const fs::path& own, const std::function<void(const std::string&)>& log) {
  auto index = weights::WeightIndex::open({.folder = folder, .kept = own / "weights.jsonl", .log = log});
  if (!index) return fail(index.error().within("--weights"));
  return std::shared_ptr<const weights::WeightIndex>(std::move(*index));
}

// How many stages the peer holds at once.
Result<uint32_t> parse_jobs(const std::string& text) {
  if (text.empty() || text == "2") return 2;
  if (text == "1") return 1;
  return fail(ErrorCode::InvalidArgument,
              "--jobs: '" + text + "' is neither 1 nor 2: one that trains, and one that serves beside it");
}

// What this peer offers, measured: a few seconds in which it computes.
Status measure(const JoinOptions& options, const Device& device, const OfferedMemory& offered, uint32_t jobs,
               peer::PeerServiceOptions& service) {
  Result<proto::DeviceReport> described = describe(device, offered);
  if (!described && described.error().code == ErrorCode::DeviceLost)
    end_at_once(fail(described.error()));  // perhaps it never answers
  WEFT_TRY(proto::DeviceReport report, std::move(described));
  report.region = options.region;
  report.owner = options.owner;
  report.stages = jobs;
  service.memory_free = [offered = report.memory, own = device.cuda.has_value()] {
    return own ? offered
               : std::min(offered, available_memory());  // memory of its own: no other process takes it
  };
  service.log(
      fmt::format("info measured device={} matmul_gflops={:.1f} convolution_gflops={:.1f} "
                  "memory_gbytes_per_second={:.1f} "
                  "memory_offered={} fingerprint=\"{}\"",
                  report.device, report.rates.matmul_flops_per_second / 1e9,
                  report.rates.convolution_flops_per_second / 1e9, report.rates.memory_bytes_per_second / 1e9,
                  report.memory.value, report.fingerprint));
  service.hello.device = std::move(report);
  return {};
}

Result<int> run_join(const JoinOptions& options) {
  peer::PeerServiceOptions service;
  WEFT_TRY(service.broker, net::parse_endpoint(options.broker));
  WEFT_TRY(const security::Token token, read_token(options.token, security::Role::Peer));
  WEFT_TRY(const std::string device_text, device_with_cpus(options.devices.front(), options));
  WEFT_TRY(const Device device, parse_device(device_text));
  WEFT_TRY(const OfferedMemory offered, parse_offered(options, device));
  WEFT_TRY_STATUS(check_offer(device, offered, this_machine()));
  WEFT_TRY(const uint32_t jobs, parse_jobs(options.jobs));
  WEFT_TRY_STATUS(set_listen(options, service));
  WEFT_TRY(const Caps caps, parse_caps(options));
  WEFT_TRY(const peer::MannersRules rules, manners_of(options));
  std::optional<Schedule> hours;
  if (!options.schedule.empty()) {
    WEFT_TRY(hours, Schedule::parse(options.schedule));
  }
  WEFT_TRY_STATUS(set_disk_max(options));
  if (options.guest.is_guest) give_way_to_others();

  fs::path folder = options.data_dir;
  if (folder.empty()) {
    WEFT_TRY(folder, data_folder());
    folder /= "peer";
  }
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  const auto lock = storage::FolderLock::acquire(files, folder);
  if (!lock)
    return fail(lock.error().code == ErrorCode::Unavailable
                    ? Error{ErrorCode::Unavailable, "another peer runs with the identity in " +
                                                        folder.string() + ": give each its own --data-dir"}
                    : lock.error());
  WEFT_TRY(const auto identity, security::Identity::load_or_create(folder));
  net::Shape open;
  WEFT_TRY_STATUS(set_shape(options, caps, identity->id().digest.bytes[2], service, open));

  const SignalsBlocked blocked;
  const Signals reload = options.emulate_as.empty() ? Signals{} : Signals{SIGUSR1};
  const SignalsBlocked reload_blocked(reload);
  service.broker_key = token.broker;
  service.dials_private = options.dials_private;
  service.identity = identity.get();
  const auto lines = options.format == "json" ? LogLines::of_json() : std::make_shared<LogLines>();
  const auto log = [lines](const std::string& line) { (*lines)(line); };
  service.log = log;
  if (!options.weights.empty()) {
    WEFT_TRY(service.weights, open_weights(options.weights, folder, log));
  }
  service.make_backend = [device] { return make_backend(device); };
  service.hello.software = WEFT_VERSION;
  service.hello.role = proto::Role::Peer;
  service.hello.token = proto::TokenProof{token.id, token.secret.bytes};
  service.hello.name = options.name.empty() ? host_name() : options.name;
  Attending attending{.service = std::move(service), .attendance = Attendance(hours, rules)};
  attending.prepare = [&](peer::PeerServiceOptions& of) {
    return measure(options, device, offered, jobs, of);
  };
  if (options.guest.is_guest || has_rules(rules))
    attending.watch = machine_watch(rules, device.cuda.has_value());
  if (options.guest.is_guest) attending.notify = Notifier();
  attending.root = machine_root();
  if (auto control = PeerControl::open(control_folders(), "peer-" + std::to_string(::getpid()),
                                       attending.service.hello.name))
    attending.control = std::move(*control);
  else
    log(fmt::format("warning cannot_be_paused reason=\"{}\"", control.error().message));
  if (!options.emulate_as.empty()) attending.reload = reload;
  attending.on_reload = [&] {
    const Status changed = change_lines(options, caps, open);
    log(changed ? "info lines_changed"
                : "warning lines_not_changed reason=\"" + changed.error().message + "\"");
  };
  std::unique_ptr<web::Server> metrics;
  if (!options.metrics.empty()) {
    attending.metrics = std::make_shared<web::LatestMetrics>();
    WEFT_TRY(metrics, start_metrics(options.metrics, attending.metrics, log));
  }
  return attend(std::move(attending));
}

// HOST:PORT with the port so many further; a port of 0 stays what it is.
Result<std::string> further(const std::string& text, size_t by) {
  WEFT_TRY(const net::Endpoint endpoint, net::parse_endpoint(text));
  if (endpoint.port == 0) return text;
  const size_t port = endpoint.port + by;
  if (port > 65535)
    return fail(ErrorCode::InvalidArgument,
                text + ": each device takes the next port, and there is no port " + std::to_string(port));
  return text.substr(0, text.rfind(':') + 1) + std::to_string(port);
}

// A peer for each device, in a process of its own: the arguments of each.
Result<std::vector<std::vector<std::string>>> arguments_by_device(const JoinOptions& options) {
  fs::path folder = options.data_dir;
  if (folder.empty()) {
    WEFT_TRY(folder, data_folder());
  }
  // They share the machine's memory, and none sees what the others are about to take.
  const std::string share = fmt::format("{}MiB", (available_memory(share_of(options)).value >> 20) /
                                                     static_cast<int64_t>(options.devices.size()));
  std::vector<std::vector<std::string>> all;
  for (size_t i = 0; i < options.devices.size(); ++i) {
    const std::string& device = options.devices[i];
    if (std::count(options.devices.begin(), options.devices.end(), device) > 1)
      return fail(ErrorCode::InvalidArgument, "--device " + device + " is given twice");
    WEFT_TRY(const Device parsed, parse_device(device));
    const bool of_host = !parsed.cuda && !parsed.catalogue;
    std::string of_folder = "peer-" + device;
    std::replace(of_folder.begin(), of_folder.end(), ':', '-');
    const std::string name = (options.name.empty() ? host_name() : options.name) + "-" + device;
    std::vector<std::string> arguments{"weft",
                                       "join",
                                       options.broker,
                                       "--token",
                                       "-",
                                       "--device",
                                       device,
                                       "--name",
                                       name,
                                       "--data-dir",
                                       (folder / of_folder).string()};
    const auto pass = [&](const char* option, const std::string& value) {
      if (!value.empty()) arguments.insert(arguments.end(), {option, value});
    };
    for (const auto& [option, value] : {std::pair{"--listen", options.listen},
                                        {"--advertise", options.advertise},
                                        {"--metrics", options.metrics}}) {
      if (value.empty()) continue;
      WEFT_TRY(const std::string own, further(value, i));
      pass(option, own);
    }
    pass("--memory", options.memory.empty() && of_host ? share : options.memory);
    if (parsed.cuda) pass("--host-memory", options.host_memory.empty() ? share : options.host_memory);
    pass("--upload", options.upload);
    pass("--download", options.download);
    pass("--disk", options.disk);
    pass("--weights", options.weights);
    pass("--schedule", options.schedule);
    pass("--jobs", options.jobs);
    pass("--format", options.format);
    if (options.dials_private) arguments.push_back("--dial-private");
    if (options.guest.is_guest) arguments.push_back("--guest");
    if (of_host) pass("--cpus", options.guest.cpus);
    if (parsed.cuda) pass("--gpu-memory", options.guest.gpu_memory);
    pass("--battery", options.guest.battery);
    pass("--idle", options.guest.idle);
    pass("--temperature", options.guest.temperature);
    pass("--settle", options.guest.settle);
    for (const std::string& program : options.guest.pause_for) pass("--pause-for", program);
    pass("--emulate", options.emulate);
    pass("--region", options.region);
    pass("--owner", options.owner);
    pass("--as", options.emulate_as);
    all.push_back(std::move(arguments));
  }
  return all;
}

Result<int> run_joins(JoinOptions options) {
  if (!options.config.empty()) WEFT_TRY_STATUS(read_join_config(options));
  if (options.devices.empty()) options.devices = {"cpu"};
  if (options.broker.empty())
    return fail(ErrorCode::InvalidArgument,
                "which broker? say weft join HOST:PORT --token T, or --config FILE");
  if (const char* token = std::getenv("WEFT_TOKEN"); options.token.empty() && token != nullptr)
    options.token = token;
  if (options.token.empty())
    return fail(ErrorCode::InvalidArgument,
                "no token for the broker " + options.broker +
                    ": say --token T, @FILE or - for standard input, or set WEFT_TOKEN");
  if (options.devices.size() == 1) return run_join(options);
  WEFT_TRY(const auto arguments, arguments_by_device(options));
  WEFT_TRY(const security::Token token, read_token(options.token, security::Role::Peer));
  return run_each(arguments, security::to_text(token) + "\n");
}

}  // namespace

void add_join(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("join", "offer this machine to a broker, as a peer");
  auto options = std::make_shared<JoinOptions>();
  command.option("broker", options->broker, "HOST:PORT, as the broker printed it");
  command.option("--token", options->token, "a peer token, @FILE, or - for standard input (else WEFT_TOKEN)");
  command.option("--config", options->config,
                 "a YAML file with broker, token and the options here, as host_memory for --host-memory; "
                 "options here win; `weft service install` writes one");
  command.format(options->format);
  command.option("--name", options->name, "how people shall call this peer; default: the machine's name");
  command
      .option("--device", options->devices,
              "cpu, cpu:N with N compute threads, cuda or cuda:N (the Nth GPU, from 0), or null:TYPE, which "
              "computes nothing and takes as long as TYPE would (null:TYPE/8: eight times as long); given "
              "again: a peer for each device, in a "
              "process of its own; default: cpu")
      .one_value_each();
  command.option(
      "--memory", options->memory,
      "how much of it stages and copies may take, as 4GiB (the program itself takes some 70 MB beside "
      "it); default: most of what is free");
  command.option("--host-memory", options->host_memory,
                 "with a GPU: how much of the machine's own memory copies of a job's state may take beside "
                 "it; default: most of what is free");
  command.option("--data-dir", options->data_dir, "this peer's identity; default ~/.local/share/weft/peer");
  command.option("--listen", options->listen,
                 "HOST:PORT for other peers to dial; default: none, all goes by dialling out or the relay");
  command.option("--advertise", options->advertise, "HOST:PORT under which they reach it; default: as bound");
  command.option("--upload", options->upload,
                 "the most that all this peer sends may take of your line, as 10Mbit; default: no limit");
  command.option("--download", options->download,
                 "the same of all that it receives, as 50Mbit; with --emulate the lower rate holds");
  command.option("--disk", options->disk,
                 "the most that this peer may keep on the disk, as 1GiB: with a GPU kernels that it "
                 "compiled, else next to nothing; default: 256MiB, and what NVIDIA's driver keeps");
  command.option("--weights", options->weights,
                 "a folder of published weights (safetensors, GGUF, ONNX models with external data; the "
                 "cache of Hugging "
                 "Face will do): what a job needs of them is read there and not fetched; default: none");
  add_guest_options(command, *options);
  command.option("--schedule,--hours", options->schedule,
                 "hours of this machine's time zone in which it works, as \"22:00-07:00\" or \"mon-fri "
                 "22:00-07:00, sat-sun 00:00-24:00\"; outside of them it hands its work over and waits");
  command.option("--jobs", options->jobs,
                 "jobs that this peer works on at once: with 2 one that serves may stand beside one that "
                 "trains, where the memory offered has room for both, and they take turns; default: 2");
  command.option(
      "--metrics", options->metrics,
      "HOST:PORT where Prometheus reads /metrics of this peer, as 127.0.0.1:7791; default: nowhere");
  command.flag("--dial-private", options->dials_private,
               "dial other peers at addresses of private networks also where the broker is not in one: for "
               "machines of one network that join a broker elsewhere");
  command.option("--emulate", options->emulate, "a cluster file: behave as if connected by its links");
  command.option("--region", options->region, "where this machine is");
  command.option("--owner", options->owner,
                 "whose it is: a job may want only a share of its parameters on one owner's machines; "
                 "default: nobody's who has another");
  command.option("--as", options->emulate_as,
                 "with --emulate: a device of the file and region, whose uplink and downlink hold for all "
                 "that this peer sends and receives; SIGUSR1 reads them again");
  command.runs(chosen, [options] { return run_joins(*options); });
}

}  // namespace weft::cli
