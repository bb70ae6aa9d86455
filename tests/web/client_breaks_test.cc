// Connections that break in the middle of an answer.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/web/asking.h"
#include "tests/web/client.h"
#include "web/openai.h"

namespace weft::web::test {
namespace {

using std::chrono::milliseconds;

// Answers as the API does, but hangs up when so many events are sent; each connection has its own number.
class Breaking {
 public:
  Breaking(std::vector<size_t> events, size_t words) : events_(std::move(events)), words_(words) {}
  void operator()(const Request& request, const Responder& responder) {
    const std::string last(request.header("last-event-id").value_or(""));
    asked.push_back(request.method + " " + request.path + " " + last);
    keys.emplace_back(request.header("idempotency-key").value_or(""));
    EventWriter writer({.id = "r-a", .model = "fake"},
                       last.empty() ? 0 : events_seen(last, "r-a").value_or(0));
    const size_t turn = turn_++;
    responder.start_stream();
    size_t left = turn < events_.size() ? events_[turn] : SIZE_MAX;
    for (size_t i = 1; i <= words_; ++i) {
      const std::string event = writer.piece({.text = std::to_string(i) + " "});
      if (!event.empty() && left-- == 0) return;
      responder.write(event);
    }
    responder.write(writer.finish({}));
    responder.finish();
  }
  std::vector<std::string> asked, keys;

 private:
  const std::vector<size_t> events_;
  const size_t words_;
  size_t turn_ = 0;
};

constexpr ClientLimits kHasty{
    .retry_first = milliseconds(1), .retry_longest = milliseconds(4), .retry_for = kPatience};

TEST(WebClient, AStreamThatBreaksGoesOnWithoutAGapOrARepeat) {
  const auto breaking = std::make_shared<Breaking>(std::vector<size_t>{2, 1, 3}, 9);
  auto server = serve(std::make_shared<Answers>(
      [=](const auto& request, const auto& responder) { (*breaking)(request, responder); }));
  Asking asking(url_of(*server), kHasty);
  const auto end = asking.complete("anything");
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(asking.text, "1 2 3 4 5 6 7 8 9 ");
  EXPECT_EQ(end->breaks, 3u);
  server.reset();
  EXPECT_EQ(breaking->asked,
            (std::vector<std::string>{"POST /v1/completions ", "GET /v1/streams/r-a r-a-2",
                                      "GET /v1/streams/r-a r-a-3", "GET /v1/streams/r-a r-a-6"}));
}

TEST(WebClient, WhatIsAskedAnewHasTheSameKey) {
  const auto breaking = std::make_shared<Breaking>(std::vector<size_t>{0, 0}, 3);
  auto server = serve(std::make_shared<Answers>(
      [=](const auto& request, const auto& responder) { (*breaking)(request, responder); }));
  Asking asking(url_of(*server), kHasty);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(asking.complete("anything"));
  server.reset();
  ASSERT_EQ(breaking->keys.size(), 4u);
  EXPECT_GT(breaking->keys[0].size(), 16u);
  EXPECT_EQ(breaking->keys[1], breaking->keys[0]);
  EXPECT_EQ(breaking->keys[2], breaking->keys[0]);
  EXPECT_NE(breaking->keys[3], breaking->keys[0]) << "another request";
}

TEST(WebClient, ModelsAreAskedForAgainWhereTheServiceIsStartedAnew) {
  // It hangs up once, knows none at first, and then has one.
  const auto turn = std::make_shared<std::atomic<int>>(0);
  auto server = serve(std::make_shared<Answers>([=](const auto&, const auto& responder) {
    const int now = (*turn)++;
    if (now == 0) return responder.start_stream();  // and no more
    std::vector<ModelInfo> models;
    if (now == 3) models.push_back({.id = "fake"});
    responder.send({.status = 200, .body = render_models(models)});
  }));
  EXPECT_EQ(Asking(url_of(*server), kHasty).client->models().value(), std::vector<std::string>{"fake"});
  EXPECT_EQ(*turn, 4);
}

TEST(WebClient, WhoeverHangsUpEachTimeHasNoModels) {
  const auto turn = std::make_shared<std::atomic<int>>(0);
  auto server = serve(std::make_shared<Answers>([=](const auto&, const auto& responder) {
    ++*turn;
    responder.start_stream();
  }));
  const auto models = Asking(url_of(*server), kHasty).client->models();
  ASSERT_FALSE(models);
  EXPECT_EQ(models.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(*turn, 4);
  // One that answers and has none is not waited for.
  auto empty = serve(std::make_shared<Answers>([](const auto&, const auto& responder) {
    responder.send({.status = 200, .body = render_models({})});
  }));
  EXPECT_TRUE(Asking(url_of(*empty), kHasty).client->models().value().empty());
}

TEST(WebClient, TriesEndAfterAWhileWithoutProgress) {
  const auto breaking = std::make_shared<Breaking>(std::vector<size_t>(10'000, 2), 1000);
  auto first = std::make_shared<std::atomic<bool>>(true);
  // The first connection tells two events; those after it are refused with 503.
  auto server = serve(std::make_shared<Answers>([=](const auto& request, const auto& responder) {
    if (first->exchange(false)) return (*breaking)(request, responder);
    responder.send({.status = 503, .body = render_error({.message = "coming back"})});
  }));
  ClientLimits limits = kHasty;
  limits.retry_for = milliseconds(50);
  Asking asking(url_of(*server), limits);
  const auto end = asking.complete("anything");
  EXPECT_EQ(code_of(end), ErrorCode::Unavailable);
  EXPECT_NE(end.error().message.find("coming back"), std::string::npos) << end.error().message;
  EXPECT_EQ(asking.text, "1 2 ");
}

TEST(WebClient, AServiceThatForgotTheStreamIsNotAskedForEver) {
  auto first = std::make_shared<std::atomic<bool>>(true);
  const auto breaking = std::make_shared<Breaking>(std::vector<size_t>{2}, 1000);
  auto server = serve(std::make_shared<Answers>([=](const auto& request, const auto& responder) {
    if (first->exchange(false)) return (*breaking)(request, responder);
    responder.send({.status = 404, .body = render_error({.message = "no such stream"})});
  }));
  Asking asking(url_of(*server), kHasty);
  EXPECT_EQ(code_of(asking.complete("anything")), ErrorCode::NotFound);
}

TEST(WebClient, EventsThatWereToldAreNotToldAgain) {
  auto first = std::make_shared<std::atomic<bool>>(true);
  // It ignores Last-Event-ID, and begins anew.
  auto server = serve(std::make_shared<Answers>([=](const auto&, const auto& responder) {
    EventWriter writer({.id = "r", .model = "fake"});
    responder.start_stream();
    for (const char* text : {"a", "b"}) responder.write(writer.piece({.text = text}));
    if (first->exchange(false)) return;
    responder.write(writer.piece({.text = "c"}));
    responder.write(writer.finish({}));
    responder.finish();
  }));
  Asking asking(url_of(*server), kHasty);
  ASSERT_TRUE(asking.complete("anything"));
  EXPECT_EQ(asking.text, "abc");
}

TEST(WebClient, AGapIsAnError) {
  auto first = std::make_shared<std::atomic<bool>>(true);
  auto server = serve(std::make_shared<Answers>([=](const auto&, const auto& responder) {
    EventWriter writer({.id = "r", .model = "fake"}, first->load() ? 0 : 2);
    responder.start_stream();
    responder.write(writer.piece({.text = "a"}));
    if (first->exchange(false)) return;
    for (const char* text : {"b", "c"}) responder.write(writer.piece({.text = text}));
    responder.write(writer.finish({}));
    responder.finish();
  }));
  Asking asking(url_of(*server), kHasty);
  EXPECT_EQ(code_of(asking.complete("anything")), ErrorCode::Corrupted);
  EXPECT_EQ(asking.text, "a");
}

TEST(WebClient, IdsOfOtherServicesMeanNothing) {
  auto server = serve(std::make_shared<Answers>([](const auto&, const auto& responder) {
    responder.start_stream();
    for (const char* text : {"a", "b"})
      responder.write(
          render_event("chatcmpl-123", R"({"choices":[{"text":")" + std::string(text) + R"("}]})"));
    responder.write(render_event("", "[DONE]"));
    responder.finish();
  }));
  Asking asking(url_of(*server), kHasty);
  ASSERT_TRUE(asking.complete("anything"));
  EXPECT_EQ(asking.text, "ab");
}

// A line to a server that is cut whenever so many bytes have come from there.
class ShortLine {
 public:
  ShortLine(const net::Endpoint& server, size_t bytes) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = {false, {"127.0.0.1", ntohs(address.sin_port)}, "/v1"};
    thread_ = std::jthread([listener = listener_, server, bytes] {
      for (int near = 0; (near = ::accept(listener, nullptr, nullptr)) >= 0; ::close(near))
        carry(near, server, bytes);
    });
  }
  ~ShortLine() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  const Url& url() const { return url_; }

 private:
  static sockaddr_in loopback(uint16_t port) {
    return {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  }
  // At most `most` bytes; false: the end.
  static bool pass(int from, int to, size_t most, size_t& passed) {
    std::array<char, 512> bytes;
    const ssize_t size = ::recv(from, bytes.data(), std::min(most, bytes.size()), 0);
    if (size <= 0 || ::send(to, bytes.data(), static_cast<size_t>(size), MSG_NOSIGNAL) != size) return false;
    passed += static_cast<size_t>(size);
    return true;
  }
  static void carry(int near, const net::Endpoint& server, size_t bytes) {
    const int far = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(server.port);
    bool is_open = ::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    for (size_t back = 0, there = 0; is_open && back < bytes;) {
      std::array<pollfd, 2> ends{{{near, POLLIN, 0}, {far, POLLIN, 0}}};
      if (::poll(ends.data(), ends.size(), -1) < 0) break;
      if (ends[0].revents != 0) is_open = pass(near, far, SIZE_MAX, there);
      if (is_open && ends[1].revents != 0) is_open = pass(far, near, bytes - back, back);
    }
    ::close(far);
  }
  int listener_ = -1;
  Url url_;
  std::jthread thread_;
};

TEST(WebClient, TheApiAndTheClientMendABadLineTogether) {
  const Fake fake;
  for (const size_t bytes : {900, 1001, 2500}) {
    const ShortLine line(fake.server->endpoint(), bytes);
    Asking asking(line.url(), kHasty);
    const auto end = asking.complete("count 50");
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_GT(end->breaks, 2u) << bytes;
    std::string expected = "1";
    for (int i = 2; i <= 50; ++i) expected += " " + std::to_string(i);
    EXPECT_EQ(asking.text, expected) << bytes;
    EXPECT_EQ(end->usage.completion_tokens, 50u);
  }
}

}  // namespace
}  // namespace weft::web::test
