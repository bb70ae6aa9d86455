#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "web/openai.h"

namespace weft::web {
namespace {

using Json = nlohmann::json;

Generation generation(ApiKind kind, bool includes_usage = false) {
  return {.id = "cmpl-7",
          .created = 1700000000,
          .model = "gpt",
          .system_fingerprint = "fp",
          .kind = kind,
          .includes_usage = includes_usage};
}
const GenerationEnd kEnd{.reason = FinishReason::Length,
                         .usage = {.prompt_tokens = 3, .completion_tokens = 2}};

// The data of each event, with its id.
std::vector<std::pair<std::string, std::string>> events_of(std::string text) {
  std::vector<std::pair<std::string, std::string>> events;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    const std::string event = text.substr(0, end);
    text.erase(0, end + 2);
    const size_t data = event.find("\ndata: ");
    events.emplace_back(event.substr(4, data - 4), event.substr(data + 7));
  }
  return events;
}
std::string whole_stream(const Generation& of, uint64_t seen = 0) {
  EventWriter writer(of, seen);
  std::string text = writer.begin();
  text += writer.piece({.text = "Hé"});
  text += writer.piece({.text = "y"});
  return text += writer.finish(kEnd);
}

TEST(OpenAiRender, AChatAsAnObject) {
  ObjectWriter writer(generation(ApiKind::Chat));
  writer.add({.text = "Hé"});
  writer.add({.text = "\n\"y\""});
  EXPECT_EQ(writer.finish(kEnd),
            R"({"id":"cmpl-7","object":"chat.completion","created":1700000000,"model":"gpt",)"
            R"("system_fingerprint":"fp","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"Hé\n\"y\"","refusal":null},"logprobs":null,"finish_reason":"length"}],)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}})");
}

TEST(OpenAiRender, ACompletionAsAnObjectWithLogprobs) {
  ObjectWriter writer(generation(ApiKind::Completion));
  writer.add({.text = "Hé",
              .logprobs = {{.token = "H", .logprob = -0.5, .top = {{.token = "H", .logprob = -0.5}}},
                           {.token = "é", .logprob = -std::numeric_limits<double>::infinity()}}});
  writer.add({.text = "y", .logprobs = {{.token = "y", .logprob = -1}}});
  const Json json = Json::parse(writer.finish({.reason = FinishReason::Stop, .system_fingerprint = "other"}));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["system_fingerprint"], "other");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "Héy");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"H", "é", "y"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({-0.5, -9999.0, -1.0}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], (Json{{"H", -0.5}}));
}

TEST(OpenAiRender, AChatAsEvents) {
  const auto events = events_of(whole_stream(generation(ApiKind::Chat, /*includes_usage=*/true)));
  ASSERT_EQ(events.size(), 6u);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].first, "cmpl-7-" + std::to_string(i + 1));
  EXPECT_EQ(events[0].second,
            R"({"id":"cmpl-7","object":"chat.completion.chunk","created":1700000000,"model":"gpt",)"
            R"("system_fingerprint":"fp","choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
            R"("logprobs":null,"finish_reason":null}],"usage":null})");
  EXPECT_EQ(Json::parse(events[1].second)["choices"][0]["delta"], (Json{{"content", "Hé"}}));
  const Json last = Json::parse(events[3].second);
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const Json usage = Json::parse(events[4].second);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 5);
  EXPECT_EQ(events[5].second, "[DONE]");
}

TEST(OpenAiRender, ACompletionAsEvents) {
  const auto events = events_of(whole_stream(generation(ApiKind::Completion)));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(
      events[0].second,
      R"({"id":"cmpl-7","object":"text_completion","created":1700000000,"model":"gpt",)"
      R"("system_fingerprint":"fp","choices":[{"index":0,"text":"Hé","logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(events[3].second, "[DONE]");
}

TEST(OpenAiRender, LogprobsOfAStreamGoOnWhereTheTextIs) {
  EventWriter writer(generation(ApiKind::Completion));
  (void)writer.piece({.text = "Hé", .logprobs = {{.token = "Hé"}}});
  const auto events = events_of(writer.piece({.text = "y", .logprobs = {{.token = "y", .logprob = -1}}}));
  EXPECT_EQ(Json::parse(events[0].second)["choices"][0]["logprobs"]["text_offset"], Json({2}));
  EventWriter chat(generation(ApiKind::Chat));
  const auto token = events_of(chat.piece(
      {.text = "é", .logprobs = {{.token = "\xc3", .logprob = -1, .top = {{.token = "a", .logprob = -2}}}}}));
  const Json entry = Json::parse(token[0].second)["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["bytes"], Json({0xc3}));
  EXPECT_EQ(entry["token"], "\xef\xbf\xbd");
  EXPECT_EQ(entry["top_logprobs"][0]["token"], "a");
}

// Whatever was seen, the rest is what the whole stream has behind it.
TEST(OpenAiRender, AStreamGoesOnBehindWhatWasSeen) {
  for (const ApiKind kind : {ApiKind::Chat, ApiKind::Completion}) {
    const auto all = events_of(whole_stream(generation(kind, /*includes_usage=*/true)));
    for (uint64_t seen = 0; seen <= all.size() + 2; ++seen) {
      const auto rest = events_of(whole_stream(generation(kind, /*includes_usage=*/true), seen));
      const size_t skipped = std::min<size_t>(seen, all.size());
      EXPECT_EQ(rest, std::vector(all.begin() + static_cast<long>(skipped), all.end()));
    }
  }
}

TEST(OpenAiRender, IdsOfEvents) {
  EXPECT_EQ(events_seen("cmpl-7-12", "cmpl-7"), 12u);
  for (const char* id : {"", "cmpl-7", "cmpl-7-", "cmpl-7-x", "cmpl-7-1x", "cmpl-8-1", "cmpl-7--1",
                         "cmpl-7-99999999999999999999", "cmpl-70-1"})
    EXPECT_EQ(events_seen(id, "cmpl-7"), std::nullopt) << id;
}

TEST(OpenAiRender, ModelsAndErrors) {
  EXPECT_EQ(render_models({{"gpt", 5}}),
            R"({"object":"list","data":[{"id":"gpt","object":"model","created":5,"owned_by":"weft"}]})");
  EXPECT_EQ(render_models({}), R"({"object":"list","data":[]})");
  EXPECT_EQ(render_error({.param = "stop", .message = "a \"b\" \xff"}),
            "{\"error\":{\"message\":\"a \\\"b\\\" \xef\xbf\xbd\",\"type\":\"invalid_request_error\","
            "\"param\":\"stop\",\"code\":null}}");
  const ApiError error = unknown_model("gpt-9", {"a", "b"});
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.message, "model: there is no 'gpt-9' here; there is 'a', 'b'");
}

TEST(ApiErrors, CodesBecomeStatuses) {
  EXPECT_EQ(to_api_error({ErrorCode::InvalidArgument, "x"}).status, 400);
  EXPECT_EQ(to_api_error({ErrorCode::NotFound, "x"}).status, 404);
  EXPECT_EQ(to_api_error({ErrorCode::ResourceExhausted, "x"}).status, 429);
  EXPECT_EQ(to_api_error({ErrorCode::ResourceExhausted, "x"}).retry_after, 1u);
  EXPECT_EQ(to_api_error({ErrorCode::Unavailable, "stage 2 has no peer"}).status, 503);
  EXPECT_EQ(to_api_error({ErrorCode::Unavailable, "stage 2 has no peer"}).message, "stage 2 has no peer");
  EXPECT_EQ(to_api_error({ErrorCode::Internal, "x"}).status, 500);
}

}  // namespace
}  // namespace weft::web
