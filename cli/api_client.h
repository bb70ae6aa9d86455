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

// Shows the service what --token or --key-file says, or else WEFT_TOKEN. Errors: of the URL, and of the
// files; InvalidArgument for both. A key that would travel in the clear is warned of; one that nobody named
// stays here then.
Result<std::unique_ptr<web::Client>> make_client(net::Loop& loop, const ApiClientOptions& options);
// What --model says; without it the service's only one. InvalidArgument names those that there are.
Result<std::string> choose_model(web::Client& client, const ApiClientOptions& options);

}  // namespace weft::cli
