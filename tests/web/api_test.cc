#include "web/api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/web/client.h"
#include "tests/web/fake_service.h"

namespace weft::web::test {
namespace {

using Json = nlohmann::json;

struct Door {
  explicit Door(ApiOptions options = {}) {
    auto started = Server::start({}, make_api(service, std::move(options)));
    EXPECT_TRUE(started) << started.error().message;
    server = std::move(*started);
  }
  net::Endpoint at() const { return server->endpoint(); }
  Reply ask(const std::string& request) const { return test::ask(at(), request); }
  std::shared_ptr<FakeService> service = std::make_shared<FakeService>();
  std::unique_ptr<Server> server;  // goes first
};

std::string complete(const std::string& prompt, const Json& more = Json::object()) {
  Json body = {{"model", "fake"}, {"prompt", prompt}};
  body.update(more);
  return post("/v1/completions", body.dump());
}
std::string chat(const std::string& text, const Json& more = Json::object()) {
  Json body = {{"model", "fake"}, {"messages", Json::array({{{"role", "user"}, {"content", text}}})}};
  body.update(more);
  return post("/v1/chat/completions", body.dump());
}
std::string get_with(const std::string& path, const std::string& header) {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + header + "\r\n\r\n";
}
Json error_of(const Reply& reply) { return Json::parse(reply.body).at("error"); }

TEST(Api, Models) {
  const Door door;
  EXPECT_EQ(Json::parse(door.ask(get("/v1/models")).body)["data"][0]["id"], "fake");
  EXPECT_EQ(Json::parse(door.ask(get("/v1/models/fake")).body)["id"], "fake");
  const Reply absent = door.ask(get("/v1/models/gpt-9"));
  EXPECT_EQ(absent.status, 404);
  EXPECT_EQ(error_of(absent)["code"], "model_not_found");
}

TEST(Api, WholeAnswers) {
  const Door door;
  const Reply one = door.ask(complete("count 5", {{"max_tokens", 3}, {"logprobs", 0}}));
  ASSERT_EQ(one.status, 200) << one.body;
  const Json completion = Json::parse(one.body);
  EXPECT_EQ(completion["choices"][0]["text"], "1 2 3");
  EXPECT_EQ(completion["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(completion["choices"][0]["logprobs"]["token_logprobs"], Json({-1.0, -2.0, -3.0}));
  EXPECT_EQ(completion["usage"]["completion_tokens"], 3);
  EXPECT_EQ(completion["system_fingerprint"], "fp-fake");
  EXPECT_EQ(one.headers.at("x-request-id"), completion["id"]);
  const Json answer = Json::parse(door.ask(chat("good day to you", {{"stop", "to"}})).body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "good day");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
}

TEST(Api, AKeyNamesARequestOfItsCaller) {
  const Door door;
  const std::string body = Json{{"model", "fake"}, {"prompt", "count 2"}}.dump();
  const auto ask_under = [&](const std::string& key) {
    return door.ask(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer me\r\nIdempotency-Key: " +
        key + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  EXPECT_EQ(ask_under("one").status, 200);
  EXPECT_EQ(door.service->last_request().once,
            (Once{.caller = "me", .key = "one", .asked = "/v1/completions\n" + body}));
  EXPECT_EQ(door.ask(complete("count 2")).status, 200);
  EXPECT_FALSE(door.service->last_request().once.has_value());
  for (const std::string& key :
       {std::string(), std::string("a b"), std::string(256, 'k'), std::string("\xc3\xa9")}) {
    const Reply reply = ask_under(key);
    EXPECT_EQ(reply.status, 400) << key;
    EXPECT_EQ(error_of(reply)["param"], "Idempotency-Key");
  }
}

TEST(Api, AStreamOfEvents) {
  const Door door;
  Client client(door.at());
  ASSERT_TRUE(
      client.send(chat("count 3", {{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  ASSERT_EQ(client.read_reply().status, 200);
  std::string text;
  for (int i = 1; i <= 6; ++i) {
    const std::string event = client.read_until("\n\n");
    const std::string head = "id: fake-0-" + std::to_string(i) + "\ndata: ";
    ASSERT_TRUE(event.starts_with(head)) << event;
    const Json json = Json::parse(event.substr(head.size()));
    if (json["choices"].empty())
      EXPECT_EQ(json["usage"]["completion_tokens"], 3);
    else
      text += json["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "1 2 3");
  EXPECT_EQ(client.read_until("\n\n"), "id: fake-0-7\ndata: [DONE]\n\n");
  EXPECT_TRUE(client.read_stream_end());
}

TEST(Api, AStreamGoesOnBehindItsLastEvent) {
  const Door door;
  const auto read_all = [&](const std::string& request) {
    Client client(door.at());
    EXPECT_TRUE(client.send(request));
    EXPECT_EQ(client.read_reply().status, 200);
    return client.read_until("[DONE]\n\n");
  };
  const std::string all = read_all(complete("count 20", {{"stream", true}}));
  const size_t from = all.find("id: fake-0-8\n");
  ASSERT_NE(from, std::string::npos);
  EXPECT_EQ(read_all(get_with("/v1/streams/fake-0", "Last-Event-ID: fake-0-7")), all.substr(from));
  EXPECT_EQ(read_all(get("/v1/streams/fake-0")), all);
  EXPECT_EQ(door.ask(get("/v1/streams/fake-9")).status, 404);
  EXPECT_EQ(door.ask(get("/v1/streams/..%2fetc")).status, 404);
  const Reply other = door.ask(get_with("/v1/streams/fake-0", "Last-Event-ID: fake-1-7"));
  EXPECT_EQ(other.status, 400);
  EXPECT_EQ(error_of(other)["param"], "Last-Event-ID");
}

TEST(Api, WhoLeavesIsCancelled) {
  const Door door;
  Client stream(door.at()), whole(door.at());
  ASSERT_TRUE(stream.send(chat("hang", {{"stream", true}})));
  EXPECT_EQ(stream.read_reply().status, 200);
  stream.close();
  EXPECT_TRUE(door.service->waits_for_cancelled(1));
  ASSERT_TRUE(whole.send(chat("hang")));
  whole.close();
  EXPECT_TRUE(door.service->waits_for_cancelled(2));
}

TEST(Api, ErrorsBeforeAndWithinAStream) {
  const Door door;
  for (const bool is_stream : {false, true}) {
    const Reply full = door.ask(complete("fail", {{"stream", is_stream}}));
    EXPECT_EQ(full.status, 429);
    EXPECT_EQ(full.headers.at("retry-after"), "1");
    EXPECT_EQ(error_of(full)["message"], "all caches are full");
  }
  EXPECT_EQ(door.ask(complete("break")).status, 503);
  Client client(door.at());
  ASSERT_TRUE(client.send(complete("break", {{"stream", true}})));
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_NE(client.read_until("\n\n").find("\"text\":\"break\""), std::string::npos);
  EXPECT_NE(client.read_until("\n\n").find("data: {\"error\":{\"message\":\"stage 2 has no peer\""),
            std::string::npos);
  EXPECT_TRUE(client.read_stream_end());
}

TEST(Api, AnAnswerThatIsCollectedIsBounded) {
  const Door door({.whole_text_max = 100});
  EXPECT_EQ(door.ask(complete("count 10")).status, 200);
  EXPECT_EQ(door.ask(complete("count 1000")).status, 500);
}

TEST(Api, BadRequests) {
  const Door door;
  const Reply bad = door.ask(complete("a", {{"n", 2}}));
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(error_of(bad)["param"], "n");
  const Reply unknown = door.ask(complete("a", {{"model", "gpt-9"}}));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(error_of(unknown)["param"], "model");
  EXPECT_EQ(door.ask(post("/v1/completions", "hello")).status, 400);
  EXPECT_EQ(door.ask(get("/v1/nothing")).status, 404);
  EXPECT_EQ(door.ask(get("/v1/streams/")).status, 404);
  const Reply method = door.ask(get("/v1/completions"));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_EQ(door.ask(post("/health", "{}")).status, 405);
  EXPECT_EQ(door.ask("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}").status, 415);
  // What the server itself refuses has the same form.
  const Reply large = door.ask("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n");
  EXPECT_EQ(large.status, 413);
  EXPECT_NE(error_of(large)["message"], "");
}

TEST(Api, TokensAndRoles) {
  const Door door({.authorize = [](std::string_view token, Access access) {
    if (access == Access::Health || token == "caller") return Verdict::Allowed;
    return token == "peer" ? Verdict::Forbidden : Verdict::Unknown;
  }});
  const Reply stranger = door.ask(get("/v1/models"));
  EXPECT_EQ(stranger.status, 401);
  EXPECT_EQ(stranger.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(error_of(stranger)["code"], "invalid_api_key");
  EXPECT_EQ(door.ask(get_with("/v1/models", "Authorization: Basic caller")).status, 401);
  EXPECT_EQ(door.ask(get_with("/v1/models", "Authorization: Bearer guess")).status, 401);
  EXPECT_EQ(door.ask(get_with("/v1/models", "Authorization: Bearer peer")).status, 403);
  EXPECT_EQ(door.ask(get_with("/v1/models", "authorization: bearer  caller")).status, 200);
  EXPECT_EQ(door.ask(get("/health")).status, 200);
  EXPECT_EQ(door.ask(complete("a")).status, 401);
}

TEST(Api, PagesOfOthersMayNotAsk) {
  const Door door({.origins = {"https://chat.example.org"}});
  EXPECT_EQ(door.ask(get_with("/v1/models", "Origin: https://evil.example.org")).status, 403);
  EXPECT_EQ(door.ask(get_with("/v1/models", "Origin: https://chat.example.org")).status, 200);
}

TEST(Api, HealthAndMetrics) {
  const Door door;
  EXPECT_EQ(door.ask(get("/health")).body, "ok: scripted\n");
  door.service->is_well = false;
  EXPECT_EQ(door.ask(get("/health")).status, 503);
  EXPECT_EQ(door.ask(complete("count 4")).status, 200);
  const Reply metrics = door.ask(get("/metrics"));
  EXPECT_TRUE(metrics.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
  EXPECT_NE(metrics.body.find("\nweft_tokens_total 4\n"), std::string::npos) << metrics.body;
  EXPECT_NE(metrics.body.find("\nweft_http_requests_total 4\n"), std::string::npos) << metrics.body;
}

}  // namespace
}  // namespace weft::web::test
