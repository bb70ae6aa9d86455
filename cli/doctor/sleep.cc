// Whether a machine goes to sleep while it works for others: what systemd was told, lids and batteries.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "cli/doctor/machine.h"
#include "cli/doctor/small_files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr size_t kFilesMax = 256;  // of a folder

using Settings = std::map<std::string, std::string>;

// "Name=value" of each line, the last of a name.
void take_settings(const fs::path& file, Settings& settings) {
  std::istringstream lines(read_small(file).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('=');
    if (line.empty() || line[0] == '#' || line[0] == ';' || at == std::string::npos) continue;
    const auto name = words_of(line.substr(0, at)), value = words_of(line.substr(at + 1));
    if (name.size() == 1) settings[name[0]] = value.empty() ? "" : value[0];
  }
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (paths.size() < kFilesMax) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Of a file of systemd's and its drop-ins, the weakest first.
Settings settings_of(const fs::path& root, const std::string& name) {
  Settings settings;
  for (const char* folder : {"usr/lib/systemd", "etc/systemd"}) take_settings(root / folder / name, settings);
  for (const char* folder : {"usr/lib/systemd", "run/systemd", "etc/systemd"})
    for (const fs::path& file : sorted_entries(root / folder / (name + ".d")))
      if (file.extension() == ".conf") take_settings(file, settings);
  return settings;
}

std::string setting(const Settings& settings, const std::string& name, const std::string& otherwise) {
  const auto found = settings.find(name);
  return found == settings.end() || found->second.empty() ? otherwise : found->second;
}

bool is_masked(const fs::path& root, const char* unit) {
  std::error_code error;
  return fs::read_symlink(root / "etc/systemd/system" / unit, error) == "/dev/null";
}

// Empty: it can.
std::string why_it_cannot_sleep(const fs::path& root) {
  const auto states = words_of(read_small(root / "sys/power/state").value_or(""));
  if (states.empty()) return "this machine cannot sleep";
  if (is_masked(root, "sleep.target") || is_masked(root, "suspend.target"))
    return "sleeping is switched off (a masked target of systemd)";
  if (setting(settings_of(root, "sleep.conf"), "AllowSuspend", "yes") == "no")
    return "sleeping is switched off (sleep.conf)";
  return {};
}

bool is_on_battery(const fs::path& root) {
  bool discharges = false, is_plugged = false;
  for (const fs::path& supply : sorted_entries(root / "sys/class/power_supply")) {
    const std::string type = read_small(supply / "type").value_or("");
    if (read_small(supply / "scope").value_or("System") == "Device") continue;  // a mouse's
    if (type == "Battery") discharges |= read_small(supply / "status").value_or("") == "Discharging";
    if (type == "Mains" || type == "USB") is_plugged |= read_small(supply / "online").value_or("") == "1";
  }
  return discharges && !is_plugged;
}

void add(std::string& to, const std::string& text) { to += (to.empty() ? "" : "; ") + text; }

}  // namespace

Check check_sleep(const fs::path& root) {
  Check check{"sleep", CheckState::Ok, {}};
  const auto warn = [&](const std::string& seen, const std::string& advice) {
    check.state = CheckState::Warning;
    add(check.seen, seen);
    add(check.advice, advice);
  };
  if (is_on_battery(root)) warn("it runs on its battery", "plug it in");
  if (const std::string why = why_it_cannot_sleep(root); !why.empty()) {
    add(check.seen, why);
    return check;
  }
  const Settings logind = settings_of(root, "logind.conf");
  if (const std::string action = setting(logind, "IdleAction", "ignore");
      action != "ignore" && action != "lock")
    warn(fmt::format("when nobody uses it for {} systemd does: {}", setting(logind, "IdleActionSec", "30min"),
                     action),
         "IdleAction=ignore in /etc/systemd/logind.conf, or start weft by systemd-inhibit");
  const bool has_lid = !sorted_entries(root / "proc/acpi/button/lid").empty();
  if (const std::string action = setting(logind, "HandleLidSwitch", "suspend");
      has_lid && action != "ignore" && action != "lock")
    warn("when its lid is closed systemd does: " + action,
         "leave it open, or HandleLidSwitch=ignore in /etc/systemd/logind.conf");
  if (check.seen.empty()) check.seen = "nothing of systemd's settings sends it to sleep";
  std::error_code ignored;
  if (fs::exists(root / "usr/libexec/gsd-power", ignored))
    add(check.seen, "GNOME has a setting of its own (Settings, Power)");
  if (fs::exists(root / "usr/bin/kde-inhibit", ignored))
    add(check.seen, "KDE has a setting of its own (System Settings, Power)");
  return check;
}

}  // namespace weft::cli
