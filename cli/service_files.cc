#include "cli/service_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report.h"

namespace weft::cli {
namespace {

constexpr const char* kSettings =
    R"(# What this machine offers to a broker: `weft join --config` reads this file, and options of that command win.
# After a change: systemctl --user restart weft-peer
format: 1

broker: {0}
# A token, or @ and a file beside this one.
token: {1}

# What computes: cpu is the processor, cuda the first GPU, cuda:1 the second. A list of devices, as [cpu, cuda],
# is a peer for each.
device: {2}

# It is a guest of who sits before this machine: half of the free memory, all processors but one, what others
# leave of those and of the disk, never on battery, and not while a game runs that asks for GameMode. What
# stands below changes one of these.
guest: true

# How people see this peer. Default: the machine's name.
# name: my-desktop

# Threads of the processor. Default: one less than there are.
# cpus: 2
# How much memory the work may take. Default: half of what is free.
# memory: 4GiB
# Of a GPU's memory, and how much of the machine's own copies of a job's state may take beside it.
# gpu_memory: 6GiB
# host_memory: 2GiB

# How much of your line the work may take. Default: no limit.
# upload: 10Mbit
# download: 50Mbit

# When it works. Outside of these hours the peer hands its work over and waits.
# hours: "mon-fri 20:00-08:00, sat-sun 00:00-24:00"
# Also on battery.
# battery: true
# Only once the desktop has called the machine idle for so long.
# idle: 5m
# Not while one of these programs runs, or a game asks for GameMode. Default: [gamemode]
# pause_for: [steam, gamemode]
# Not while the processor or the GPU is hotter than so many degrees Celsius, until it is 5 cooler.
# temperature: 85
# It comes back when there has been no such reason for so long. Default: 10s
# settle: 30s
# What it does, and why it does not work: weft peer status

# Jobs that it works on at once: with 2, the default, one that serves may stand beside one that trains.
# jobs: 1

# How much may be kept on the disk: kernels that were compiled for a GPU.
# disk: 1GiB

# Published weights on this machine, as Hugging Face's cache: what a job needs of them is not fetched.
# weights: ~/.cache/huggingface

# Other peers may dial this address. Default: none; all goes by dialling out, or through the broker.
# listen: 0.0.0.0:7701
# advertise: my-desktop.example.org:7701
)";

constexpr const char* kUnit =
    R"([Unit]
Description=weft peer: offers this machine to a broker
Documentation=man:weft(1)

[Service]
ExecStart={} join --config {}
Restart=on-failure
RestartSec=5
# The token was revoked, or the settings are wrong: another try would not help.
RestartPreventExitStatus=2 3
# SIGTERM hands the work over at a checkpoint, which takes a while.
KillSignal=SIGTERM
TimeoutStopSec=120
# Whoever else is at the machine comes first.
Nice=19
CPUWeight=idle
IOSchedulingClass=idle
OOMScoreAdjust=500
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
)";

// One word of a systemd command: quoted, and nothing in it is expanded.
Result<std::string> unit_word(const std::filesystem::path& path) {
  std::string out = "\"";
  for (const char c : path.string()) {
    if (static_cast<unsigned char>(c) < ' ')
      return fail(ErrorCode::InvalidArgument, "systemd cannot be told a path with control characters");
    if (c == '"' || c == '\\') out += '\\';
    if (c == '%' || c == '$') out += c;
    out += c;
  }
  return out + "\"";
}

std::string device_list(const std::vector<std::string>& devices) {
  if (devices.size() == 1) return json_string(devices.front());
  std::string text;
  for (const std::string& device : devices) text += (text.empty() ? "[" : ", ") + json_string(device);
  return text + "]";
}

}  // namespace

std::string settings_text(const PeerSettings& settings) {
  return fmt::format(kSettings, json_string(settings.broker), json_string("@" + settings.token_file),
                     device_list(settings.devices));
}

Result<std::string> unit_text(const std::filesystem::path& program, const std::filesystem::path& settings) {
  WEFT_TRY(const std::string program_word, unit_word(program));
  WEFT_TRY(const std::string settings_word, unit_word(settings));
  return fmt::format(kUnit, program_word, settings_word);
}

}  // namespace weft::cli
