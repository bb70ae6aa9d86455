// weft serve: answers people with a model on this machine, by the OpenAI API.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/api_keys.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/quantities.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "net/loop.h"
#include "serve/service/engine_thread.h"
#include "serve/service/load.h"
#include "web/api.h"
#include "web/server.h"

namespace weft::cli {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr Duration kDrain = std::chrono::seconds(10);  // for answers that are under way when it is stopped

struct ServeOptions {
  serve::LoadOptions load;
  serve::EngineOptions engine;
  std::string model, tokenizer, draft = "none", address = "127.0.0.1:7781", certificate, key, keys_file,
                                format = "text";
  int64_t context = 0;
  uint32_t sequences = 64, cache_mib = 1024;
  bool skips_check = false;
  BackendOptions backend;
  bool is_json() const { return format == "json"; }
};

// Equal times, whatever the guess has right.
bool is_equal(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    differs |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return differs == 0 && !b.empty();
}

Result<web::ApiOptions> api_options(const ServeOptions& options) {
  web::ApiOptions api;
  if (options.keys_file.empty()) return api;
  WEFT_TRY(std::vector<std::string> keys, read_api_keys(options.keys_file));
  api.authorize = [keys = std::move(keys)](std::string_view token, web::Access access) {
    if (access == web::Access::Health) return web::Verdict::Allowed;
    bool known = false;
    for (const std::string& key : keys) known = is_equal(token, key) || known;
    return known ? web::Verdict::Allowed : web::Verdict::Unknown;
  };
  return api;
}

Result<web::ServerOptions> server_options(const ServeOptions& options) {
  web::ServerOptions server;
  WEFT_TRY(server.endpoint, net::parse_endpoint(options.address));
  server.certificate_file = options.certificate;
  server.key_file = options.key;
  if (options.certificate.empty() != options.key.empty())
    return fail(ErrorCode::InvalidArgument, "--http-cert and --http-key belong together: give both");
  if (!web::is_loopback(server.endpoint) && (options.certificate.empty() || options.keys_file.empty()))
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--http {} can be reached from other machines: it needs --http-cert FILE, "
                            "--http-key FILE and --api-keys FILE",
                            options.address));
  return server;
}

void announce(const ServeOptions& options, const serve::LoadedModel& model, const serve::Decoder& decoder,
              const net::Endpoint& endpoint) {
  const std::string url =
      fmt::format("{}://{}/v1", options.certificate.empty() ? "http" : "https", to_string(endpoint));
  if (options.is_json()) {
    const nlohmann::ordered_json event{{"event", "serving"},
                                       {"model", model.text.name},
                                       {"url", url},
                                       {"context", decoder.context()},
                                       {"vocabulary", decoder.vocabulary()},
                                       {"caches", model.why_windows.empty()},
                                       {"bytes_a_sequence", decoder.bytes_of(decoder.context()).value},
                                       {"system_fingerprint", model.text.fingerprint}};
    say(stdout, "{}\n", stamped(event.dump(), unix_ms_now()));
  } else {
    say(stdout, "serving '{}' at {}  ({} positions, {} tokens, {})\n", model.text.name, url,
        decoder.context(), decoder.vocabulary(),
        model.why_windows.empty() ? fmt::format("{} of cache for a whole context",
                                                format_bytes(decoder.bytes_of(decoder.context()).value))
                                  : "without caches");
    say(stdout,
        "try: weft chat --url {0}   or   curl {0}/completions -H 'Content-Type: application/json' "
        "-d '{{\"model\": \"{1}\", \"prompt\": \"Once\", \"max_tokens\": 32}}'\n",
        url, model.text.name);
  }
  std::fflush(stdout);
}

Result<int> run_serve(ServeOptions options) {
  WEFT_TRY(const web::ServerOptions server, server_options(options));
  WEFT_TRY(web::ApiOptions api, api_options(options));
  options.load.model = options.model;
  options.load.tokenizer = options.tokenizer;
  options.load.context = options.context;
  options.load.verifies = !options.skips_check;
  options.engine.sequences_max = options.sequences;
  options.engine.cache_bytes = {options.cache_mib * kMiB};
  const SignalsBlocked blocked;
  WEFT_TRY(const auto backend, make_backend(options.backend));
  WEFT_TRY(serve::LoadedModel model, serve::load_model(options.load, *backend));
  for (const std::string& warning : model.warnings) say(stderr, "warning: {}\n", warning);
  if (!model.why_windows.empty())
    say(stderr,
        "warning: no caches can be made of this model: {}. Each token costs a pass over all {} positions.\n",
        model.why_windows, model.decoder->context());
  WEFT_TRY(options.engine.draft, serve::load_draft(options.draft, model, *backend));
  if (!model.why_windows.empty()) options.engine.row_cost = 1;  // of a window more
  const serve::Decoder& decoder = *model.decoder;
  const auto service = std::make_shared<serve::TextService>(
      model.text, std::make_unique<serve::EngineThread>(std::move(model.decoder), options.engine));
  WEFT_TRY(const auto listening, web::Server::start(server, web::make_api(service, std::move(api))));
  announce(options, model, decoder, listening->endpoint());
  net::Loop loop;
  WEFT_TRY(const auto watch, SignalWatch::start(loop, [&](int) { loop.stop(); }));
  loop.run();
  say(stderr, "stopping: answers that are under way have {} s\n", static_cast<int>(seconds(kDrain)));
  listening->stop(kDrain);
  return kExitOk;
}

}  // namespace

void add_serve(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("serve", "answer with a language model, by the OpenAI API");
  auto options = std::make_shared<ServeOptions>();
  command.option("model", options->model, "the ONNX file: tokens to logits, causal").required();
  command.option("--http", options->address, "where to listen; port 0: any that is free").shows_default();
  command.option("--http-cert", options->certificate, "PEM file of the certificate's chain: TLS 1.3");
  command.option("--http-key", options->key, "PEM file of its key");
  command.option("--api-keys", options->keys_file,
                 "file with the keys of callers, one a line; without it everybody on this machine may ask");
  command.option("--name", options->load.name, "what callers call the model; otherwise the file's name");
  command.option("--tokenizer", options->tokenizer,
                 "tokenizer.json; otherwise the one beside the model, or bytes for a model of 256 tokens");
  command.option("--chat-template", options->load.chat_template,
                 "chatml, llama3 or plain; otherwise what tokenizer_config.json beside the tokenizer says");
  command.option("--context", options->context, "positions, where the file leaves them open; 0: 1024")
      .shows_default();
  command.option("--sequences", options->sequences, "requests that are served at once")
      .within(1u, 4096u)
      .shows_default();
  command.option("--cache-mib", options->cache_mib, "memory for caches, in MiB")
      .within(1u, 1u << 24)
      .shows_default();
  command
      .option("--draft", options->draft,
              "who guesses tokens ahead: none, ngram (repetition in the text), or an ONNX file with a small "
              "model of the same tokens; the text is the same")
      .shows_default();
  command.flag("--skip-check", options->skips_check,
               "do not compare the caches with the whole window at the start");
  command.format(options->format);
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_serve(*options); });
}

}  // namespace weft::cli
