// weft token: makes, lists and revokes the tokens of a broker on this machine, whether it runs or not.
#include <fmt/format.h>
#include <CLI/App.hpp>

#include <charconv>

#include "broker/service/broker_service.h"
#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/quantities.h"
#include "cli/report.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct TokenOptions {
  std::string data_dir, role, ttl, id;
  std::string format = "text";
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
  if (!options.ttl.empty()) {
    WEFT_TRY(token.ttl, parse_duration(options.ttl));
  }
  if (options.uses != 0) token.uses = options.uses;
  WEFT_TRY(const fs::path folder, broker_folder(options));
  WEFT_TRY(const std::string text, broker::create_token(folder, token));
  if (options.format == "json")
    fmt::print("{{\"event\":\"token\",\"token\":{}}}\n", json_string(text));
  else
    fmt::print("{}\n", text);
  return kExitOk;
}

std::string state_of(const broker::TokenLine& token) {
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
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
    fmt::print("{:16}  {:9}  {:7}  {:>9}  {:23}  {}\n", "ID", "ROLE", "STATE", "USES", "CREATED", "EXPIRES");
  for (const broker::TokenLine& token : tokens) {
    const std::string role(security::to_string(token.role));
    if (json)
      fmt::print(
          R"({{"event":"token","id":"{:016x}","role":"{}","state":"{}","uses":{},"uses_max":{},"created_unix_ms":{},"expires_unix_ms":{}}})"
          "\n",
          token.id, role, state_of(token), token.uses,
          token.uses_max ? fmt::format("{}", *token.uses_max) : "null", token.created_unix_ms,
          token.expires_unix_ms ? fmt::format("{}", *token.expires_unix_ms) : "null");
    else
      fmt::print("{:016x}  {:9}  {:7}  {:>9}  {:23}  {}\n", token.id, role, state_of(token),
                 token.uses_max ? fmt::format("{} of {}", token.uses, *token.uses_max)
                                : fmt::format("{}", token.uses),
                 format_time(token.created_unix_ms),
                 token.expires_unix_ms ? format_time(*token.expires_unix_ms) : "never");
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
    fmt::print("{{\"event\":\"revoked\",\"id\":\"{:016x}\"}}\n", id);
  else
    fmt::print("revoked {:016x}: nobody new gets in with it; who was admitted by it stays admitted\n", id);
  return kExitOk;
}

}  // namespace

void add_token(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("token", "make, list and revoke the tokens of a broker on this machine");
  command->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();
  const auto add = [&](const char* name, const char* what, Result<int> (*run)(const TokenOptions&)) {
    CLI::App* sub = command->add_subcommand(name, what);
    sub->add_option("--data-dir", options->data_dir, "the broker's data; default ~/.local/share/weft/broker");
    sub->add_option("--format", options->format, "text, or json")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    sub->callback([options, &chosen, run] { chosen = [options, run] { return run(*options); }; });
    return sub;
  };
  CLI::App* make =
      add("create", "make a token and print it; it is not kept, only what recognises it", create);
  make->add_option("--role", options->role, "whom it lets in")
      ->check(CLI::IsMember({"peer", "submitter"}))
      ->required();
  make->add_option("--ttl", options->ttl, "how long it lets new ones in, as 24h; default: for ever");
  make->add_option("--uses", options->uses, "how many it lets in; default: any number")
      ->check(CLI::Range(1u, 1'000'000'000u));
  add("list", "every token that was made, without its secret", list);
  add("revoke", "let nobody new in with a token", revoke)
      ->add_option("id", options->id, "as `weft token list` shows it")
      ->required();
}

}  // namespace weft::cli
