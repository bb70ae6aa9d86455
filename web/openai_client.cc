#include "web/openai_client.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "web/json_reader.h"
#include "web/message.h"
#include "web/openai.h"

namespace weft::web {

namespace {

constexpr size_t kMessageShown = 2000, kModelsMax = 4096, kStreamIdMax = 64;

std::string_view role_name(ChatMessage::Role role) {
  switch (role) {
    case ChatMessage::Role::System:
      return "system";
    case ChatMessage::Role::User:
      return "user";
    case ChatMessage::Role::Assistant:
      return "assistant";
  }
  return "user";
}

Json prompt_json(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  if (const auto* tokens = std::get_if<std::vector<uint32_t>>(&prompt)) return *tokens;
  Json list = Json::array();
  for (const ChatMessage& message : std::get<std::vector<ChatMessage>>(prompt))
    list.push_back({{"role", role_name(message.role)}, {"content", message.content}});
  return list;
}

// A field of that type, or null.
const Json* field(const Json& object, const char* name, Json::value_t type) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() || at->type() != type ? nullptr : &*at;
}
std::string text_field(const Json& object, const char* name) {
  const Json* found = field(object, name, Json::value_t::string);
  return found == nullptr ? std::string() : found->get<std::string>();
}
uint64_t count_field(const Json& object, const char* name) {
  const Json* found = field(object, name, Json::value_t::number_unsigned);
  return found == nullptr ? 0 : found->get<uint64_t>();
}

tl::unexpected<Error> no_such_answer(const std::string& what) {
  return fail(ErrorCode::Corrupted, "the service does not answer by the OpenAI API: " + what);
}

ErrorCode code_of(int status, const std::string& code) {
  if (code == kContextLengthExceeded) return ErrorCode::OutOfRange;
  switch (status) {
    case 401:
    case 403:
      return ErrorCode::PermissionDenied;
    case 404:
      return ErrorCode::NotFound;
    case 408:
      return ErrorCode::Timeout;
    case 413:
    case 429:
      return ErrorCode::ResourceExhausted;
    case 502:
    case 503:
    case 504:
      return ErrorCode::Unavailable;
    default:
      return status >= 300 && status < 500 ? ErrorCode::InvalidArgument : ErrorCode::Internal;
  }
}

// Of the error within a stream, which has no status any more.
ErrorCode code_of_type(const std::string& type) {
  if (type == "invalid_request_error") return ErrorCode::InvalidArgument;
  if (type == "rate_limit_error") return ErrorCode::ResourceExhausted;
  return type == "service_unavailable_error" ? ErrorCode::Unavailable : ErrorCode::Internal;
}

std::string shown_message(const Json& error) {
  return printable(text_field(error, "message").substr(0, kMessageShown), Lines::Many);
}

AnswerChunk chunk_of(const Json& json) {
  AnswerChunk chunk{.system_fingerprint = text_field(json, "system_fingerprint")};
  if (const Json* usage = field(json, "usage", Json::value_t::object))
    chunk.usage = Usage{count_field(*usage, "prompt_tokens"), count_field(*usage, "completion_tokens")};
  const Json* choices = field(json, "choices", Json::value_t::array);
  if (choices == nullptr || choices->empty()) return chunk;
  const Json& choice = choices->front();
  chunk.reason = text_field(choice, "finish_reason");
  chunk.text = text_field(choice, "text");
  if (const Json* delta = field(choice, "delta", Json::value_t::object))
    chunk.text += text_field(*delta, "content");
  return chunk;
}

}  // namespace

std::string_view path_of(ApiKind kind) {
  return kind == ApiKind::Chat ? "/chat/completions" : "/completions";
}

std::string render_request(const GenerateRequest& request) {
  const bool is_chat = request.kind == ApiKind::Chat;
  Json json = {{"model", request.model},
               {is_chat ? "messages" : "prompt", prompt_json(request.prompt)},
               {"temperature", request.temperature},
               {"top_p", request.top_p}};
  if (request.max_tokens) json["max_tokens"] = *request.max_tokens;
  if (request.top_k > 0) json["top_k"] = request.top_k;  // others do not know it
  if (request.seed) json["seed"] = *request.seed;
  if (!request.stop.empty()) json["stop"] = request.stop;
  if (request.is_stream) json["stream"] = true;
  if (request.includes_usage) json["stream_options"] = {{"include_usage", true}};
  if (request.logprobs && is_chat) json["logprobs"] = true, json["top_logprobs"] = *request.logprobs;
  if (request.logprobs && !is_chat) json["logprobs"] = *request.logprobs;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<std::string>> parse_models(std::string_view body) {
  const auto json = parse_json_object(body);
  if (!json) return no_such_answer(json.error().message);
  const Json* data = field(*json, "data", Json::value_t::array);
  if (data == nullptr) return no_such_answer("its list of models has no data");
  std::vector<std::string> names;
  for (const Json& model : *data) {
    std::string name = text_field(model, "id");
    if (name.empty()) return no_such_answer("a model has no id");
    names.push_back(std::move(name));
    if (names.size() > kModelsMax) return no_such_answer("it has too many models");
  }
  return names;
}

Result<AnswerChunk> parse_chunk(std::string_view data) {
  const auto json = parse_json_object(data);
  if (!json) return no_such_answer(json.error().message);
  if (const Json* error = field(*json, "error", Json::value_t::object)) {
    const std::string message = shown_message(*error);
    const ErrorCode code = text_field(*error, "code") == kContextLengthExceeded
                               ? ErrorCode::OutOfRange
                               : code_of_type(text_field(*error, "type"));
    return fail(code, "the service says: " + (message.empty() ? "it has failed" : message));
  }
  return chunk_of(*json);
}

Error error_of_answer(int status, std::string_view body, std::string_view retry_after) {
  std::string message, code;
  if (const auto json = parse_json_object(body)) {
    if (const Json* error = field(*json, "error", Json::value_t::object)) {
      message = shown_message(*error);
      code = text_field(*error, "code");
    }
  }
  message = "the service answers " + status_line(status) + (message.empty() ? "" : ": " + message);
  if (!retry_after.empty()) message += "; try again in " + printable(retry_after.substr(0, 32)) + " s";
  return {code_of(status, code), std::move(message)};
}

std::optional<EventId> parse_event_id(std::string_view id) {
  const size_t dash = id.rfind('-');
  if (dash == id.npos || dash == 0 || dash > kStreamIdMax) return {};
  // It becomes a part of a path: letters and digits, and what joins them.
  const std::string_view stream = id.substr(0, dash);
  const bool is_plain = std::ranges::all_of(stream, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  const auto number = is_plain ? events_seen(id, stream) : std::nullopt;
  if (!number || *number == 0) return {};
  return EventId{std::string(stream), *number};
}

}  // namespace weft::web
