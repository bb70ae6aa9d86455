#include "cli/guest.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cli/quantities.h"

namespace weft::cli {
namespace {

constexpr double kShare = 0.8, kGuestShare = 0.5;
constexpr int kCpusMax = 1024;
constexpr size_t kProgramsMax = 64, kNameMax = 255;
constexpr double kCelsiusMin = 30, kCelsiusMax = 120;

Result<bool> parse_yes(std::string_view option, const std::string& text) {
  if (text == "yes" || text == "true") return true;
  if (text == "no" || text == "false") return false;
  return fail(ErrorCode::InvalidArgument, fmt::format("{}: '{}' is neither yes nor no", option, text));
}

Result<Duration> parse_time(std::string_view option, const std::string& text) {
  auto length = parse_duration(text);
  if (!length) return fail(length.error().within(option));
  return *length;
}

Result<double> parse_celsius(const std::string& text) {
  double celsius = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, celsius);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(celsius >= kCelsiusMin && celsius <= kCelsiusMax))
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--temperature: '{}' is no temperature from {} to {} °C", text, kCelsiusMin,
                            kCelsiusMax));
  return celsius;
}

// `gamemode` is no program, but what games ask for; `none` is for who wants nothing of what a guest has.
Status take_programs(const std::vector<std::string>& names, peer::MannersRules& rules) {
  if (names.size() > kProgramsMax)
    return fail(ErrorCode::InvalidArgument, fmt::format("--pause-for: more than {} names", kProgramsMax));
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kNameMax || name.find('/') != std::string::npos)
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("--pause-for: '{}' is no program's name: say as steam, or gamemode", name));
    if (name == "none") continue;
    if (name == "gamemode")
      rules.pause_for_games = true;
    else
      rules.pause_for.push_back(name);
  }
  return {};
}

int threads_of_machine() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

}  // namespace

void add_guest_options(CommandLine command, JoinOptions& options) {
  command.flag(
      "--guest", options.guest.is_guest,
      "leave the machine to who sits before it: half of the free memory, all processors but one, what "
      "others leave of those and of the disk (nice 19, idle I/O), never on battery, and not while a "
      "game runs that asks for GameMode; `weft service install` sets it");
  command.option("--cpus", options.guest.cpus,
                 "compute threads of the device cpu; default: as many as it may use, a guest one less");
  command.option("--gpu-memory", options.guest.gpu_memory,
                 "--memory for devices that are GPUs, beside one that is a processor");
  command.option("--battery", options.guest.battery,
                 "yes, or no: leave off on battery; default: yes, a guest no");
  command.option("--idle", options.guest.idle,
                 "work once the desktop has called the machine idle (logind) for so long, as 5m; default: "
                 "always");
  command
      .option("--pause-for", options.guest.pause_for,
              "leave off while a program of this name runs, as steam, or while a game asks for gamemode (may "
              "be given again); default: none, a guest gamemode")
      .one_value_each();
  command.option("--temperature", options.guest.temperature,
                 "leave off when processor or GPU is hotter, as 85 (°C), until it is 5 °C cooler; default: "
                 "no limit");
  command.option("--settle", options.guest.settle,
                 "go on when no such reason has been there for so long; default: 10s");
}

Result<peer::MannersRules> manners_of(const JoinOptions& options) {
  peer::MannersRules rules;
  rules.on_battery = !options.guest.is_guest;
  rules.pause_for_games = options.guest.is_guest && options.guest.pause_for.empty();
  if (!options.guest.battery.empty()) {
    WEFT_TRY(rules.on_battery, parse_yes("--battery", options.guest.battery));
  }
  if (!options.guest.idle.empty()) {
    WEFT_TRY(rules.idle, parse_time("--idle", options.guest.idle));
  }
  if (!options.guest.settle.empty()) {
    WEFT_TRY(rules.settle, parse_time("--settle", options.guest.settle));
  }
  if (!options.guest.temperature.empty()) {
    WEFT_TRY(rules.celsius_max, parse_celsius(options.guest.temperature));
  }
  WEFT_TRY_STATUS(take_programs(options.guest.pause_for, rules));
  return rules;
}

bool has_rules(const peer::MannersRules& rules) {
  return !rules.on_battery || rules.idle || rules.pause_for_games || !rules.pause_for.empty() ||
         rules.celsius_max;
}

std::filesystem::path machine_root() {
  const char* root = std::getenv("WEFT_MACHINE_ROOT");
  return root != nullptr && *root != '\0' ? root : "/";
}

std::unique_ptr<peer::MachineWatch> machine_watch(const peer::MannersRules& rules, bool uses_gpu) {
  return std::make_unique<peer::MachineWatch>(
      peer::MachineWatch::Options{.rules = rules, .uses_gpu = uses_gpu, .root = machine_root()});
}

Result<std::string> device_with_cpus(const std::string& device, const JoinOptions& options) {
  const bool is_processor = device == "cpu" || device.starts_with("cpu:");
  if (!is_processor) return device;
  if (options.guest.cpus.empty()) {
    if (device != "cpu" || !options.guest.is_guest) return device;
    return fmt::format("cpu:{}", std::max(1, threads_of_machine() - 1));
  }
  int cpus = 0;
  const char* end = options.guest.cpus.data() + options.guest.cpus.size();
  const auto parsed = std::from_chars(options.guest.cpus.data(), end, cpus);
  if (parsed.ec != std::errc() || parsed.ptr != end || cpus < 1 || cpus > kCpusMax)
    return fail(ErrorCode::InvalidArgument, fmt::format("--cpus: '{}' is no number of threads from 1 to {}",
                                                        options.guest.cpus, kCpusMax));
  if (device != "cpu")
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--device {} says how many threads, and --cpus does, too", device));
  return fmt::format("cpu:{}", cpus);
}

double share_of(const JoinOptions& options) { return options.guest.is_guest ? kGuestShare : kShare; }

void give_way_to_others() {
  constexpr int kNicest = 19;
  constexpr int kOfProcess = 1, kIdleClass = 3, kClassShift = 13;  // linux/ioprio.h
  (void)::setpriority(PRIO_PROCESS, 0, kNicest);
  (void)::syscall(SYS_ioprio_set, kOfProcess, 0, kIdleClass << kClassShift);
  if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "we")) {
    std::fputs("500", file);
    std::fclose(file);
  }
}

}  // namespace weft::cli
