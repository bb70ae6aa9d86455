#include "peer/desktop/system_files.h"

#include <time.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <string_view>

namespace weft::peer {
namespace {
namespace fs = std::filesystem;

constexpr size_t kTextMax = 4096;      // bytes of a file
constexpr size_t kEntriesMax = 65536;  // of a folder
constexpr size_t kCommMax = 15;        // characters that the kernel keeps of a program's name

// The first line, or what comes before a NUL; empty: not there.
std::string line_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  std::string text(kTextMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  text.resize(std::min({text.find('\n'), text.find('\0'), text.size()}));
  return text;
}

std::optional<int64_t> number_of(const fs::path& path) {
  const std::string text = line_of(path);
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (entries.size() == kEntriesMax) break;
    entries.push_back(at->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

using Heat = MannersReadings::Heat;
void take_hotter(std::optional<Heat>& hottest, const fs::path& file, const std::string& where) {
  const auto thousandths = number_of(file);
  if (!thousandths) return;
  const double celsius = static_cast<double>(*thousandths) / 1000;
  if (celsius < -60 || celsius > 200) return;  // a sensor that is not connected
  if (!hottest || celsius > hottest->celsius) hottest = Heat{celsius, where};
}

void look_at_monitors(std::optional<Heat>& hottest, const fs::path& root) {
  for (const fs::path& monitor : entries_of(root / "sys/class/hwmon")) {
    const std::string name = line_of(monitor / "name");
    if (!starts_with_any(name, {"coretemp", "k10temp", "k8temp", "zenpower", "cpu"})) continue;
    for (const fs::path& file : entries_of(monitor)) {
      const std::string input = file.filename().string();
      if (input.starts_with("temp") && input.ends_with("_input")) take_hotter(hottest, file, name);
    }
  }
}

void look_at_zones(std::optional<Heat>& hottest, const fs::path& root, bool all) {
  for (const fs::path& zone : entries_of(root / "sys/class/thermal")) {
    if (!zone.filename().string().starts_with("thermal_zone")) continue;
    const std::string type = line_of(zone / "type");
    if (all || starts_with_any(type, {"x86_pkg_temp", "cpu", "soc", "TCPU"}))
      take_hotter(hottest, zone / "temp", type.empty() ? zone.filename().string() : type);
  }
}

// The name of what a process runs: as the kernel has it, and in full where that was too long for it.
std::string program_of(const fs::path& process) {
  std::string name = line_of(process / "comm");
  if (name.size() < kCommMax) return name;
  const std::string command = line_of(process / "cmdline");
  const std::string full = fs::path(command).filename().string();
  return full.starts_with(name) ? full : name;
}

}  // namespace

bool is_on_battery(const fs::path& root) {
  bool has_battery = false, has_mains = false, discharges = false;
  for (const fs::path& supply : entries_of(root / "sys/class/power_supply")) {
    const std::string type = line_of(supply / "type");
    if (type == "Battery") {
      if (line_of(supply / "scope") == "Device" || number_of(supply / "present") == 0) continue;
      has_battery = true;
      discharges = discharges || line_of(supply / "status") == "Discharging";
    } else if (type == "Mains" || type == "USB") {
      if (number_of(supply / "online").value_or(0) > 0) return false;
      has_mains = has_mains || type == "Mains";
    }
  }
  return has_battery && (discharges || has_mains);
}

std::optional<Heat> hottest_of_processor(const fs::path& root) {
  std::optional<Heat> hottest;
  look_at_monitors(hottest, root);
  look_at_zones(hottest, root, /*all=*/false);
  if (!hottest) look_at_zones(hottest, root, /*all=*/true);
  return hottest;
}

std::string program_that_runs(const std::vector<std::string>& names, const fs::path& root) {
  if (names.empty()) return {};
  std::vector<std::string> running;
  for (const fs::path& process : entries_of(root / "proc"))
    if (std::isdigit(static_cast<unsigned char>(process.filename().string().front())) != 0)
      running.push_back(lower(program_of(process)));
  for (const std::string& name : names)
    if (std::find(running.begin(), running.end(), lower(name)) != running.end()) return name;
  return {};
}

Duration time_asleep(const fs::path& root) {
  if (root != "/") return std::chrono::seconds(number_of(root / "asleep").value_or(0));
  const auto read = [](clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return Duration(std::chrono::seconds(time.tv_sec)) + Duration(time.tv_nsec);
  };
  const Duration awake = read(CLOCK_MONOTONIC);  // first: what passes in between counts as sleep, and is none
  return std::max(Duration{}, read(CLOCK_BOOTTIME) - awake);
}

}  // namespace weft::peer
