// weft service: a peer that systemd runs for the user, whenever the user is logged in or lingers.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "cli/service_files.h"
#include "storage/files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct ServiceOptions {
  std::string broker, token;
  std::vector<std::string> devices;
  bool replace = false, no_start = false;
  std::string format = "text";
  bool json() const { return format == "json"; }
};

struct Places {
  fs::path settings, token, unit;
};
Result<Places> places() {
  WEFT_TRY(const fs::path folder, config_folder());
  return Places{.settings = folder / "peer.yaml",
                .token = folder / "peer.token",
                .unit = folder.parent_path() / "systemd/user" / kPeerUnit};
}

// What the user's systemd says. Only constants come here: a shell reads them.
struct Said {
  int status = -1;  // its exit status; -1: it could not be run
  std::string text;
};
Said systemctl(const std::string& arguments) {
  Said said;
  // NOLINTNEXTLINE(bugprone-command-processor): constants alone, which a shell is to read.
  std::FILE* out = ::popen(("systemctl --user " + arguments + " 2>&1").c_str(), "re");
  if (out == nullptr) return said;
  for (int c = 0; (c = std::fgetc(out)) != EOF;)
    if (said.text.size() < 4096) said.text += static_cast<char>(c);
  const int status = ::pclose(out);
  if (WIFEXITED(status)) said.status = WEXITSTATUS(status);
  while (said.text.ends_with('\n')) said.text.pop_back();
  return said;
}

// What was done, or how the service stands: to people `text`.
void tell(const ServiceOptions& options, const char* action, const Places& at, const std::string& state,
          const std::string& at_login, const std::string& text) {
  const auto known = [](const std::string& said) { return said.empty() ? "null" : json_string(said); };
  if (options.json())
    print_event(fmt::format(
        R"({{"event":"service","action":"{}","unit":{},"settings":{},"state":{},"at_login":{}}})", action,
        json_string(at.unit.string()), json_string(at.settings.string()), known(state), known(at_login)));
  else
    fmt::print("{}", text);
}

Status write(const fs::path& path, const std::string& text, uint32_t mode) {
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(path.parent_path()));
  WEFT_TRY_STATUS(files.write_atomic(path, std::as_bytes(std::span(text)), {.mode = mode}));
  fmt::print(stderr, "wrote {}\n", path.string());
  return {};
}

Status write_settings(const ServiceOptions& options, const Places& places) {
  if (fs::exists(places.settings) && !options.replace)
    return fail(ErrorCode::InvalidArgument,
                places.settings.string() +
                    " is there already: edit it and leave HOST:PORT out, or say --replace to write it anew");
  WEFT_TRY_STATUS(net::parse_endpoint(options.broker));
  if (options.token.empty())
    return fail(ErrorCode::InvalidArgument, "no token for the broker " + options.broker +
                                                ": say --token T, @FILE or - for standard input");
  WEFT_TRY(const security::Token token, read_token(options.token, security::Role::Peer));
  PeerSettings settings{options.broker, places.token.filename().string(), options.devices};
  if (settings.devices.empty()) settings.devices = {"cpu"};
  for (const std::string& device : settings.devices) WEFT_TRY_STATUS(parse_device(device));
  WEFT_TRY_STATUS(write(places.token, security::to_text(token) + "\n", 0600));
  return write(places.settings, settings_text(settings), 0644);
}

Status write_unit(const Places& places) {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed || !fs::exists(program, failed))
    return fail(ErrorCode::NotFound, "this program's file is gone: start the new one");
  WEFT_TRY(const std::string unit, unit_text(program, places.settings));
  return write(places.unit, unit, 0644);
}

Result<int> install(const ServiceOptions& options) {
  WEFT_TRY(const Places at, places());
  if (!options.broker.empty()) {
    WEFT_TRY_STATUS(write_settings(options, at));
  } else if (!fs::exists(at.settings)) {
    return fail(ErrorCode::NotFound,
                "there is no " + at.settings.string() + " yet: say weft service install HOST:PORT --token T");
  }
  WEFT_TRY_STATUS(write_unit(at));
  if (options.no_start) {
    tell(options, "installed", at, {}, {},
         "to start it: systemctl --user daemon-reload && systemctl --user enable --now weft-peer\n");
    return kExitOk;
  }
  Said said = systemctl("daemon-reload");
  if (said.status == 0) said = systemctl("enable --now weft-peer.service");
  if (said.status != 0)
    return fail(
        ErrorCode::Unavailable,
        "the user's systemd did not start the peer: " + said.text +
            "\nto try again: systemctl --user daemon-reload && systemctl --user enable --now weft-peer");
  tell(options, "installed", at, {}, {},
       "the peer runs whenever you are logged in; for it to run always: loginctl enable-linger\n"
       "what it says: journalctl --user -u weft-peer\n");
  return kExitOk;
}

Result<int> remove(const ServiceOptions& options) {
  WEFT_TRY(const Places at, places());
  if (!fs::exists(at.unit))
    return fail(ErrorCode::NotFound, "no peer is installed as a service: there is no " + at.unit.string());
  const Said stopped = systemctl("disable --now weft-peer.service");
  storage::Files files;
  WEFT_TRY_STATUS(files.remove(at.unit));
  systemctl("daemon-reload");
  if (stopped.status != 0)
    std::fprintf(stderr, "weft: warning: systemd did not stop it: %s\n", stopped.text.c_str());
  WEFT_TRY(const fs::path data, data_folder());
  tell(options, "removed", at, {}, {},
       fmt::format("removed {}\nkept {}, {} and the identity in {}\n", at.unit.string(), at.settings.string(),
                   at.token.string(), (data / "peer").string()));
  return kExitOk;
}

// 0: it runs; 1: it does not; 3: it is not installed.
Result<int> status(const ServiceOptions& options) {
  WEFT_TRY(const Places at, places());
  if (!fs::exists(at.unit))
    return fail(ErrorCode::NotFound, "no peer is installed as a service: there is no " + at.unit.string());
  const Said active = systemctl("is-active weft-peer.service");
  const Said enabled = systemctl("is-enabled weft-peer.service");
  tell(options, "status", at, active.text, enabled.text,
       fmt::format("unit: {}\nsettings: {}\nstate: {}\nat login: {}\n", at.unit.string(),
                   at.settings.string(), active.text, enabled.text));
  return active.status == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_service(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("service", "let systemd run a peer on this machine for you, without being root");
  command.needs_subcommand();
  auto options = std::make_shared<ServiceOptions>();
  const auto add = [&](const char* name, const char* what, Result<int> (*run)(const ServiceOptions&)) {
    CommandLine sub = command.subcommand(name, what);
    sub.format(options->format);
    sub.runs(chosen, [options, run] { return run(*options); });
    return sub;
  };
  CommandLine made = add("install", "write the peer's settings and its unit, and start it", install);
  made.option("broker", options->broker,
              "HOST:PORT, as the broker printed it; default: settings that are there already");
  made.option("--token", options->token, "a peer token, @FILE, or - for standard input");
  made.option("--device", options->devices,
              "as `weft join --device` takes it (may be given again); default: cpu, all processors but one")
      .one_value_each();
  made.flag("--replace", options->replace, "write new settings over those that are there");
  made.flag("--no-start", options->no_start, "only write the files");
  add("remove", "stop the peer and remove its unit; settings and identity stay", remove);
  add("status", "whether the peer is installed, and whether it runs", status);
}

}  // namespace weft::cli
