#include "serve/service/text_service.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <random>
#include <utility>

#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace weft::serve {
namespace {

constexpr Duration kWellWithin = std::chrono::seconds(10);

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string_view role_of(web::ChatMessage::Role role) {
  switch (role) {
    case web::ChatMessage::Role::System:
      return "system";
    case web::ChatMessage::Role::User:
      return "user";
    case web::ChatMessage::Role::Assistant:
      return "assistant";
  }
  return "user";
}

web::ApiError of_field(const Error& error, const char* field) {
  web::ApiError api = web::to_api_error(error);
  api.param = field;
  return api;
}

// What a request holds while it waits to become tokens, about.
size_t bytes_of(const web::GenerateRequest& request) {
  constexpr size_t kBeside = 4096;
  size_t bytes = kBeside;
  if (const auto* text = std::get_if<std::string>(&request.prompt)) bytes += text->size();
  if (const auto* ids = std::get_if<std::vector<uint32_t>>(&request.prompt)) bytes += ids->size() * sizeof(uint32_t);
  if (const auto* messages = std::get_if<std::vector<web::ChatMessage>>(&request.prompt))
    for (const web::ChatMessage& message : *messages) bytes += sizeof message + message.content.size();
  return bytes;
}

// What does not fit is too long by itself, or with the tokens that were asked for.
web::ApiError of_engine(const Error& error, bool prompt_fits) {
  if (error.code == ErrorCode::OutOfRange) {
    web::ApiError api = of_field(error, prompt_fits ? "max_tokens" : "prompt");
    api.code = web::kContextLengthExceeded;
    return api;
  }
  return error.code == ErrorCode::InvalidArgument ? of_field(error, "prompt") : web::to_api_error(error);
}

}  // namespace

// One request at work: tokens become pieces of text. Its listener runs on the engine's thread, cancel() on any.
class TextService::Generating final : public web::OpenRequest {
 public:
  Generating(TextService& service, web::Generation generation, const web::GenerateRequest& request)
      : answer(std::move(generation)),
        service_(service),
        tokenizer_(service.model_.tokenizer),
        detokenizer_(tokenizer_, {.continues_text = request.kind == web::ApiKind::Completion}),
        wants_logprobs_(request.logprobs.has_value()),
        is_stream_(request.is_stream) {}

  // A stream that nobody reads goes on for a while, in case somebody comes back.
  void cancel() override {
    if (!is_stream_) end_now();
  }
  bool is_stream() const { return is_stream_; }
  void end_now() {
    cancelled_ = true;
    if (const uint64_t id = id_; id != 0) service_.engine_.cancel(id);
  }
  void set_id(uint64_t id) {
    id_ = id;
    answer.begin();
    if (cancelled_) service_.engine_.cancel(id);
  }
  Status set_stops(std::vector<std::string> stops, size_t prompt_tokens) {
    prompt_tokens_ = prompt_tokens;
    WEFT_TRY(stops_, text::StopStrings::make(std::move(stops)));
    return {};
  }

  bool on_token(const Generated& generated) {
    ++completion_tokens_;
    const auto token = static_cast<text::TokenId>(generated.draw.token);
    if (wants_logprobs_) note_probability(generated.draw);
    text::StopStrings::Passed passed = stops_->push(detokenizer_.push(token));
    const bool listened = say(std::move(passed.text));
    if (passed.is_stopped) return false;
    if (listened) unheard_since_.reset();
    if (!listened && !unheard_since_) unheard_since_ = EngineThread::now();
    return listened || EngineThread::now() - *unheard_since_ < kKept;
  }

  void on_end(Finish finish, const Status& status) {
    if (finish == Finish::Failed) {
      answer.end(of_engine(
          status.error(), static_cast<int64_t>(prompt_tokens_) <= service_.engine_.decoder().context()));
    } else {
      if (!stops_->stopped_by()) finish_text();
      answer.end(web::GenerationEnd{
          .reason = finish == Finish::Length ? web::FinishReason::Length : web::FinishReason::Stop,
          .usage = {.prompt_tokens = prompt_tokens_, .completion_tokens = completion_tokens_}});
    }
    answer.set_ended(EngineThread::now());
  }

  Answer answer;

 private:
  void note_probability(const Draw& draw) {
    const auto named = [this](int64_t token, double probability) {
      const auto id = static_cast<text::TokenId>(token);
      return web::TokenLogprob{.token = tokenizer_.decode_bytes({&id, 1}, false), .logprob = probability};
    };
    web::TokenLogprob& one = probabilities_.emplace_back(named(draw.token, draw.log_probability));
    for (const auto& [token, probability] : draw.alternatives) one.top.push_back(named(token, probability));
  }
  // Whether somebody listens.
  bool say(std::string text) {
    if (text.empty() && probabilities_.empty()) return listened_;
    return listened_ = answer.add({.text = std::move(text), .logprobs = std::exchange(probabilities_, {})});
  }
  void finish_text() {
    text::StopStrings::Passed passed = stops_->push(detokenizer_.finish());
    if (!passed.is_stopped) passed.text += stops_->finish();
    if (!passed.text.empty()) say(std::move(passed.text));
  }

  TextService& service_;
  text::Tokenizer tokenizer_;
  text::Detokenizer detokenizer_;
  std::optional<text::StopStrings> stops_;
  const bool wants_logprobs_, is_stream_;
  std::vector<web::TokenLogprob> probabilities_;
  size_t prompt_tokens_ = 0, completion_tokens_ = 0;
  bool listened_ = true;
  std::optional<Instant> unheard_since_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> id_ = 0;  // the engine's; 0: it has none yet
};

TextService::TextService(TextModel model, std::unique_ptr<Decoder> decoder, const EngineOptions& options)
    : model_(std::move(model)), engine_(std::move(decoder), options) {}

std::vector<web::ModelInfo> TextService::models() const { return {{model_.name, model_.created}}; }

Result<TextService::Prompt> TextService::prompt_of(const web::GenerateRequest& request) const {
  Prompt prompt;
  prompt.stops = request.stop;
  const text::Tokenizer& tokenizer = model_.tokenizer;
  for (const text::TokenId token : tokenizer.end_tokens()) prompt.ends.push_back(token);
  std::vector<text::TokenId> tokens;
  if (const auto* words = std::get_if<std::string>(&request.prompt)) {
    WEFT_TRY(tokens, tokenizer.encode(*words, {.special = text::SpecialTokens::Recognized}));
  } else if (const auto* ids = std::get_if<std::vector<uint32_t>>(&request.prompt)) {
    prompt.tokens.assign(ids->begin(), ids->end());
    return prompt;
  } else {
    if (!model_.chat_template)
      return fail(ErrorCode::Unsupported,
                  "'" + model_.name + "' has no chat template: ask /v1/completions, or serve it with "
                  "--chat-template chatml, llama3 or plain");
    std::vector<text::ChatMessage> messages;
    for (const web::ChatMessage& message : std::get<std::vector<web::ChatMessage>>(request.prompt))
      messages.push_back({std::string(role_of(message.role)), message.content});
    WEFT_TRY(tokens, text::encode_chat(tokenizer, *model_.chat_template, messages));
    const text::ChatEnd end = text::chat_end(tokenizer, *model_.chat_template);
    prompt.ends.insert(prompt.ends.end(), end.tokens.begin(), end.tokens.end());
    prompt.stops.insert(prompt.stops.end(), end.texts.begin(), end.texts.end());
  }
  prompt.tokens.assign(tokens.begin(), tokens.end());
  return prompt;
}

std::string TextService::fresh_id() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (uint64_t number = random_number(), i = 0; i < 16; ++i, number >>= 4) id += kDigits[number & 15];
  return id;
}

// And lets go of what has ended a while ago.
void TextService::keep(const std::shared_ptr<Generating>& generating) {
  const Instant now = EngineThread::now();
  const MutexLock lock(mutex_);
  auto oldest = kept_.end();
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    const auto ended = entry->second->answer.ended();
    if (ended && now - *ended > kKept) {
      entry = kept_.erase(entry);
      continue;
    }
    if (ended && (oldest == kept_.end() || *ended < *oldest->second->answer.ended())) oldest = entry;
    ++entry;
  }
  if (kept_.size() >= kKeptMax && oldest != kept_.end()) kept_.erase(oldest);
  kept_[generating->answer.id()] = generating;
}

bool TextService::may_prepare(size_t bytes) {
  const MutexLock lock(mutex_);
  if (preparing_bytes_ + bytes > kPreparedBytesMax) return false;
  preparing_bytes_ += bytes;
  return true;
}
void TextService::prepared(size_t bytes) {
  const MutexLock lock(mutex_);
  preparing_bytes_ -= bytes;
}

void TextService::begin(const web::GenerateRequest& request, size_t bytes,
                        const std::shared_ptr<Generating>& generating) {
  const auto refuse = [&](const web::ApiError& error) {
    generating->answer.end(error);
    generating->answer.set_ended(EngineThread::now());
  };
  auto prompt = prompt_of(request);
  prepared(bytes);  // before anybody hears of it
  if (!prompt)
    return refuse(of_field(prompt.error(), request.kind == web::ApiKind::Chat ? "messages" : "prompt"));
  if (const Status stops = generating->set_stops(std::move(prompt->stops), prompt->tokens.size()); !stops)
    return refuse(of_field(stops.error(), "stop"));
  Request wanted;
  wanted.prompt = std::move(prompt->tokens);
  wanted.ends = std::move(prompt->ends);
  wanted.tokens_max = request.max_tokens ? int64_t{*request.max_tokens} : -1;
  wanted.sampling = {.temperature = request.temperature,
                     .top_p = request.top_p,
                     .top_k = request.top_k,
                     .seed = request.seed ? static_cast<uint64_t>(*request.seed) : random_number(),
                     .alternatives = request.logprobs ? int64_t{*request.logprobs} : -1};
  engine_.add(std::move(wanted),
              {.on_token = [generating](const Generated& generated) { return generating->on_token(generated); },
               .on_end = [generating](Finish finish,
                                      const Status& status) { generating->on_end(finish, status); }},
              [this, generating](uint64_t id) {
                if (generating->is_stream()) keep(generating);
                generating->set_id(id);
              });
}

std::shared_ptr<web::OpenRequest> TextService::start(web::GenerateRequest request,
                                                     std::shared_ptr<web::Sink> sink) {
  web::Generation generation{.id = (request.kind == web::ApiKind::Chat ? "chatcmpl-" : "cmpl-") + fresh_id(),
                             .created = std::time(nullptr),
                             .model = model_.name,
                             .system_fingerprint = model_.fingerprint,
                             .kind = request.kind,
                             .includes_usage = request.includes_usage};
  const auto generating = std::make_shared<Generating>(*this, std::move(generation), request);
  generating->answer.attach(std::move(sink));
  const size_t bytes = bytes_of(request);
  if (!may_prepare(bytes)) {
    generating->answer.end(web::to_api_error(
        {ErrorCode::ResourceExhausted, "more prompts wait than there is room for; try again later"}));
    return generating;
  }
  tokenizing_.post([this, bytes, request = std::move(request), generating] {
    begin(request, bytes, generating);
  });
  return generating;
}

std::shared_ptr<web::OpenRequest> TextService::resume(const std::string& id, std::shared_ptr<web::Sink> sink) {
  std::shared_ptr<Generating> found;
  {
    const MutexLock lock(mutex_);
    if (const auto kept = kept_.find(id); kept != kept_.end()) found = kept->second;
  }
  if (!found) {
    sink->on_error({.status = 404,
                    .code = "stream_not_found",
                    .message = "there is no stream '" + id + "': it is kept for a minute after its end"});
    return nullptr;
  }
  found->answer.attach(std::move(sink));
  return found;
}

void TextService::probe() const {
  engine_.add({.prompt = {0}, .tokens_max = 1, .sampling = {.temperature = 0}},
              {.on_token = [](const Generated&) { return true; }, .on_end = [](Finish, const Status&) {}});
}

web::Health TextService::health() const {
  const Instant now = EngineThread::now();
  const EngineThread::Pulse pulse = engine_.pulse();
  const auto ago = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - pulse.last_pass).count());
  if (!pulse.last_status) return {false, "the last pass failed: " + pulse.last_status.error().message};
  if (pulse.waiting_since && now - *pulse.waiting_since > kWellWithin)
    return {false, "requests wait, and no token has come for " + ago + " s"};
  if (!pulse.waiting_since && now - pulse.last_pass > kWellWithin) {
    const MutexLock lock(mutex_);
    if (!probed_ || now - *probed_ > kWellWithin) {
      probed_ = now;
      probe();
    }
  }
  return {true, "the last token came " + ago + " s ago"};
}

}  // namespace weft::serve
