#include "cli/api_client.h"

#include "base/printable.h"
#include "cli/api_keys.h"
#include "cli/say.h"
#include "web/server.h"

namespace weft::cli {

namespace {

constexpr size_t kNamesShown = 20;

}  // namespace

void ApiClientOptions::add_to(CommandLine command) {
  command.option("--model", model, "the model's name at the service; otherwise the only one that it has");
  command.option("--key-file", key_file, "file with the key that the service asks for, in its first line");
  command.option("--ca", ca_file,
                 "PEM file of the certificates to trust with https; otherwise those that this system trusts");
}

Result<std::unique_ptr<web::Client>> make_client(net::Loop& loop, const ApiClientOptions& options) {
  web::ClientOptions client;
  WEFT_TRY(client.url, web::parse_url(options.url));
  client.ca_file = options.ca_file;
  if (!options.key_file.empty()) {
    WEFT_TRY(auto keys, read_api_keys(options.key_file));
    client.key = std::move(keys.front());
    if (!client.url.is_secure && !web::is_loopback(client.url.endpoint))
      say(stderr, "warning: {} is no https: whoever is on the way reads the key\n", options.url);
  }
  return web::Client::make(loop, std::move(client));
}

Result<std::string> choose_model(web::Client& client, const ApiClientOptions& options) {
  if (!options.model.empty()) return options.model;
  WEFT_TRY(const std::vector<std::string> names, client.models());
  if (names.size() == 1) return names.front();
  if (names.empty()) return fail(ErrorCode::Unavailable, options.url + " serves no model");
  std::string list;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i)
    list += (i > 0 ? ", " : "") + printable(names[i].substr(0, 128));
  if (names.size() > kNamesShown) list += ", ...";
  return fail(ErrorCode::InvalidArgument,
              options.url + " serves several models: choose one by --model: " + list);
}

}  // namespace weft::cli
