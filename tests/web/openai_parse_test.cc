#include "web/openai.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace weft::web {
namespace {

using Json = nlohmann::json;

Json completion() { return {{"model", "gpt"}, {"prompt", "Once"}}; }
Json chat() {
  return {{"model", "gpt"}, {"messages", Json::array({{{"role", "user"}, {"content", "Hello"}}})}};
}
ApiResult<GenerateRequest> parse(ApiKind kind, const std::string& body) {
  return kind == ApiKind::Chat ? parse_chat(body) : parse_completion(body);
}

TEST(OpenAiParse, TheLeastThatIsARequest) {
  const auto one = parse_completion(completion().dump());
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(*one,
            (GenerateRequest{.kind = ApiKind::Completion, .model = "gpt", .prompt = std::string("Once")}));
  const auto other = parse_chat(chat().dump());
  ASSERT_TRUE(other) << other.error().message;
  const std::vector<ChatMessage> messages = {{ChatMessage::Role::User, "Hello"}};
  EXPECT_EQ(*other, (GenerateRequest{.kind = ApiKind::Chat, .model = "gpt", .prompt = messages}));
}

TEST(OpenAiParse, EveryFieldThatIsHonoured) {
  const auto request = parse_completion(R"({"model": "m", "prompt": [1, 2, 50256], "max_tokens": 7,
      "temperature": 0.5, "top_p": 0.25, "top_k": 40, "seed": -3, "stop": ["a", "\n\n"], "stream": true,
      "stream_options": {"include_usage": true}, "logprobs": 2})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(*request, (GenerateRequest{.kind = ApiKind::Completion,
                                       .model = "m",
                                       .prompt = std::vector<uint32_t>{1, 2, 50256},
                                       .max_tokens = 7,
                                       .temperature = 0.5,
                                       .top_p = 0.25,
                                       .top_k = 40,
                                       .seed = -3,
                                       .stop = {"a", "\n\n"},
                                       .is_stream = true,
                                       .includes_usage = true,
                                       .logprobs = 2}));
  const auto chat = parse_chat(R"({"model": "m", "messages": [
      {"role": "developer", "content": "Be short."},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "", "refusal": null, "tool_calls": []}],
      "max_completion_tokens": 9, "max_tokens": 9, "stop": "x", "logprobs": true, "top_logprobs": 20})");
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(*chat,
            (GenerateRequest{.kind = ApiKind::Chat,
                             .model = "m",
                             .prompt = std::vector<ChatMessage>{{ChatMessage::Role::System, "Be short."},
                                                                {ChatMessage::Role::User, "ab"},
                                                                {ChatMessage::Role::Assistant, ""}},
                             .max_tokens = 9,
                             .stop = {"x"},
                             .logprobs = 20}));
}

TEST(OpenAiParse, ValuesThatDoNothingAreTaken) {
  const Json neutral = {{"n", 1},
                        {"presence_penalty", 0},
                        {"frequency_penalty", 0.0},
                        {"logit_bias", Json::object()},
                        {"user", "me"},
                        {"metadata", {{"a", "b"}}},
                        {"store", true},
                        {"service_tier", "auto"},
                        {"seed", nullptr},
                        {"stop", nullptr},
                        {"max_tokens", nullptr},
                        {"stream_options", nullptr},
                        {"top_k", -1},
                        {"safety_identifier", "x"}};
  for (const ApiKind kind : {ApiKind::Completion, ApiKind::Chat}) {
    Json body = kind == ApiKind::Chat ? chat() : completion();
    body.update(neutral);
    const auto request = parse(kind, body.dump());
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_FALSE(request->max_tokens);
    EXPECT_EQ(request->top_k, 0u);
  }
  Json body = chat();
  body.update({{"tools", Json::array()},
               {"tool_choice", "none"},
               {"response_format", {{"type", "text"}}},
               {"modalities", {"text"}},
               {"parallel_tool_calls", true}});
  EXPECT_TRUE(parse_chat(body.dump()));
  body = completion();
  body.update({{"best_of", 1}, {"echo", false}, {"suffix", ""}, {"prompt", {"one text in a list"}}});
  EXPECT_TRUE(parse_completion(body.dump()));
}

struct BadField {
  ApiKind kind;
  const char* param;
  const char* field;  // what is put in: "name": value
};

constexpr ApiKind kText = ApiKind::Completion, kChat = ApiKind::Chat;
const BadField kBad[] = {
    // of the wrong type
    {kText, "model", R"("model": 3)"},
    {kText, "model", R"("model": null)"},
    {kText, "prompt", R"("prompt": {})"},
    {kText, "prompt", R"("prompt": [])"},
    {kText, "prompt", R"("prompt": [1, -1])"},
    {kText, "prompt", R"("prompt": [1, 2147483648])"},
    {kText, "prompt", R"("prompt": [1.5])"},
    {kText, "prompt", R"("prompt": [1, "a"])"},
    {kText, "prompt", R"("prompt": null)"},
    {kText, "max_tokens", R"("max_tokens": "7")"},
    {kText, "max_tokens", R"("max_tokens": 7.5)"},
    {kText, "temperature", R"("temperature": "hot")"},
    {kText, "stream", R"("stream": 1)"},
    {kText, "seed", R"("seed": 1.5)"},
    {kText, "stop", R"("stop": 3)"},
    {kText, "stop[1]", R"("stop": ["a", 3])"},
    {kText, "logprobs", R"("logprobs": true)"},
    {kText, "stream_options", R"("stream": true, "stream_options": [])"},
    {kText, "stream_options.include_usage", R"("stream": true, "stream_options": {"include_usage": "yes"})"},
    {kText, "user", R"("user": 3)"},
    {kText, "metadata", R"("metadata": "x")"},
    {kText, "store", R"("store": "x")"},
    {kChat, "messages", R"("messages": "Hello")"},
    {kChat, "messages", R"("messages": [])"},
    {kChat, "messages[0]", R"("messages": ["Hello"])"},
    {kChat, "messages[0].role", R"("messages": [{"content": "a"}])"},
    {kChat, "messages[0].content", R"("messages": [{"role": "user"}])"},
    {kChat, "messages[0].content", R"("messages": [{"role": "user", "content": 3}])"},
    {kChat, "messages[0].content[0]", R"("messages": [{"role": "user", "content": ["a"]}])"},
    {kChat, "messages[0].content[0].text",
     R"("messages": [{"role": "user", "content": [{"type": "text"}]}])"},
    {kChat, "logprobs", R"("logprobs": 3)"},
    // out of range
    {kText, "max_tokens", R"("max_tokens": 0)"},
    {kText, "max_tokens", R"("max_tokens": -1)"},
    {kText, "max_tokens", R"("max_tokens": 18446744073709551615)"},
    {kText, "temperature", R"("temperature": 2.1)"},
    {kText, "temperature", R"("temperature": -0.1)"},
    {kText, "top_p", R"("top_p": 0)"},
    {kText, "top_p", R"("top_p": 1.5)"},
    {kText, "top_k", R"("top_k": -2)"},
    {kText, "seed", R"("seed": 9223372036854775808)"},
    {kText, "stop", R"("stop": ["a", "b", "c", "d", "e"])"},
    {kText, "stop", R"("stop": "")"},
    {kText, "stop[0]", R"("stop": [""])"},
    {kText, "logprobs", R"("logprobs": 6)"},
    {kChat, "top_logprobs", R"("logprobs": true, "top_logprobs": 21)"},
    {kChat, "messages[0].role", R"("messages": [{"role": "king", "content": "a"}])"},
    // that do not go together
    {kText, "stream_options", R"("stream_options": {"include_usage": true})"},
    {kChat, "top_logprobs", R"("top_logprobs": 3)"},
    {kChat, "max_completion_tokens", R"("max_tokens": 3, "max_completion_tokens": 4)"},
    // known and not implemented
    {kText, "n", R"("n": 2)"},
    {kText, "n", R"("n": "many")"},
    {kText, "best_of", R"("best_of": 3)"},
    {kText, "echo", R"("echo": true)"},
    {kText, "suffix", R"("suffix": "end")"},
    {kText, "prompt", R"("prompt": ["a", "b"])"},
    {kText, "prompt", R"("prompt": [[1], [2]])"},
    {kText, "presence_penalty", R"("presence_penalty": 0.5)"},
    {kText, "frequency_penalty", R"("frequency_penalty": -1)"},
    {kText, "logit_bias", R"("logit_bias": {"50256": -100})"},
    {kText, "service_tier", R"("service_tier": "flex")"},
    {kChat, "tools", R"("tools": [{"type": "function"}])"},
    {kChat, "tool_choice", R"("tool_choice": "auto")"},
    {kChat, "functions", R"("functions": [{}])"},
    {kChat, "response_format", R"("response_format": {"type": "json_object"})"},
    {kChat, "modalities", R"("modalities": ["text", "audio"])"},
    {kChat, "audio", R"("audio": {})"},
    {kChat, "prediction", R"("prediction": {})"},
    {kChat, "reasoning_effort", R"("reasoning_effort": "low")"},
    {kChat, "verbosity", R"("verbosity": "low")"},
    {kChat, "web_search_options", R"("web_search_options": {})"},
    {kChat, "messages[0].role", R"("messages": [{"role": "tool", "content": "a"}])"},
    {kChat, "messages[0].name", R"("messages": [{"role": "user", "content": "a", "name": "me"}])"},
    {kChat, "messages[0].tool_calls",
     R"("messages": [{"role": "assistant", "content": "", "tool_calls": [1]}])"},
    {kChat, "messages[0].content[1].type",
     R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}])"},
    // not known
    {kText, "max_token", R"("max_token": 3)"},
    {kText, "messages", R"("messages": [])"},
    {kChat, "prompt", R"("prompt": "Once")"},
    {kChat, "best_of", R"("best_of": 1)"},
    {kChat, "messages[0].colour", R"("messages": [{"role": "user", "content": "a", "colour": 1}])"},
    {kText, "stream_options.fast", R"("stream": true, "stream_options": {"fast": true})"},
};

TEST(OpenAiParse, WhatIsRefusedNamesItsField) {
  for (const BadField& bad : kBad) {
    Json body = bad.kind == ApiKind::Chat ? chat() : completion();
    ASSERT_TRUE(parse(bad.kind, body.dump()));
    body.update(Json::parse("{" + std::string(bad.field) + "}"));
    const auto request = parse(bad.kind, body.dump());
    ASSERT_FALSE(request) << bad.field;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().type, "invalid_request_error");
    EXPECT_EQ(request.error().param, bad.param) << bad.field;
    EXPECT_TRUE(request.error().message.starts_with(bad.param)) << request.error().message;
  }
}

TEST(OpenAiParse, WhatIsMissingNamesItsField) {
  EXPECT_EQ(parse_completion(R"({"model": "m"})").error().param, "prompt");
  EXPECT_EQ(parse_completion(R"({"prompt": "a"})").error().param, "model");
  EXPECT_EQ(parse_chat(R"({"model": "m"})").error().param, "messages");
}

TEST(OpenAiParse, WhatIsNoRequestAtAll) {
  std::string deep =
      R"({"model": "m", "prompt": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  std::string many = R"({"model": "m", "prompt": [1)";
  for (int i = 0; i < 400'000; ++i) many += ",1";
  const std::string bodies[] = {"",
                                "hello",
                                "[1, 2]",
                                "\"text\"",
                                "{",
                                R"({"model": "m")",
                                R"({"model": "m",})",
                                R"({"model": "m"} x)",
                                R"({"temperature": 1e999})",
                                R"({"temperature": NaN})",
                                std::string("{\"model\": \"\xff\"}"),
                                std::string("{\"model\": \"a\0b\"}", 17),
                                R"({"model": "\ud800"})",
                                deep,
                                std::string(100'000, '['),
                                many + "]}"};
  for (const std::string& body : bodies)
    for (const ApiKind kind : {ApiKind::Completion, ApiKind::Chat}) {
      const auto request = parse(kind, body);
      ASSERT_FALSE(request) << body.substr(0, 60);
      EXPECT_EQ(request.error().status, 400);
      EXPECT_EQ(request.error().param, "");
      EXPECT_NE(request.error().message, "");
      EXPECT_LT(request.error().message.size(), 300u);
    }
}

TEST(OpenAiParse, ManyTokenIdsAreNotTooMany) {
  Json body = completion();
  body["prompt"] = std::vector<int>(200'000, 50256);
  const auto request = parse_completion(body.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(std::get<std::vector<uint32_t>>(request->prompt).size(), 200'000u);
}

TEST(OpenAiParse, AFieldThatWouldFillAMessageIsCut) {
  Json body = completion();
  body[std::string(100'000, 'x') + "\n"] = 1;
  const auto request = parse_completion(body.dump());
  ASSERT_FALSE(request);
  EXPECT_LT(request.error().message.size(), 200u);
}

// Any change to a request leaves one that is within its bounds, or an error that says something.
TEST(OpenAiParse, MutatedRequests) {
  const std::string bodies[] = {
      R"({"model":"m","prompt":[1,2],"max_tokens":7,"temperature":0.5,"top_p":0.2,"stop":["a"],"logprobs":2})",
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"b"}]}],"stream":true})"};
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 37);
    const ApiKind kind = seed % 2 == 0 ? ApiKind::Completion : ApiKind::Chat;
    std::string body = bodies[seed % 2];
    for (uint64_t i = rng.below(3); i <= 2; ++i) {
      const size_t at = rng.below(body.size());
      rng.below(2) == 0 ? body[at] = static_cast<char>(rng.below(256)) : body.erase(at, rng.below(4)).size();
    }
    const auto request = parse(kind, body);
    if (!request) {
      EXPECT_EQ(request.error().status, 400);
      EXPECT_NE(request.error().message, "");
      continue;
    }
    EXPECT_TRUE(request->temperature >= 0 && request->temperature <= 2);
    EXPECT_TRUE(request->top_p > 0 && request->top_p <= 1);
    EXPECT_LE(request->stop.size(), 4u);
  }
}

}  // namespace
}  // namespace weft::web
