// weft login and logout: where a broker is, the token for it, and the key that its jobs belong to.
#include <fmt/format.h>

#include <filesystem>

#include "cli/broker_call.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "security/identity.h"
#include "storage/files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using security::Identity;

struct LoginOptions {
  std::string broker, token, identity, save_identity, format = "text";
  bool json() const { return format == "json"; }
};

// The key that this user has from now on; one that was there before stays beside it under another name.
Status keep_identity(const Identity& identity, const fs::path& folder) {
  const fs::path path = folder / "identity.pem";
  std::error_code error;
  if (fs::exists(path, error)) {
    WEFT_TRY(const auto before, Identity::load(path));
    if (before->id() == identity.id()) return {};
    const fs::path beside = folder / ("identity-" + to_string(before->id()) + ".pem");
    fs::rename(path, beside, error);
    if (error)
      return fail(ErrorCode::PermissionDenied, "cannot move " + path.string() + ": " + error.message());
    fmt::print(stderr, "the key that was there before is kept as {}\n", beside.string());
  }
  return identity.save(path);
}

Status copy_identity(const fs::path& folder, const std::string& file) {
  WEFT_TRY(const auto identity, Identity::load_or_create(folder));
  WEFT_TRY_STATUS(identity->save(file));
  fmt::print(
      stderr,
      "{} is the key that your jobs belong to: keep it secret. Elsewhere: weft login HOST:PORT --token "
      "T --identity FILE\n",
      file);
  return {};
}

// Keeps what worked: the broker is asked before anything is written.
Result<int> log_in(const LoginOptions& options, const fs::path& folder) {
  if (options.token.empty())
    return fail(ErrorCode::InvalidArgument,
                "say --token T; `--token -` reads it from standard input, `--token @FILE` from a file");
  BrokerAddress address;
  WEFT_TRY(address.endpoint, net::parse_endpoint(options.broker));
  WEFT_TRY(address.token, read_token(options.token, security::Role::Submitter));
  const Login login{net::to_string(address.endpoint), security::to_text(address.token)};
  std::unique_ptr<Identity> given;
  if (!options.identity.empty()) {
    WEFT_TRY(given, Identity::load(options.identity));
  }
  WEFT_TRY(auto access, BrokerAccess::open(std::move(address), nullptr, std::move(given)));
  WEFT_TRY(const auto session, BrokerCall::open(std::move(access)));
  const std::string software = session->client->broker().software;
  if (!options.identity.empty()) {
    WEFT_TRY(const auto identity, Identity::load(options.identity));
    storage::Files files;
    WEFT_TRY_STATUS(files.make_directories(folder));
    WEFT_TRY_STATUS(keep_identity(*identity, folder));
  }
  WEFT_TRY(const fs::path path, save_login(folder, login));
  if (options.json())
    print_event(fmt::format(R"({{"event":"login","broker":{},"software":{}}})", json_string(login.broker),
                            json_string(software)));
  else
    fmt::print("{} (weft {}) knows this machine now; kept in {}\n", login.broker, software, path.string());
  return kExitOk;
}

Result<int> run_login(const LoginOptions& options) {
  WEFT_TRY(const fs::path folder, config_folder());
  if (options.broker.empty() && options.save_identity.empty())
    return fail(ErrorCode::InvalidArgument, "say which broker: weft login HOST:PORT --token T");
  if (!options.broker.empty()) {
    WEFT_TRY(const int code, log_in(options, folder));
    if (code != kExitOk || options.save_identity.empty()) return code;
  } else if (!options.identity.empty()) {
    return fail(ErrorCode::InvalidArgument, "--identity goes with a broker: weft login HOST:PORT --token T");
  }
  WEFT_TRY_STATUS(copy_identity(folder, options.save_identity));
  if (options.json() && options.broker.empty())
    print_event(fmt::format(R"({{"event":"identity","path":{}}})", json_string(options.save_identity)));
  return kExitOk;
}

// The key stays: the jobs at that broker are its.
Result<int> run_logout(const LoginOptions& options) {
  WEFT_TRY(const fs::path folder, config_folder());
  WEFT_TRY(const auto login, load_login(folder));
  if (!login) return fail(ErrorCode::NotFound, "no login is kept in " + folder.string());
  storage::Files files;
  WEFT_TRY_STATUS(files.remove(folder / "login.json"));
  if (options.json())
    print_event(fmt::format(R"({{"event":"logout","broker":{}}})", json_string(login->broker)));
  else
    fmt::print("forgot {} and its token; the key that your jobs belong to stays in {}\n", login->broker,
               (folder / "identity.pem").string());
  return kExitOk;
}

}  // namespace

void add_login(CommandLine program, Command& chosen) {
  auto options = std::make_shared<LoginOptions>();
  CommandLine login = program.subcommand("login", "keep where a broker is and the token for it");
  login.option("broker", options->broker, "HOST:PORT");
  login.option("--token", options->token, "a submitter token, @FILE, or - for standard input");
  login.option("--identity", options->identity,
               "the key that jobs belong to, as --save-identity wrote it on another machine");
  login.option("--save-identity", options->save_identity,
               "write this user's key to a new file, so that another machine sees the same jobs");
  login.format(options->format);
  login.runs(chosen, [options] { return run_login(*options); });
  CommandLine logout =
      program.subcommand("logout", "forget the broker that `weft login` kept, and its token");
  logout.format(options->format);
  logout.runs(chosen, [options] { return run_logout(*options); });
}

}  // namespace weft::cli
