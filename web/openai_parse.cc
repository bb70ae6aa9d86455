#include <algorithm>
#include <array>

#include "web/json_reader.h"
#include "web/openai.h"

namespace weft::web {

namespace {

constexpr size_t kStopsMax = 4, kStopBytesMax = 1024;
constexpr int64_t kTokensMax = 1 << 30;
constexpr int64_t kTokenIdMax = INT32_MAX;

// A field of the API that is not implemented: the value at which it does nothing is taken.
struct Unimplemented {
  const char* name;
  bool (*is_neutral)(const Json& value);
  const char* neutral;
};

bool is_one(const Json& value) { return value.is_number() && value == 1; }
bool is_zero(const Json& value) { return value.is_number() && value == 0; }
bool is_false(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool is_flag(const Json& value) { return value.is_boolean(); }
bool is_empty(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return (value.is_array() || value.is_object()) && value.empty();
}
bool is_none(const Json& value) { return value == "none"; }
bool is_default_tier(const Json& value) { return value == "auto" || value == "default"; }
bool is_text_format(const Json& value) { return value == Json{{"type", "text"}}; }
bool is_text_alone(const Json& value) { return value == Json::array({"text"}); }
bool is_never(const Json&) { return false; }

constexpr Unimplemented kOfBoth[] = {
    {"n", is_one, "1"},
    {"presence_penalty", is_zero, "0"},
    {"frequency_penalty", is_zero, "0"},
    {"logit_bias", is_empty, "{}"},
    {"service_tier", is_default_tier, "\"auto\""},
};
constexpr Unimplemented kOfCompletions[] = {
    {"best_of", is_one, "1"},
    {"echo", is_false, "false"},
    {"suffix", is_empty, "\"\""},
};
constexpr Unimplemented kOfChat[] = {
    {"tools", is_empty, "[]"},
    {"tool_choice", is_none, "\"none\""},
    {"functions", is_empty, "[]"},
    {"function_call", is_none, "\"none\""},
    {"parallel_tool_calls", is_flag, "false"},
    {"response_format", is_text_format, "{\"type\": \"text\"}"},
    {"modalities", is_text_alone, "[\"text\"]"},
    {"audio", is_never, "null"},
    {"prediction", is_never, "null"},
    {"reasoning_effort", is_never, "null"},
    {"verbosity", is_never, "null"},
    {"web_search_options", is_never, "null"},
};
// These say something about the caller, and nothing about the text.
constexpr std::array kHarmlessTexts = {"user", "safety_identifier", "prompt_cache_key"};

ApiError not_implemented(const std::string& field, const std::string& what) {
  return {.param = field, .code = "unsupported_parameter", .message = field + ": " + what};
}

void refuse_unimplemented(FieldReader& fields, std::span<const Unimplemented> rows) {
  for (const Unimplemented& row : rows) {
    const Json* value = fields.any(row.name);
    if (value == nullptr || row.is_neutral(*value)) continue;
    fields.fail(
        not_implemented(fields.path_of(row.name),
                        std::string("it is not implemented: leave it out, or ") + "give " + row.neutral));
  }
}

void pass_harmless(FieldReader& fields) {
  for (const char* name : kHarmlessTexts) (void)fields.text(name);
  (void)fields.object("metadata");
  (void)fields.flag("store");
}

// ---- what both have

void read_max_tokens(FieldReader& fields, GenerateRequest& request) {
  const auto older = fields.integer("max_tokens", 1, kTokensMax);
  const auto newer = fields.integer("max_completion_tokens", 1, kTokensMax);
  if (older && newer && *older != *newer)
    fields.fail("max_completion_tokens", "it is given as max_tokens, too, with another number");
  if (const auto found = newer ? newer : older) request.max_tokens = static_cast<uint32_t>(*found);
}

void read_sampling(FieldReader& fields, GenerateRequest& request) {
  request.temperature = fields.number("temperature", 0, 2).value_or(1);
  request.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (request.top_p == 0) fields.fail("top_p", "it is above 0; for the likeliest token give temperature 0");
  // -1 is how other servers write "all".
  request.top_k =
      static_cast<uint32_t>(std::max<int64_t>(fields.integer("top_k", -1, kTokensMax).value_or(0), 0));
  request.seed = fields.integer("seed", INT64_MIN, INT64_MAX);
}

void read_stop(FieldReader& fields, GenerateRequest& request) {
  const Json* value = fields.any("stop");
  if (value == nullptr) return;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array()) return fields.fail("stop", "it is text, or a list of texts");
  if (list.size() > kStopsMax)
    return fields.fail("stop", "at most " + std::to_string(kStopsMax) + " texts, and there are " +
                                   std::to_string(list.size()));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = value->is_string() ? "stop" : "stop[" + std::to_string(i) + "]";
    if (!list[i].is_string())
      return fields.fail(name, "it is text, and not " + std::string(type_name(list[i])));
    auto text = list[i].get<std::string>();
    if (text.empty() || text.size() > kStopBytesMax)
      return fields.fail(name, "it has 1 to " + std::to_string(kStopBytesMax) + " bytes");
    request.stop.push_back(std::move(text));
  }
}

void read_stream(FieldReader& fields, GenerateRequest& request) {
  request.is_stream = fields.flag("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!request.is_stream) return fields.fail("stream_options", "it goes with \"stream\": true");
  FieldReader inner(*options, "stream_options.");
  request.includes_usage = inner.flag("include_usage").value_or(false);
  (void)inner.flag("include_obfuscation");  // padding against those who watch the line, which TLS hides
  inner.refuse_the_rest();
  if (inner.error()) fields.fail(*inner.error());
}

void read_shared(FieldReader& fields, GenerateRequest& request) {
  if (const auto model = fields.text("model"))
    request.model = *model;
  else
    fields.fail("model", "it is missing: give the name of a model of /v1/models");
  read_max_tokens(fields, request);
  read_sampling(fields, request);
  read_stop(fields, request);
  read_stream(fields, request);
  refuse_unimplemented(fields, kOfBoth);
  pass_harmless(fields);
}

// ---- completions

bool is_list_of_integers(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const Json& one) { return one.is_number_integer(); });
}

void read_token_ids(FieldReader& fields, const Json& list, GenerateRequest& request) {
  std::vector<uint32_t> ids;
  ids.reserve(list.size());
  for (const Json& value : list) {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kTokenIdMax};
    if (!fits)
      return fields.fail("prompt",
                         "entry " + std::to_string(ids.size()) + " is no token's number: " + value.dump());
    ids.push_back(static_cast<uint32_t>(value.get<uint64_t>()));
  }
  request.prompt = std::move(ids);
}

void read_prompt(FieldReader& fields, GenerateRequest& request) {
  const Json* value = fields.any("prompt");
  if (value == nullptr) return fields.fail("prompt", "it is missing: give text, or a list of token ids");
  if (value->is_array() && value->size() > 1 && !value->front().is_number())
    return fields.fail(
        not_implemented("prompt", "one text a request; this is a list of " + std::to_string(value->size())));
  const bool is_wrapped = value->is_array() && value->size() == 1 && !value->front().is_number();
  const Json& prompt = is_wrapped ? value->front() : *value;
  if (prompt.is_string())
    request.prompt = prompt.get<std::string>();
  else if (is_list_of_integers(prompt))
    read_token_ids(fields, prompt, request);
  else
    fields.fail("prompt", "it is text, or a list of token ids that is not empty");
}

// ---- chat

std::optional<ChatMessage::Role> role_of(const std::string& name) {
  if (name == "system" || name == "developer") return ChatMessage::Role::System;
  if (name == "user") return ChatMessage::Role::User;
  if (name == "assistant") return ChatMessage::Role::Assistant;
  return {};
}

void read_role(FieldReader& fields, ChatMessage& message) {
  const auto name = fields.text("role");
  if (!name) return fields.fail("role", "it is missing: system, developer, user or assistant");
  if (const auto role = role_of(*name))
    message.role = *role;
  else if (*name == "tool" || *name == "function")
    fields.fail(not_implemented(fields.path_of("role"), "messages of tools are not implemented"));
  else
    fields.fail("role", "it is system, developer, user or assistant");
}

// Text, or parts that are text.
void read_content(FieldReader& fields, ChatMessage& message) {
  const Json* content = fields.any("content");
  if (content == nullptr) return fields.fail("content", "it is missing");
  if (content->is_string()) {
    message.content = content->get<std::string>();
    return;
  }
  if (!content->is_array()) return fields.fail("content", "it is text, or a list of parts");
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string name = "content[" + std::to_string(i) + "]";
    const Json& part = (*content)[i];
    if (!part.is_object()) return fields.fail(name, "a part is an object");
    FieldReader inner(part, fields.path_of(name) + ".");
    if (const auto type = inner.text("type"); !type)
      inner.fail("type", "it is missing");
    else if (*type != "text")
      inner.fail(not_implemented(inner.path_of("type"), "only parts that are text are implemented"));
    if (const auto text = inner.text("text"))
      message.content += *text;
    else
      inner.fail("text", "it is missing");
    inner.refuse_the_rest();
    if (inner.error()) return fields.fail(*inner.error());
  }
}

constexpr Unimplemented kOfMessages[] = {
    {"name", is_never, "null"},          {"tool_calls", is_empty, "[]"}, {"tool_call_id", is_never, "null"},
    {"function_call", is_never, "null"}, {"refusal", is_never, "null"},  {"audio", is_never, "null"},
    {"annotations", is_empty, "[]"},
};

void read_messages(FieldReader& fields, GenerateRequest& request) {
  const Json* list = fields.list("messages");
  if (list == nullptr || list->empty())
    return fields.fail("messages", "it is a list of at least one message");
  std::vector<ChatMessage> messages(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!(*list)[i].is_object()) return fields.fail(name, "a message is an object");
    FieldReader inner((*list)[i], name + ".");
    read_role(inner, messages[i]);
    refuse_unimplemented(inner, kOfMessages);
    read_content(inner, messages[i]);
    inner.refuse_the_rest();
    if (inner.error()) return fields.fail(*inner.error());
  }
  request.prompt = std::move(messages);
}

void read_chat_logprobs(FieldReader& fields, GenerateRequest& request) {
  const bool is_wanted = fields.flag("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top && !is_wanted) return fields.fail("top_logprobs", "it goes with \"logprobs\": true");
  if (is_wanted) request.logprobs = static_cast<uint32_t>(top.value_or(0));
}

ApiResult<GenerateRequest> finish(FieldReader& fields, GenerateRequest request) {
  fields.refuse_the_rest();
  if (fields.error()) return tl::unexpected(*fields.error());
  return request;
}

}  // namespace

ApiResult<GenerateRequest> parse_completion(std::string_view body) {
  const auto json = parse_json_object(body);
  if (!json) return tl::unexpected(json.error());
  FieldReader fields(*json, "");
  GenerateRequest request{.kind = ApiKind::Completion};
  read_shared(fields, request);
  read_prompt(fields, request);
  if (const auto count = fields.integer("logprobs", 0, 5)) request.logprobs = static_cast<uint32_t>(*count);
  refuse_unimplemented(fields, kOfCompletions);
  return finish(fields, std::move(request));
}

ApiResult<GenerateRequest> parse_chat(std::string_view body) {
  const auto json = parse_json_object(body);
  if (!json) return tl::unexpected(json.error());
  FieldReader fields(*json, "");
  GenerateRequest request{.kind = ApiKind::Chat};
  read_shared(fields, request);
  read_messages(fields, request);
  read_chat_logprobs(fields, request);
  refuse_unimplemented(fields, kOfChat);
  return finish(fields, std::move(request));
}

}  // namespace weft::web
