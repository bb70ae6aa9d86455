// weft generate: text from a language model, one token after another, as it comes: of a file on this machine,
// or of a service.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "serve/engine.h"
#include "serve/service/load.h"
#include "text/detokenizer.h"

namespace weft::cli {
namespace {

struct GenerateOptions {
  serve::LoadOptions load;
  ApiClientOptions client;
  std::string model, tokenizer, prompt = "\n";
  int64_t length = 400, context = 0;
  serve::SamplingOptions sampling{.temperature = 0.8};
  std::string format = "text";
  BackendOptions backend;
  bool json() const { return format == "json"; }
};

// Text as it comes: itself, or an event {"event":"text","text":"..."} for each piece.
void put(const GenerateOptions& options, const std::string& piece) {
  if (options.json()) {
    if (!piece.empty())
      say(stdout, "{}\n", stamped(R"({"event":"text","text":)" + json_string(piece) + "}", unix_ms_now()));
  } else {
    say(stdout, "{}", piece);
  }
  std::fflush(stdout);
}
void put_end(const GenerateOptions& options) {
  if (options.json())
    say(stdout, "{}\n", stamped(R"({"event":"result","status":"completed"})", unix_ms_now()));
  else
    say(stdout, "\n");
  std::fflush(stdout);
}

// Text as it comes. Beyond the context it goes on behind the last half of what there is: a cache cannot
// slide.
class Printer {
 public:
  Printer(const GenerateOptions& options, const serve::LoadedModel& model)
      : options_(options),
        decoder_(*model.decoder),
        tokenizer_(model.text.tokenizer),
        engine_(decoder_, {.cache_bytes = decoder_.bytes_of(decoder_.context())}),
        text_(tokenizer_, {.continues_text = true}) {}

  Result<int> run(const std::vector<text::TokenId>& prompt) {
    tokens_.assign(prompt.begin(), prompt.end());
    left_ = options_.length;
    for (uint64_t round = 0; left_ > 0 && !ended_; ++round) WEFT_TRY_STATUS(go_on(round));
    put(options_, text_.finish());
    put_end(options_);
    return kExitOk;
  }

 private:
  // Until the context is full.
  Status go_on(uint64_t round) {
    const auto context = static_cast<size_t>(decoder_.context());
    const size_t known = tokens_.size() < context ? tokens_.size() : context / 2;
    serve::Request request;
    request.prompt.assign(tokens_.end() - static_cast<std::ptrdiff_t>(known), tokens_.end());
    request.tokens_max = std::min(left_, static_cast<int64_t>(context - known));
    request.sampling = options_.sampling;
    request.sampling.seed += round;  // positions come again
    for (const text::TokenId token : tokenizer_.end_tokens()) request.ends.push_back(token);
    Status status;
    WEFT_TRY_STATUS(
        engine_.add(std::move(request),
                    {.on_token = [this](const serve::Generated& made) { return take(made.draw.token); },
                     .on_end =
                         [&](serve::Finish finish, const Status& how) {
                           status = how;
                           ended_ = finish != serve::Finish::Length;
                         }}));
    while (!engine_.tick().idle) {
    }
    return status;
  }
  bool take(int64_t token) {
    tokens_.push_back(token);
    --left_;
    put(options_, text_.push(static_cast<text::TokenId>(token)));
    return std::ferror(stdout) == 0;  // whoever reads may have gone
  }

  const GenerateOptions& options_;
  serve::Decoder& decoder_;
  const text::Tokenizer& tokenizer_;
  serve::Engine engine_;
  text::Detokenizer text_;
  std::vector<int64_t> tokens_;
  int64_t left_ = 0;
  bool ended_ = false;
};

Result<int> generate_from_file(GenerateOptions options) {
  options.load.model = options.model;
  options.load.tokenizer = options.tokenizer;
  options.load.context = options.context;
  options.load.verifies = false;
  WEFT_TRY(const auto backend, make_backend(options.backend));
  WEFT_TRY(const serve::LoadedModel model, serve::load_model(options.load, *backend));
  if (!model.why_windows.empty())
    say(stderr,
        "warning: no caches can be made of this model: {}. Each token costs a pass over all {} positions.\n",
        model.why_windows, model.decoder->context());
  const text::Tokenizer& tokenizer = model.text.tokenizer;
  WEFT_TRY(const std::vector<text::TokenId> prompt,
           tokenizer.encode(options.prompt, {.special = text::SpecialTokens::Recognized}));
  if (prompt.empty())
    return fail(ErrorCode::InvalidArgument, "--prompt is empty: give at least one character to start from");
  put(options, options.prompt);
  return Printer(options, model).run(prompt);
}

web::GenerateRequest request_of(const GenerateOptions& options, std::string model) {
  const serve::SamplingOptions& sampling = options.sampling;
  return {.kind = web::ApiKind::Completion,
          .model = std::move(model),
          .prompt = options.prompt,
          .max_tokens = static_cast<uint32_t>(options.length),
          .temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .top_k = static_cast<uint32_t>(sampling.top_k),
          .seed = static_cast<int64_t>(sampling.seed)};
}

Result<int> generate_from_service(const GenerateOptions& options) {
  if (options.length < 1 || options.length > INT32_MAX)
    return fail(ErrorCode::InvalidArgument, "--length is between 1 and 2147483647");
  const SignalsBlocked blocked;
  net::Loop loop;
  WEFT_TRY(const auto client, make_client(loop, options.client));
  WEFT_TRY(const auto watch, SignalWatch::start(loop, [&](int) { client->cancel(); }));
  WEFT_TRY(std::string model, choose_model(*client, options.client));
  bool has_begun = false;
  const auto print = [&](const std::string& piece) {
    if (!std::exchange(has_begun, true)) put(options, options.prompt);
    put(options, piece);
    if (std::ferror(stdout) != 0) client->cancel();  // whoever reads has gone
  };
  const auto end = client->generate(request_of(options, std::move(model)), print);
  if (end && !has_begun) print("");
  if (end) put_end(options);
  if (!end && has_begun && !options.json()) say(stdout, "\n");
  if (!end) return fail(end.error());
  return kExitOk;
}

Result<int> run_generate(const GenerateOptions& options) {
  if (options.model.empty() == options.client.url.empty())
    return fail(ErrorCode::InvalidArgument, "give the model's file, or --url of a service: one of the two");
  const ApiClientOptions& client = options.client;
  if (client.url.empty() && client.says_anything())
    return fail(ErrorCode::InvalidArgument, "--model, --token, --key-file and --ca go with --url");
  if (!client.url.empty() && (!options.tokenizer.empty() || options.context != 0))
    return fail(ErrorCode::InvalidArgument,
                "--tokenizer and --context go with a file: a service has its own");
  return client.url.empty() ? generate_from_file(options) : generate_from_service(options);
}

}  // namespace

void add_generate(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("generate", "print text that a language model makes");
  auto options = std::make_shared<GenerateOptions>();
  Option file = command.option("model", options->model, "the ONNX file: tokens to logits, causal");
  command.option("--url", options->client.url, "a service instead of a file: what weft serve prints")
      .excludes(file);
  options->client.add_to(command);
  command.option("--prompt", options->prompt, "how the text begins");
  command.option("--length", options->length, "tokens to add").shows_default();
  command.option("--temperature", options->sampling.temperature, "0: always the likeliest token")
      .within(0.0, 100.0)
      .shows_default();
  command
      .option("--top-p", options->sampling.top_p,
              "only of the likeliest tokens that together are so probable")
      .within(1e-9, 1.0)
      .shows_default();
  command.option("--top-k", options->sampling.top_k, "only of so many of the likeliest tokens; 0: of all")
      .shows_default();
  command.option("--seed", options->sampling.seed, "of the draws: the same seed, the same text")
      .shows_default();
  command.option(
      "--tokenizer", options->tokenizer,
      "of a file: tokenizer.json; otherwise the one beside it, or bytes for a model of 256 tokens");
  command.option("--context", options->context, "of a file: positions, where it leaves them open; 0: 1024")
      .shows_default();
  command.format(options->format);
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_generate(*options); });
}

}  // namespace weft::cli
