// Where the broker is and what shows that one may use it: from the command line, the environment, or what
// `weft login` kept.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/command_line.h"
#include "net/endpoint.h"
#include "security/token.h"

namespace weft::cli {

// A broker together with a token of it. The token names the broker's key: nobody else gets to see the secret.
struct BrokerAddress {
  net::Endpoint endpoint;
  security::Token token;
};

struct BrokerOptions {
  std::string broker;  // "host:port"; empty: WEFT_BROKER, or the login
  std::string token;   // the token, "@FILE", or "-" for standard input; empty: WEFT_TOKEN, or the login
  void add_to(CommandLine command);
};

// What a person gives for a token: itself, "@FILE", or "-". Errors: NotFound and others of the file;
// InvalidArgument when it is none, or one of another role;
// where a submitter's is wanted an admin's is as good.
Result<security::Token> read_token(const std::string& text, security::Role role,
                                   std::FILE* standard_input = stdin);
// The same of any role.
Result<security::Token> read_any_token(const std::string& text, std::FILE* standard_input = stdin);

// Folders of this program's own, for the user who runs it: $XDG_CONFIG_HOME/weft or ~/.config/weft, and
// $XDG_DATA_HOME/weft or ~/.local/share/weft. NotFound where neither variable is set.
Result<std::filesystem::path> config_folder();
Result<std::filesystem::path> data_folder();

// What `weft login` kept: CONFIG/login.json, readable by its owner alone.
struct Login {
  std::string broker;
  std::string token;
};
Result<std::optional<Login>> load_login(const std::filesystem::path& folder);
Result<std::filesystem::path> save_login(const std::filesystem::path& folder, const Login& login);

// What was said of a broker on the command line, else in the environment, else at the login. Empty: nothing.
// Errors: the login's.
Result<BrokerOptions> find_said(const BrokerOptions& options);
// InvalidArgument says what is missing and how it can be given.
Result<BrokerAddress> find_broker(const BrokerOptions& options);

}  // namespace weft::cli
