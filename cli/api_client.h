// How commands reach a service of the OpenAI API: their options, and what is made of them.
#pragma once

#include <memory>
#include <string>

#include "cli/command_line.h"
#include "net/loop.h"
#include "web/client.h"

namespace weft::cli {

struct ApiClientOptions {
  std::string url{}, model{}, token{}, key_file{}, ca_file{};
  // --model, --token, --key-file, --ca. The command adds --url itself.
  void add_to(CommandLine command);
  // Whether one of those was given.
  bool says_anything() const { return !(model + token + key_file + ca_file).empty(); }
};

// What a service is shown: what --token or --key-file says, or else WEFT_TOKEN, which goes to no other
// machine in the clear. Errors: of the file; InvalidArgument for both options.
struct ShownKey {
  std::string text{}, warning{};  // empty: nothing
};
Result<ShownKey> shown_key(const ApiClientOptions& options, const web::Url& url);

// Errors: of the URL, and of the files. Warns of what shown_key() does.
Result<std::unique_ptr<web::Client>> make_client(net::Loop& loop, const ApiClientOptions& options);
// What --model says; without it the service's only one. InvalidArgument names those that there are.
Result<std::string> choose_model(web::Client& client, const ApiClientOptions& options);

}  // namespace weft::cli
