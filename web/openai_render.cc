#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "web/message.h"
#include "web/openai.h"

namespace weft::web {

namespace {

using OrderedJson = nlohmann::ordered_json;

// Bytes that are no UTF-8 become U+FFFD: nothing that is rendered can throw.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

std::string_view name_of(FinishReason reason) { return reason == FinishReason::Stop ? "stop" : "length"; }

uint64_t count_characters(std::string_view text) {
  return static_cast<uint64_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// JSON has no infinity.
double finite(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

OrderedJson usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson chat_token(const TokenLogprob& token) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : token.token) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.token}, {"logprob", finite(token.logprob)}, {"bytes", std::move(bytes)}};
}

OrderedJson chat_logprobs(const std::vector<TokenLogprob>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprob& token : tokens) {
    OrderedJson entry = chat_token(token), top = OrderedJson::array();
    for (const TokenLogprob& other : token.top) top.push_back(chat_token(other));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// `offset` is where the first token begins in the text, in characters.
OrderedJson completion_logprobs(const std::vector<TokenLogprob>& tokens, uint64_t offset) {
  OrderedJson texts = OrderedJson::array(), values = OrderedJson::array(), tops = OrderedJson::array(),
              offsets = OrderedJson::array();
  for (const TokenLogprob& token : tokens) {
    texts.push_back(token.token);
    values.push_back(finite(token.logprob));
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : token.top) top[other.token] = finite(other.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += count_characters(token.token);
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(texts)},
          {"top_logprobs", std::move(tops)}};
}

OrderedJson head_of(const Generation& generation, std::string_view object, const std::string& fingerprint) {
  OrderedJson json = {{"id", generation.id},
                      {"object", object},
                      {"created", generation.created},
                      {"model", generation.model}};
  if (!fingerprint.empty()) json["system_fingerprint"] = fingerprint;
  return json;
}

const std::string& last_fingerprint(const Generation& generation, const GenerationEnd& end) {
  return end.system_fingerprint.empty() ? generation.system_fingerprint : end.system_fingerprint;
}

// One choice of a stream. Completions say text, chats a delta.
OrderedJson chunk_of(const Generation& generation, OrderedJson payload, OrderedJson logprobs,
                     OrderedJson reason, const std::string& fingerprint) {
  const bool is_chat = generation.kind == ApiKind::Chat;
  OrderedJson choice = {{"index", 0}};
  choice[is_chat ? "delta" : "text"] = std::move(payload);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(reason);
  OrderedJson json = head_of(generation, is_chat ? "chat.completion.chunk" : "text_completion", fingerprint);
  json["choices"] = OrderedJson::array({std::move(choice)});
  if (generation.includes_usage) json["usage"] = nullptr;
  return json;
}

OrderedJson error_of(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

OrderedJson model_of(const ModelInfo& model) {
  return {{"id", model.id}, {"object", "model"}, {"created", model.created}, {"owned_by", "weft"}};
}

}  // namespace

std::string render_error(const ApiError& error) { return dump(error_of(error)); }
std::string render_model(const ModelInfo& model) { return dump(model_of(model)); }
std::string render_models(const std::vector<ModelInfo>& models) {
  OrderedJson data = OrderedJson::array();
  for (const ModelInfo& model : models) data.push_back(model_of(model));
  return dump({{"object", "list"}, {"data", std::move(data)}});
}

std::optional<uint64_t> events_seen(std::string_view event_id, std::string_view generation_id) {
  const bool is_ours = event_id.size() > generation_id.size() + 1 && event_id.starts_with(generation_id) &&
                       event_id[generation_id.size()] == '-';
  if (!is_ours) return {};
  const std::string_view digits = event_id.substr(generation_id.size() + 1);
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return count;
}

// ---- whole

void ObjectWriter::add(const Piece& piece) {
  text_ += piece.text;
  logprobs_.insert(logprobs_.end(), piece.logprobs.begin(), piece.logprobs.end());
}

std::string ObjectWriter::finish(const GenerationEnd& end) const {
  const bool is_chat = generation_.kind == ApiKind::Chat;
  OrderedJson choice = {{"index", 0}};
  if (is_chat)
    choice["message"] = {{"role", "assistant"}, {"content", text_}, {"refusal", nullptr}};
  else
    choice["text"] = text_;
  choice["logprobs"] = logprobs_.empty() ? OrderedJson(nullptr)
                       : is_chat         ? chat_logprobs(logprobs_)
                                         : completion_logprobs(logprobs_, 0);
  choice["finish_reason"] = name_of(end.reason);
  OrderedJson json = head_of(generation_, is_chat ? "chat.completion" : "text_completion",
                             last_fingerprint(generation_, end));
  json["choices"] = OrderedJson::array({std::move(choice)});
  json["usage"] = usage_of(end.usage);
  return dump(json);
}

// ---- events

std::string EventWriter::event(const std::string& data) {
  ++count_;
  return count_ <= seen_ ? "" : render_event(generation_.id + "-" + std::to_string(count_), data);
}

std::string EventWriter::begin() {
  if (generation_.kind == ApiKind::Completion) return {};
  return event(dump(chunk_of(generation_, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr,
                             generation_.system_fingerprint)));
}

std::string EventWriter::piece(const Piece& piece) {
  const bool is_chat = generation_.kind == ApiKind::Chat;
  OrderedJson payload = is_chat ? OrderedJson{{"content", piece.text}} : OrderedJson(piece.text);
  OrderedJson logprobs = piece.logprobs.empty() ? OrderedJson(nullptr)
                         : is_chat              ? chat_logprobs(piece.logprobs)
                                                : completion_logprobs(piece.logprobs, text_offset_);
  text_offset_ += count_characters(piece.text);
  return event(dump(chunk_of(generation_, std::move(payload), std::move(logprobs), nullptr,
                             generation_.system_fingerprint)));
}

std::string EventWriter::finish(const GenerationEnd& end) {
  const bool is_chat = generation_.kind == ApiKind::Chat;
  const std::string& fingerprint = last_fingerprint(generation_, end);
  std::string out = event(dump(chunk_of(generation_, is_chat ? OrderedJson::object() : OrderedJson(""),
                                        nullptr, name_of(end.reason), fingerprint)));
  if (generation_.includes_usage) {
    OrderedJson usage =
        head_of(generation_, is_chat ? "chat.completion.chunk" : "text_completion", fingerprint);
    usage["choices"] = OrderedJson::array();
    usage["usage"] = usage_of(end.usage);
    out += event(dump(usage));
  }
  return out += event("[DONE]");
}

std::string EventWriter::fail(const ApiError& error) { return event(dump(error_of(error))); }

}  // namespace weft::web
