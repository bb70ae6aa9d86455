#include "cli/api_client.h"

#include <cstdlib>

#include "base/printable.h"
#include "cli/api_keys.h"
#include "cli/say.h"
#include "web/server.h"

namespace weft::cli {

namespace {

constexpr size_t kNamesShown = 20;

}  // namespace

Result<ShownKey> shown_key(const ApiClientOptions& options, const web::Url& url) {
  if (!options.token.empty() && !options.key_file.empty())
    return fail(ErrorCode::InvalidArgument, "--token and --key-file say the same: give one of them");
  const char* kept = std::getenv("WEFT_TOKEN");
  const bool is_named = !options.token.empty() || !options.key_file.empty();
  const bool is_open = !url.is_secure && !web::is_loopback(url.endpoint);
  const std::string given = is_named || kept == nullptr ? options.token : kept;
  const std::string file = given.starts_with('@') ? given.substr(1) : options.key_file;
  if (given.empty() && file.empty()) return ShownKey{};
  if (!is_named && is_open)
    return ShownKey{.warning = options.url + " is no https: WEFT_TOKEN is not sent there"};
  ShownKey key{.text = given};
  if (!file.empty()) {
    WEFT_TRY(auto keys, read_api_keys(file));
    key.text = std::move(keys.front());
  }
  if (is_open) key.warning = options.url + " is no https: whoever is on the way reads the key";
  return key;
}

void ApiClientOptions::add_to(CommandLine command) {
  command.option("--model", model, "the model's name at the service; otherwise the only one that it has");
  command.option("--token", token,
                 "a token of the broker whose model it is, or @FILE; else --key-file, else WEFT_TOKEN");
  command.option("--key-file", key_file, "file with the key that the service asks for, in its first line");
  command.option("--ca", ca_file,
                 "PEM file of the certificates to trust with https; otherwise those that this system trusts");
}

Result<std::unique_ptr<web::Client>> make_client(net::Loop& loop, const ApiClientOptions& options) {
  web::ClientOptions client;
  WEFT_TRY(client.url, web::parse_url(options.url));
  client.ca_file = options.ca_file;
  WEFT_TRY(ShownKey key, shown_key(options, client.url));
  if (!key.warning.empty()) say(stderr, "warning: {}\n", key.warning);
  client.key = std::move(key.text);
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
