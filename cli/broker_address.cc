#include "cli/broker_address.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "storage/files.h"
#include "storage/text_file.h"

namespace weft::cli {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kSmallFileMax = 64 << 10;  // bytes, of what holds a token
constexpr int kLoginFormat = 1;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<fs::path> own_folder(const char* variable, const char* beneath_home, const char* what) {
  if (const std::string base = environment(variable); !base.empty()) return fs::path(base) / "weft";
  if (const std::string home = environment("HOME"); !home.empty())
    return fs::path(home) / beneath_home / "weft";
  return fail(ErrorCode::NotFound,
              std::string("there is no place for ") + what + ": set HOME or " + variable);
}

Result<std::string> read_stream(std::FILE* stream) {
  std::string text;
  for (int c = 0; (c = std::fgetc(stream)) != EOF;) {
    text += static_cast<char>(c);
    if (text.size() > kSmallFileMax)
      return fail(ErrorCode::InvalidArgument, "standard input is longer than any token");
  }
  return text;
}

}  // namespace

void BrokerOptions::add_to(CommandLine command) {
  command.option("--broker", broker, "where the broker is, HOST:PORT (else WEFT_BROKER, else `weft login`)");
  command.option("--token", token,
                 "a submitter token, @FILE, or - for standard input (else WEFT_TOKEN, else `weft login`)");
}

namespace {

struct GivenToken {
  security::Token token;
  std::string from;  // in words
};

Result<GivenToken> read_given(const std::string& text, std::FILE* standard_input) {
  std::string given = text;
  std::string from = "the token";
  if (text == "-") {
    from = "the token on standard input";
    WEFT_TRY(given, read_stream(standard_input));
  } else if (text.starts_with('@')) {
    from = "the token in " + text.substr(1);
    WEFT_TRY(given, storage::read_text(text.substr(1), kSmallFileMax));
  }
  const auto token = security::parse_token(given);
  if (!token) return fail(given == text ? token.error() : token.error().within(from));
  return GivenToken{*token, from};
}

}  // namespace

Result<security::Token> read_token(const std::string& text, security::Role role, std::FILE* standard_input) {
  WEFT_TRY(const GivenToken given, read_given(text, standard_input));
  const security::Token& token = given.token;
  const bool is_admin = token.role == security::Role::Admin && role == security::Role::Submitter;
  if (token.role != role && !is_admin) {
    const std::string wanted(security::to_string(role));
    return fail(ErrorCode::InvalidArgument,
                given.from + " is for the role " + std::string(security::to_string(token.role)) +
                    ", and here one for the role " + wanted +
                    " is needed: the broker's owner makes one with `weft token create --role " + wanted +
                    "`");
  }
  return token;
}

Result<security::Token> read_any_token(const std::string& text, std::FILE* standard_input) {
  WEFT_TRY(const GivenToken given, read_given(text, standard_input));
  return given.token;
}

Result<fs::path> config_folder() {
  return own_folder("XDG_CONFIG_HOME", ".config", "what `weft login` keeps");
}
Result<fs::path> data_folder() {
  return own_folder("XDG_DATA_HOME", ".local/share", "the data of a broker or a peer; say --data-dir");
}

Result<std::optional<Login>> load_login(const fs::path& folder) {
  const fs::path path = folder / "login.json";
  const auto text = storage::read_text(path, kSmallFileMax);
  if (!text && text.error().code == ErrorCode::NotFound) return std::nullopt;
  if (!text) return fail(text.error());
  const auto parsed = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto member = [&](const char* name) { return parsed.is_object() ? parsed.find(name) : parsed.end(); };
  const auto broker = member("broker"), token = member("token"), format = member("format");
  if (!parsed.is_object() || broker == parsed.end() || !broker->is_string() || token == parsed.end() ||
      !token->is_string() || format == parsed.end() || !format->is_number_integer())
    return fail(ErrorCode::Corrupted, path.string() + " is no login of weft: run `weft login` again");
  if (format->get<int64_t>() != kLoginFormat)
    return fail(ErrorCode::VersionMismatch,
                path.string() + " was written by another version of weft: run `weft login` again");
  return Login{broker->get<std::string>(), token->get<std::string>()};
}

Result<fs::path> save_login(const fs::path& folder, const Login& login) {
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  const nlohmann::ordered_json text{
      {"format", kLoginFormat}, {"broker", login.broker}, {"token", login.token}};
  const std::string bytes = text.dump(2) + "\n";
  fs::path path = folder / "login.json";
  WEFT_TRY_STATUS(files.write_atomic(path, std::as_bytes(std::span(bytes)), {.mode = 0600}));
  return path;
}

Result<BrokerOptions> find_said(const BrokerOptions& options) {
  BrokerOptions said{.broker = options.broker.empty() ? environment("WEFT_BROKER") : options.broker,
                     .token = options.token.empty() ? environment("WEFT_TOKEN") : options.token};
  if (!said.broker.empty() && !said.token.empty()) return said;
  std::optional<Login> login;
  if (const auto folder = config_folder()) {
    WEFT_TRY(login, load_login(*folder));
  }
  // A kept token belongs to the broker that it was kept with.
  if (login && (said.broker.empty() || said.broker == login->broker)) {
    said.broker = login->broker;
    if (said.token.empty()) said.token = login->token;
  }
  return said;
}

Result<BrokerAddress> find_broker(const BrokerOptions& options) {
  WEFT_TRY(const BrokerOptions said, find_said(options));
  const auto& [broker, token] = said;
  if (broker.empty())
    return fail(
        ErrorCode::InvalidArgument,
        "which broker? say --broker HOST:PORT --token T, set WEFT_BROKER and WEFT_TOKEN, or keep them with "
        "`weft login HOST:PORT --token T`");
  if (token.empty())
    return fail(ErrorCode::InvalidArgument, "no token for the broker " + broker +
                                                ": say --token T or set WEFT_TOKEN; its owner makes one with "
                                                "`weft token create --role submitter`");
  BrokerAddress address;
  WEFT_TRY(address.endpoint, net::parse_endpoint(broker));
  WEFT_TRY(address.token, read_token(token, security::Role::Submitter));
  return address;
}

}  // namespace weft::cli
