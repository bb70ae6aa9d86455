// The page as a browser meets it: over a real socket.
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/ui/fake_views.h"
#include "tests/web/client.h"
#include "ui/assets.h"
#include "ui/page_handler.h"
#include "ui/qr.h"

namespace weft::ui {
namespace {

using test::FakeBroker;
using test::FakeModels;
using web::test::Client;
using web::test::Reply;
using Json = nlohmann::json;

struct Served : ::testing::Test {
  std::shared_ptr<FakeBroker> broker = std::make_shared<FakeBroker>();
  std::shared_ptr<FakeModels> models = std::make_shared<FakeModels>();
  std::unique_ptr<web::Server> server;
  std::string host;

  void begin(const std::string& key = {}, bool has_models = true) {
    PageParts parts{.access = {.hosts = {{.name = "127.0.0.1"}}, .key = key},
                    .broker = broker,
                    .models = has_models ? models : nullptr,
                    .clock = [] { return Instant(std::chrono::steady_clock::now().time_since_epoch()); },
                    .unix_ms = [] { return int64_t{1}; },
                    .draw = [] { return std::string("drawn"); }};
    auto started = web::Server::start({.limits = page_limits()}, make_page(std::move(parts)));
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
    host = net::to_string(server->endpoint());
  }
  std::string head(const std::string& method, const std::string& path, const std::string& headers) const {
    return method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers;
  }
  Reply get(const std::string& path, const std::string& headers = {}) const {
    return web::test::ask(server->endpoint(), head("GET", path, headers) + "\r\n");
  }
  std::string posting(const std::string& path, const std::string& body,
                      const std::string& headers = {}) const {
    return head("POST", path, headers) + "Origin: http://" + host +
           "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  Reply post(const std::string& path, const std::string& body, const std::string& headers = {}) const {
    return web::test::ask(server->endpoint(), posting(path, body, headers));
  }
};

TEST_F(Served, ThePageAndItsFilesAreThere) {
  begin();
  const Reply page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.headers.at("content-security-policy").find("default-src 'self'"), 0u);
  EXPECT_EQ(page.headers.at("content-security-policy").find("unsafe"), std::string::npos);
  EXPECT_EQ(page.headers.at("x-frame-options"), "DENY");
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(page.headers.at("referrer-policy"), "no-referrer");
  EXPECT_EQ(page.headers.at("cache-control"), "no-store");
  for (const EmbeddedFile& file : embedded_files()) {
    const Reply reply = get("/" + std::string(file.name));
    EXPECT_EQ(reply.status, 200) << file.name;
    EXPECT_EQ(reply.body, file.bytes) << file.name;
    EXPECT_FALSE(file.bytes.empty()) << file.name;
  }
  for (const char* none : {"/nothing", "/../CMakeLists.txt", "/page", "//page.js", "/uplot"})
    EXPECT_EQ(get(none).status, 404) << none;
}

// Nothing in the page's own files makes markup of text, or asks another address.
TEST_F(Served, TheScriptsMakeTextAndNoMarkup) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.starts_with("uplot/")) continue;
    for (const char* word :
         {"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("})
      EXPECT_EQ(file.bytes.find(word), std::string_view::npos) << file.name << ": " << word;
    const bool may_name = file.name.ends_with(".svg") || file.name.ends_with(".js");  // of a namespace
    EXPECT_TRUE(may_name || file.bytes.find("http") == std::string_view::npos) << file.name;
    EXPECT_TRUE(file.name.ends_with(".svg") || file.bytes.find("//www.") == std::string_view::npos)
        << file.name;
    EXPECT_EQ(file.bytes.find(" style=\""), std::string_view::npos) << file.name << ": the policy forbids it";
    EXPECT_EQ(file.bytes.find(" onclick"), std::string_view::npos) << file.name;
  }
}

TEST_F(Served, AnotherNameOrOriginIsRefused) {
  begin();
  EXPECT_EQ(get("/api/state").status, 200);
  const std::string port = std::to_string(server->endpoint().port);
  host = "evil.example:" + port;
  EXPECT_EQ(get("/").status, 403);
  EXPECT_EQ(get("/api/state").status, 403);
  host = "127.0.0.1:" + port;
  const auto stop = [&](const std::string& origin) {
    const std::string body = R"({"job": 1})";
    return web::test::ask(server->endpoint(), head("POST", "/api/stop", origin) +
                                                  "Content-Type: application/json\r\nContent-Length: " +
                                                  std::to_string(body.size()) + "\r\n\r\n" + body)
        .status;
  };
  EXPECT_EQ(stop(""), 403);
  EXPECT_EQ(stop("Origin: http://evil.example\r\n"), 403);
  EXPECT_TRUE(broker->stopped.empty());
  EXPECT_EQ(stop("Origin: http://" + host + "\r\n"), 200);
  EXPECT_EQ(broker->stopped, std::vector<proto::JobNumber>{1});
}

TEST_F(Served, StopAndResumeSayWhatTheBrokerSays) {
  begin();
  EXPECT_EQ(post("/api/resume", R"({"job": 4})").status, 200);
  EXPECT_EQ(broker->resumed, std::vector<proto::JobNumber>{4});
  broker->answer = fail(ErrorCode::NotFound, "there is no job 5 of yours here");
  const Reply reply = post("/api/stop", R"({"job": 5})");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(Json::parse(reply.body)["error"], "there is no job 5 of yours here");
  for (const char* bad : {"", "{}", "[1]", R"({"job": -1})", R"({"job": "1"})", "{\"job\": 1"})
    EXPECT_EQ(post("/api/stop", bad).status, 400) << bad;
  EXPECT_EQ(post("/api/ban", R"({"peer": "a"})").status, 404);  // nothing else can be changed
  EXPECT_EQ(web::test::ask(server->endpoint(), head("GET", "/api/stop", "") + "\r\n").status, 404);
  EXPECT_EQ(
      web::test::ask(server->endpoint(), head("DELETE", "/", "Origin: http://" + host + "\r\n") + "\r\n")
          .status,
      405);
  EXPECT_EQ(broker->stopped.size(), 1u);
}

TEST_F(Served, TheStateIsJson) {
  broker->listed = {test::job_status(1, proto::JobState::Running)};
  broker->does_step(1, 1, 2.5);
  begin();
  const Json state = Json::parse(get("/api/state?job=1").body);
  EXPECT_EQ(state["job"]["curves"]["loss"][0], 2.5);
  for (const char* bad : {"job=x", "job=-1", "points=1e3", "generation=99999999999999999999", "job="})
    EXPECT_EQ(get(std::string("/api/state?") + bad).status, 400) << bad;
}

TEST_F(Served, ThePlanIsAPageWithoutScript) {
  broker->listed = {test::job_status(1, proto::JobState::Running)};
  broker->happens(
      1, {.kind = proto::JobEventKind::Plan, .seconds = 0.5, .text = "2 stages", .peers = {"a", "b"}});
  begin();
  const Reply page = get("/plan?job=1");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-security-policy").find("default-src 'none'"), 0u);
  EXPECT_NE(page.body.find("2 stages"), std::string::npos);
  EXPECT_EQ(get("/plan").status, 400);
  EXPECT_EQ(get("/plan?job=9").status, 404);
}

TEST_F(Served, AKeyIsExchangedForACookie) {
  begin("secret");
  EXPECT_EQ(get("/").status, 200);  // it holds nothing of the broker's
  EXPECT_EQ(get("/api/state").status, 403);
  EXPECT_EQ(get("/plan?job=1").status, 403);
  EXPECT_EQ(post("/api/stop", R"({"job": 1})").status, 403);
  EXPECT_EQ(post("/api/session", R"({"key": "wrong"})").status, 403);
  EXPECT_EQ(post("/api/session", R"({"key": 1})").status, 403);
  const Reply session = post("/api/session", R"({"key": "secret"})");
  ASSERT_EQ(session.status, 200);
  const std::string cookie = session.headers.at("set-cookie");
  EXPECT_NE(cookie.find("HttpOnly; SameSite=Strict; Max-Age=43200"), std::string::npos) << cookie;
  const std::string mine = "Cookie: " + cookie.substr(0, cookie.find(';')) + "\r\n";
  EXPECT_EQ(get("/api/state", mine).status, 200);
  EXPECT_EQ(get("/api/state", "Cookie: weft_ui=other\r\n").status, 403);
  EXPECT_EQ(post("/api/stop", R"({"job": 1})", mine).status, 200);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(post("/api/session", R"({"key": "wrong"})").status, 403) << i;
  const Reply closed = post("/api/session", R"({"key": "secret"})");
  EXPECT_EQ(closed.status, 429);
  EXPECT_EQ(closed.headers.count("retry-after"), 1u);
  EXPECT_EQ(get("/api/state", mine).status, 200);  // who is in stays in
}

TEST_F(Served, AModelIsTriedAsAStream) {
  begin();
  EXPECT_EQ(Json::parse(get("/api/models").body)["models"][0], "gpt");
  Client client(server->endpoint());
  client.send(
      posting("/api/try", R"({"model":"gpt","prompt":"Once","max_tokens":8,"temperature":0.5,"chat":true})"));
  EXPECT_EQ(client.read_reply().status, 200);
  const std::string text = client.read_until("\"end\":true");
  EXPECT_NE(text.find(R"({"text":"<b>upon</b> "})"), std::string::npos) << text;
  EXPECT_EQ(models->last.kind, web::ApiKind::Chat);
  EXPECT_EQ(models->last.max_tokens, 8u);
  for (const char* bad : {"{}", R"({"model":"gpt","prompt":"a","max_tokens":0,"temperature":1})",
                          R"({"model":"gpt","prompt":"a","max_tokens":9999,"temperature":1})",
                          R"({"model":"gpt","prompt":"a","max_tokens":1,"temperature":3})",
                          R"({"model":"gpt","prompt":"","max_tokens":1,"temperature":1})",
                          R"({"model":"gpt","prompt":"a","max_tokens":1,"temperature":"1"})"})
    EXPECT_EQ(post("/api/try", bad).status, 400) << bad;
}

TEST_F(Served, WithoutAServiceThereIsNothingToTry) {
  begin({}, /*has_models=*/false);
  EXPECT_EQ(get("/api/models").status, 404);
  EXPECT_EQ(post("/api/try", "{}").status, 404);
}

TEST_F(Served, ItsEndInterruptsWhatIsAsked) {
  begin();
  server.reset();
  EXPECT_TRUE(broker->is_interrupted);
}

// As wide as it is high: a character is two modules above each other. Version 4 has 33 modules, and 8 of
// margin.
TEST(Qr, AnAddressIsASquareOfHalfBlocks) {
  const auto code = qr_code("http://192.0.2.7:7780/#key=0123456789abcdef0123456789abcdef");
  ASSERT_TRUE(code) << code.error().message;
  size_t lines = 0, columns = 0;
  std::istringstream text(*code);
  for (std::string line; std::getline(text, line); ++lines) {
    const std::string modules = line.substr(9, line.size() - 13);  // without the colours
    columns = static_cast<size_t>(std::ranges::count_if(
        modules, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
    EXPECT_EQ(columns % 4, 1u) << line;
  }
  EXPECT_EQ(lines, (columns + 1) / 2);
  EXPECT_FALSE(qr_code(std::string(5000, 'a')));
}

// What others wrote stands in the tree as they published it.
TEST(Vendored, FilesAreWhatTheirSumsSay) {
  const std::string folder = WEFT_SOURCE_DIR "/ui/page/uplot/";
  std::ifstream sums(folder + "SHA256SUMS");
  size_t count = 0;
  for (std::string wanted, name; sums >> wanted >> name; ++count) {
    std::stringstream bytes;
    bytes << std::ifstream(folder + name, std::ios::binary).rdbuf();
    const std::string text = bytes.str();
    Digest digest;
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.bytes.data());
    EXPECT_EQ(to_hex(digest), wanted) << name;
    const auto asset = find_asset("/uplot/" + name);
    ASSERT_TRUE(asset) << name;
    EXPECT_EQ(asset->bytes, text) << name;
  }
  EXPECT_EQ(count, 3u);
}

}  // namespace
}  // namespace weft::ui
