#include "serve/service/text_service.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
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
  if (const auto* ids = std::get_if<std::vector<uint32_t>>(&request.prompt))
    bytes += ids->size() * sizeof(uint32_t);
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

web::ApiError asked_otherwise() {
  return {.status = 409,
          .param = "Idempotency-Key",
          .code = "idempotency_key_reused",
          .message = "Idempotency-Key: something else was asked under this key"};
}
}  // namespace

web::ApiError no_such_stream(const std::string& id) {
  return {.status = 404,
          .code = "stream_not_found",
          .message = "there is no stream '" + id + "': it is kept for a minute after its end"};
}

class TextService::Fingerprint {
 public:
  explicit Fingerprint(std::string text) : text_(std::move(text)) {}
  std::string get() const {
    const MutexLock lock(mutex_);
    return text_;
  }
  void set(std::string text) {
    const MutexLock lock(mutex_);
    text_ = std::move(text);
  }

 private:
  mutable Mutex mutex_;
  std::string text_ WEFT_GUARDED_BY(mutex_);
};

// One request at work: tokens become pieces of text. Its listener runs on the source's thread, cancel() on
// any, and maybe when the service has gone.
class TextService::Generating final : public web::OpenRequest,
                                      public std::enable_shared_from_this<TextService::Generating> {
 public:
  // `lasts`: it can be read again.
  Generating(const TextService& service, web::Generation generation, bool wants_logprobs, bool lasts,
             Once asked_once)
      : answer(std::move(generation)),
        source_(service.source_),
        keeper_(service.keeper_),
        fingerprint_(service.fingerprint_),
        context_(service.source_->context()),
        tokenizer_(service.model_.tokenizer),
        detokenizer_(tokenizer_, {.continues_text = answer.generation().kind == web::ApiKind::Completion}),
        wants_logprobs_(wants_logprobs),
        lasts_(lasts),
        once_(std::move(asked_once)) {}

  // One that lasts goes on for a while without a reader, in case somebody comes back.
  void cancel() override {
    if (!lasts_) end_now();
  }
  bool lasts() const { return lasts_; }
  const Once& once() const { return once_; }
  void end_now() {
    cancelled_ = true;
    if (const uint64_t id = id_; id != 0) tell_cancelled(id);
  }
  // Whether somebody still wants it.
  bool set_id(uint64_t id) {
    id_ = id;
    auto record = std::exchange(record_, nullptr);
    const auto keeper = keeper_.lock();
    if (!record || !keeper) {
      answer.begin();
      return !cancelled_;
    }
    record->number = id;
    answer.hold();
    keeper->keep(std::move(*record), [self = shared_from_this()] { self->answer.begin(); });
    return !cancelled_;
  }
  // What is to be kept of it once it has a number.
  void set_record(std::unique_ptr<KeptRequest> record) { record_ = std::move(record); }
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
    if (!listened && !unheard_since_) unheard_since_ = steady_now();
    return listened || steady_now() - *unheard_since_ < kKept;
  }

  void on_end(Finish finish, const Status& status) {
    if (finish == Finish::Failed) {
      answer.end(of_engine(status.error(), static_cast<int64_t>(prompt_tokens_) <= context_));
    } else {
      if (!stops_->stopped_by()) finish_text();
      answer.end(web::GenerationEnd{
          .reason = finish == Finish::Length ? web::FinishReason::Length : web::FinishReason::Stop,
          .usage = {.prompt_tokens = prompt_tokens_, .completion_tokens = completion_tokens_},
          .system_fingerprint = fingerprint_->get()});
    }
    answer.set_ended(steady_now());
    if (const auto keeper = lasts_ ? keeper_.lock() : nullptr) keeper->ended(answer.id());
  }

  Answer answer;

 private:
  void tell_cancelled(uint64_t id) {
    if (const auto source = source_.lock()) source->cancel(id);
  }
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

  const std::weak_ptr<TokenSource> source_;
  const std::weak_ptr<RequestKeeper> keeper_;
  const std::shared_ptr<const Fingerprint> fingerprint_;
  const int64_t context_;
  text::Tokenizer tokenizer_;
  text::Detokenizer detokenizer_;
  std::optional<text::StopStrings> stops_;
  const bool wants_logprobs_, lasts_;
  const Once once_;
  std::unique_ptr<KeptRequest> record_;
  std::vector<web::TokenLogprob> probabilities_;
  size_t prompt_tokens_ = 0, completion_tokens_ = 0;
  bool listened_ = true;
  std::optional<Instant> unheard_since_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> id_ = 0;  // the source's; 0: it has none yet
};

// Answers that can be read again, by their names and keys. Any thread.
class TextService::Kept {
 public:
  void keep(const std::shared_ptr<Generating>& generating);  // and lets go of what has ended a while ago
  std::shared_ptr<Generating> find(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto kept = kept_.find(id);
    return kept == kept_.end() ? nullptr : kept->second;
  }

  // Whoever was asked for under its key and has not failed; nothing: from now on this one is.
  std::shared_ptr<Generating> find_or_enter(const std::shared_ptr<Generating>& generating);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Generating>> kept_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<Generating>> once_ WEFT_GUARDED_BY(mutex_);  // by once().name
};

TextService::TextService(TextModel model, std::unique_ptr<TokenSource> source,
                         std::shared_ptr<RequestKeeper> keeper)
    : model_(std::move(model)),
      fingerprint_(std::make_shared<Fingerprint>(model_.fingerprint)),
      kept_(std::make_shared<Kept>()),
      keeper_(std::move(keeper)),
      source_(std::move(source)) {}
TextService::~TextService() = default;

void TextService::set_fingerprint(std::string fingerprint) { fingerprint_->set(std::move(fingerprint)); }

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
      return fail(ErrorCode::Unsupported, "'" + model_.name +
                                              "' has no chat template: ask /v1/completions, or serve it with "
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

void TextService::Kept::keep(const std::shared_ptr<Generating>& generating) {
  const Instant now = steady_now();
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

std::shared_ptr<TextService::Generating> TextService::Kept::find_or_enter(
    const std::shared_ptr<Generating>& generating) {
  const MutexLock lock(mutex_);
  std::erase_if(once_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Generating>& entry = once_[generating->once().name];
  if (auto known = entry.lock(); known && !known->answer.has_failed()) return known;
  entry = generating;
  return nullptr;
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
    generating->answer.set_ended(steady_now());
  };
  auto prompt = prompt_of(request);
  prepared(bytes);  // before anybody hears of it
  if (!prompt)
    return refuse(of_field(prompt.error(), request.kind == web::ApiKind::Chat ? "messages" : "prompt"));
  std::vector<std::string> stops = prompt->stops;
  if (const Status made = generating->set_stops(std::move(prompt->stops), prompt->tokens.size()); !made)
    return refuse(of_field(made.error(), "stop"));
  Request wanted;
  wanted.prompt = std::move(prompt->tokens);
  wanted.ends = std::move(prompt->ends);
  wanted.tokens_max = request.max_tokens ? int64_t{*request.max_tokens} : -1;
  wanted.sampling = {.temperature = request.temperature,
                     .top_p = request.top_p,
                     .top_k = request.top_k,
                     .seed = request.seed ? static_cast<uint64_t>(*request.seed) : random_number(),
                     .alternatives = request.logprobs ? int64_t{*request.logprobs} : -1};
  if (keeper_ && generating->lasts())
    generating->set_record(record_of(*generating, std::move(stops), wanted));
  Reopened told = told_to(generating);
  source_->add(std::move(wanted), std::move(told.listener),
               [kept = kept_, generating, begun = std::move(told.begun)](uint64_t id) {
                 if (generating->lasts()) kept->keep(generating);
                 return begun(id);
               });
}

TextService::Reopened TextService::told_to(const std::shared_ptr<Generating>& generating) {
  return {
      .listener = {
          .on_token = [generating](const Generated& generated) { return generating->on_token(generated); },
          .on_end = [generating](Finish finish,
                                 const Status& status) { generating->on_end(finish, status); }},
      .begun = [generating](uint64_t id) { return generating->set_id(id); }};
}

std::unique_ptr<KeptRequest> TextService::record_of(const Generating& generating,
                                                    std::vector<std::string> stops,
                                                    const Request& request) const {
  const web::Generation& generation = generating.answer.generation();
  auto record = std::make_unique<KeptRequest>(KeptRequest{.id = generation.id,
                                                          .created = generation.created,
                                                          .kind = generation.kind,
                                                          .includes_usage = generation.includes_usage,
                                                          .stops = std::move(stops),
                                                          .request = request,
                                                          .once = generating.once()});
  const int64_t left = source_->context() - static_cast<int64_t>(request.prompt.size());
  if (request.tokens_max < 0) record->request.tokens_max = std::max<int64_t>(left, 0);
  return record;
}

// It can be read at once, and begins as soon as the source has it.
Result<TextService::Reopened> TextService::reopen(const KeptRequest& kept) {
  web::Generation generation = generation_of(kept.kind, kept.id, kept.created, kept.includes_usage);
  const bool wants_logprobs = kept.request.sampling.alternatives >= 0;
  const auto generating =
      std::make_shared<Generating>(*this, std::move(generation), wants_logprobs, true, kept.once);
  WEFT_TRY_STATUS(generating->set_stops(kept.stops, kept.request.prompt.size()));
  kept_->keep(generating);
  if (!kept.once.name.empty()) kept_->find_or_enter(generating);
  return told_to(generating);
}

web::Generation TextService::generation_of(web::ApiKind kind, std::string id, int64_t created,
                                           bool includes_usage) const {
  return {.id = std::move(id),
          .created = created,
          .model = model_.name,
          .system_fingerprint = fingerprint_->get(),
          .kind = kind,
          .includes_usage = includes_usage};
}

std::shared_ptr<web::OpenRequest> TextService::start(web::GenerateRequest request,
                                                     std::shared_ptr<web::Sink> sink) {
  const bool is_chat = request.kind == web::ApiKind::Chat;
  web::Generation generation = generation_of(request.kind, (is_chat ? "chatcmpl-" : "cmpl-") + fresh_id(),
                                             std::time(nullptr), request.includes_usage);
  const Once once = request.once ? digest_of(*request.once) : Once{};
  const auto generating =
      std::make_shared<Generating>(*this, std::move(generation), request.logprobs.has_value(),
                                   request.is_stream || request.once.has_value(), once);
  if (std::exchange(request.once, std::nullopt))
    if (auto known = kept_->find_or_enter(generating)) {
      if (known->once().asked == once.asked)
        known->answer.attach(std::move(sink));
      else
        sink->on_error(asked_otherwise());
      return known;
    }
  generating->answer.attach(std::move(sink));
  const size_t bytes = bytes_of(request);
  if (!may_prepare(bytes)) {
    generating->answer.end(web::to_api_error(
        {ErrorCode::ResourceExhausted, "more prompts wait than there is room for; try again later"}));
    return generating;
  }
  tokenizing_.post(
      [this, bytes, request = std::move(request), generating] { begin(request, bytes, generating); });
  return generating;
}

std::shared_ptr<web::OpenRequest> TextService::resume_kept(const std::string& id,
                                                           const std::shared_ptr<web::Sink>& sink) {
  const std::shared_ptr<Generating> found = kept_->find(id);
  if (found) found->answer.attach(sink);
  return found;
}

std::shared_ptr<web::OpenRequest> TextService::resume(const std::string& id,
                                                      std::shared_ptr<web::Sink> sink) {
  auto found = resume_kept(id, sink);
  if (!found) sink->on_error(no_such_stream(id));
  return found;
}

void TextService::probe() const {
  source_->add({.prompt = {0}, .tokens_max = 1, .sampling = {.temperature = 0}},
               {.on_token = [](const Generated&) { return true; }, .on_end = [](Finish, const Status&) {}});
}

web::Health TextService::health() const {
  const Instant now = steady_now();
  const TokenSource::Pulse pulse = source_->pulse();
  const auto ago =
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - pulse.last_pass).count());
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
