// weft token: makes, shows, lists and revokes the tokens of a broker on this machine, whether it runs or not.
#include <fmt/format.h>

#include <charconv>

#include "base/printable.h"
#include "broker/service/broker_service.h"
#include "broker/service/wall_clock.h"
#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/quantities.h"
#include "cli/report.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct TokenOptions {
  std::string data_dir, role, id, label, advertise;
  std::string ttl = "30d";
  std::string format = "text";
  bool json() const { return format == "json"; }
  uint32_t uses = 0;  // 0: without limit
};

Result<fs::path> broker_folder(const TokenOptions& options) {
  if (!options.data_dir.empty()) return fs::path(options.data_dir);
  WEFT_TRY(const fs::path folder, data_folder());
  return folder / "broker";
}

Result<int> create(const TokenOptions& options) {
  broker::NewToken token;
  WEFT_TRY(token.role, security::parse_role(options.role));
  if (options.ttl != "never") {
    WEFT_TRY(token.ttl, parse_duration(options.ttl));
  }
  if (token.role == security::Role::Caller && options.uses != 0)
    return fail(ErrorCode::InvalidArgument,
                "--uses counts the machines that a token lets in, and a caller's lets none in: leave it out");
  if (options.uses != 0) token.uses = options.uses;
  token.label = options.label;
  WEFT_TRY(const fs::path folder, broker_folder(options));
  WEFT_TRY(const broker::MadeToken made, broker::create_token(folder, token));
  if (options.json()) {
    print_event(
        fmt::format(R"({{"event":"token","id":"{:016x}","token":{}}})", made.id, json_string(made.text)));
    return kExitOk;
  }
  fmt::print("{}\n", made.text);  // alone: for $(...) and > FILE
  std::fflush(stdout);
  fmt::print(stderr, "token {:016x} lets {} in {}{}; `weft token revoke {:016x}` ends that\n", made.id,
             options.uses == 0
                 ? fmt::format("{}s", options.role)
                 : fmt::format("{} {}{}", options.uses, options.role, options.uses == 1 ? "" : "s"),
             options.ttl == "never" ? "for ever" : "for " + options.ttl,
             options.label.empty() ? "" : " (" + options.label + ")", made.id);
  return kExitOk;
}

// What a broker prints when it starts, again.
Result<int> join_line(const TokenOptions& options) {
  WEFT_TRY(const fs::path folder, broker_folder(options));
  std::string address = options.advertise;
  if (address.empty()) {
    auto kept = broker::kept_address(folder);
    if (!kept && kept.error().code == ErrorCode::NotFound)
      return fail(ErrorCode::NotFound, "no broker was started on " + folder.string() +
                                           " yet: is --data-dir right? Else say where peers will reach it, "
                                           "--advertise HOST:PORT");
    WEFT_TRY(address, std::move(kept));
  } else {
    WEFT_TRY_STATUS(net::parse_endpoint(address));
  }
  WEFT_TRY(const broker::MadeToken token, broker::lasting_peer_token(folder));
  if (options.json())
    print_event(fmt::format(R"({{"event":"join_line","broker":{},"id":"{:016x}","token":{}}})",
                            json_string(address), token.id, json_string(token.text)));
  else
    fmt::print("weft join {} --token {}\n", address, token.text);
  return kExitOk;
}

std::string state_of(const broker::TokenLine& token) {
  const int64_t now = broker::unix_ms();
  if (token.revoked) return "revoked";
  if (token.expires_unix_ms && *token.expires_unix_ms <= now) return "expired";
  if (token.uses_max && token.uses >= *token.uses_max) return "used";
  return "valid";
}

Result<int> list(const TokenOptions& options) {
  WEFT_TRY(const fs::path folder, broker_folder(options));
  WEFT_TRY(const auto tokens, broker::list_tokens(folder));
  const bool json = options.format == "json";
  if (!json)
    fmt::print("{:16}  {:9}  {:7}  {:>9}  {:23}  {:23}  {}\n", "ID", "ROLE", "STATE", "USES", "CREATED",
               "EXPIRES", "LABEL");
  for (const broker::TokenLine& token : tokens) {
    const std::string role(security::to_string(token.role));
    if (json)
      print_event(fmt::format(
          R"({{"event":"token","id":"{:016x}","role":"{}","state":"{}","uses":{},"uses_max":{},"created_unix_ms":{},"expires_unix_ms":{},"label":{}}})",
          token.id, role, state_of(token), token.uses,
          token.uses_max ? fmt::format("{}", *token.uses_max) : "null", token.created_unix_ms,
          token.expires_unix_ms ? fmt::format("{}", *token.expires_unix_ms) : "null",
          json_string(token.label)));
    else
      fmt::print("{:016x}  {:9}  {:7}  {:>9}  {:23}  {:23}  {}\n", token.id, role, state_of(token),
                 token.uses_max ? fmt::format("{} of {}", token.uses, *token.uses_max)
                                : fmt::format("{}", token.uses),
                 format_time(token.created_unix_ms),
                 token.expires_unix_ms ? format_time(*token.expires_unix_ms) : "never",
                 printable(token.label));
  }
  return kExitOk;
}

Result<int> revoke(const TokenOptions& options) {
  uint64_t id = 0;
  const char* end = options.id.data() + options.id.size();
  const auto parsed = std::from_chars(options.id.data(), end, id, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end || options.id.size() > 16)
    return fail(
        ErrorCode::InvalidArgument,
        "'" + options.id + "' is no token's id: 16 hexadecimal digits, as `weft token list` shows them");
  WEFT_TRY(const fs::path folder, broker_folder(options));
  WEFT_TRY_STATUS(broker::revoke_token(folder, id));
  if (options.format == "json")
    print_event(fmt::format(R"({{"event":"revoked","id":"{:016x}"}})", id));
  else
    fmt::print("revoked {:016x}: nobody gets in with it any more, and who was admitted by it is sent away\n",
               id);
  return kExitOk;
}

}  // namespace

void add_token(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("token", "make, show, list and revoke the tokens of a broker on this machine");
  command.needs_subcommand();
  auto options = std::make_shared<TokenOptions>();
  const auto add = [&](const char* name, const char* what, Result<int> (*run)(const TokenOptions&)) {
    CommandLine sub = command.subcommand(name, what);
    sub.option("--data-dir", options->data_dir, "the broker's data; default ~/.local/share/weft/broker");
    sub.format(options->format);
    sub.runs(chosen, [options, run] { return run(*options); });
    return sub;
  };
  CommandLine make =
      add("create", "make a token and print it; it is not kept, only what recognises it", create);
  make.option("--role", options->role,
              "whom it lets in: machines that compute, people with jobs, programs that ask served models by "
              "HTTP, or who looks after all jobs")
      .one_of({"peer", "submitter", "caller", "admin"})
      .required();
  make.option("--ttl", options->ttl, "how long it lets new ones in, as 24h, or never to expire")
      .shows_default();
  make.option("--uses", options->uses, "how many it lets in; default: any number").within(1u, 1'000'000'000u);
  make.option("--label", options->label, "for whom it is, or what for: `weft token list` shows it");
  add("join-line", "the line that lets machines join, as the broker prints it when it starts", join_line)
      .option("--advertise", options->advertise,
              "HOST:PORT under which peers reach the broker; default: as it was started last");
  add("list", "every token that was made, without its secret", list);
  add("revoke", "let nobody in with a token any more, and send away who came in by it", revoke)
      .option("id", options->id, "as `weft token list` shows it")
      .required();
}

}  // namespace weft::cli
