// weft ui: a page about a broker, served on the user's own machine. The broker is asked as by every other
// command, and serves nothing itself.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/ui_views.h"
#include "security/token.h"
#include "ui/page_handler.h"
#include "ui/qr.h"

namespace weft::cli {
namespace {

constexpr Duration kDrain = std::chrono::seconds(1);  // of answers that are under way when it ends

struct UiOptions {
  BrokerOptions broker;
  ApiClientOptions models;
  std::string listen = "127.0.0.1:7780", host, format = "text";
  bool key = false, qr = false;
  bool is_json() const { return format == "json"; }
};

// 128 bits that nobody can guess, as letters of a URL.
std::string draw() {
  std::array<uint8_t, 16> bytes{};
  security::fill_random(bytes);
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

struct Site {
  net::Endpoint endpoint;
  ui::AccessOptions access;
  std::string url(uint16_t port) const;
};

// Every address of the machine at once, which is no name that a browser calls.
bool is_any(const net::Endpoint& endpoint) {
  return endpoint.host == "0.0.0.0" || endpoint.host == "::" || endpoint.host.empty();
}

// Where it listens, with any port: an SSH tunnel to it has one of its own.
void add_own_names(const net::Endpoint& at, std::vector<ui::HostName>& hosts) {
  if (is_any(at)) return;
  const bool is_address = at.host.find(':') != std::string::npos;
  hosts.push_back({.name = web::lower_case(is_address ? "[" + at.host + "]" : at.host)});
  if (!web::is_loopback(at)) return;
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) hosts.push_back({.name = name});
}

Result<Site> site_of(const UiOptions& options) {
  Site site;
  WEFT_TRY(site.endpoint, net::parse_endpoint(options.listen));
  if (is_any(site.endpoint) && options.host.empty())
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--listen {}: say by --host under which name or address browsers call it",
                            options.listen));
  if (!options.host.empty()) {
    auto host = ui::parse_host(options.host);
    if (!host) return fail(host.error().within("--host"));
    site.access.hosts.push_back(std::move(*host));
  }
  add_own_names(site.endpoint, site.access.hosts);
  site.access.cookie += "_" + draw().substr(0, 8);  // another page of this host keeps its own
  // Whoever gives a name lets others in by a way of his own.
  if (options.key || !options.host.empty() || !web::is_loopback(site.endpoint)) site.access.key = draw();
  return site;
}

std::string Site::url(uint16_t port) const {
  const ui::HostName& host = access.hosts.front();
  return fmt::format("http://{}:{}/{}", host.name, host.port.value_or(port),
                     access.key.empty() ? "" : "#key=" + access.key);
}

// The token that admits to the broker opens the door of its models, too; it goes nowhere in the clear.
Result<std::shared_ptr<ui::ModelView>> open_models(const UiOptions& options, const BrokerAddress& broker) {
  if (options.models.url.empty()) return std::shared_ptr<ui::ModelView>();
  ApiClientOptions models = options.models;
  WEFT_TRY(const web::Url url, web::parse_url(models.url));
  if (models.key_file.empty() && (url.is_secure || web::is_loopback(url.endpoint)))
    models.token = security::to_text(broker.token);
  return make_model_view(models);
}

Status announce(const UiOptions& options, const Site& site, const std::string& url) {
  if (!site.access.key.empty() && !web::is_loopback(site.endpoint))
    say(stderr,
        "warning: HTTP is not encrypted: whoever is on the way between a browser and this machine reads what "
        "the page shows, and the key. Listen on 127.0.0.1 and use an SSH tunnel where that matters.\n");
  if (options.is_json())
    print_event(nlohmann::ordered_json{{"event", "ui"}, {"url", url}}.dump());
  else
    say(stdout, "the page: {}\n", url);
  if (options.qr) {
    WEFT_TRY(const std::string code, ui::qr_code(url));
    say(options.is_json() ? stderr : stdout, "{}", code);
  }
  std::fflush(stdout);
  return {};
}

Result<int> run_ui(const UiOptions& options) {
  WEFT_TRY(const Site site, site_of(options));
  WEFT_TRY(const BrokerAddress address, find_broker(options.broker));
  WEFT_TRY(const auto models, open_models(options, address));
  const SignalsBlocked blocked;
  WEFT_TRY(auto access, BrokerAccess::open(address));
  const auto broker = make_broker_view(std::move(access), address);
  // One that is away is said on the page; a token that is not good ends this.
  if (const auto connected = broker->connect(); !connected) {
    const ErrorCode code = connected.error().code;
    if (code != ErrorCode::Unavailable && code != ErrorCode::Timeout) return fail(connected.error());
    say(stderr, "warning: {}\n", connected.error().message);
  }
  ui::PageParts parts{.access = site.access,
                      .broker = broker,
                      .models = models,
                      .clock = [] { return Instant(std::chrono::steady_clock::now().time_since_epoch()); },
                      .unix_ms = unix_ms_now,
                      .draw = draw};
  WEFT_TRY(const auto server, web::Server::start({.endpoint = site.endpoint, .limits = ui::page_limits()},
                                                 ui::make_page(std::move(parts))));
  net::Loop loop;
  WEFT_TRY(const auto watch, SignalWatch::start(loop, [&](int) { loop.stop(); }));
  WEFT_TRY_STATUS(announce(options, site, site.url(server->endpoint().port)));
  loop.run();
  server->stop(kDrain);
  return kExitOk;
}

}  // namespace

void add_ui(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("ui", "show a broker's jobs and peers on a page for a browser, served here");
  auto options = std::make_shared<UiOptions>();
  options->broker.add_to(command);
  command.option("--listen", options->listen, "where the page is served; port 0: any that is free")
      .shows_default();
  command.option("--host", options->host, "NAME[:PORT] by which browsers call it, where that is another one");
  command.flag(
      "--key", options->key,
      "ask for the key that the printed address has; elsewhere than on 127.0.0.1 it is always asked for");
  command.flag("--qr", options->qr, "print the address for a phone's camera, too");
  command.option("--url", options->models.url,
                 "where models are served that the page can try: what weft broker --http prints");
  command.option("--key-file", options->models.key_file,
                 "of --url: file with the key in its first line; otherwise the broker's token");
  command.option("--ca", options->models.ca_file,
                 "of --url: PEM file of the certificates to trust; otherwise those that this system trusts");
  command.option("--format", options->format, "text, or json: one event a line")
      .one_of({"text", "json"})
      .shows_default();
  command.runs(chosen, [options] { return run_ui(*options); });
}

}  // namespace weft::cli
