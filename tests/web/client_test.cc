#include "web/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/web/client.h"
#include "tests/web/fake_service.h"
#include "web/api.h"
#include "web/openai.h"

namespace weft::web::test {
namespace {

using std::chrono::milliseconds;

// A handler that is a function.
class Answers final : public Handler {
 public:
  using Work = std::function<void(const Request& request, const Responder& responder)>;
  explicit Answers(Work work) : work_(std::move(work)) {}
  void on_request(Request request, Responder responder) override { work_(request, responder); }

 private:
  const Work work_;
};

std::unique_ptr<Server> serve(std::shared_ptr<Handler> handler, ServerOptions options = {}) {
  auto server = Server::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server) << server.error().message;
  return std::move(*server);
}

Url url_of(const Server& server, bool is_secure = false) { return {is_secure, server.endpoint(), "/v1"}; }

struct Asking {
  explicit Asking(const Url& url, ClientLimits limits = {}, const std::string& key = {},
                  const std::string& ca = {}) {
    auto made = web::Client::make(loop, {.url = url, .key = key, .ca_file = ca, .limits = limits});
    EXPECT_TRUE(made) << made.error().message;
    client = std::move(*made);
  }
  Result<AnswerEnd> complete(const std::string& prompt) {
    return client->generate({.model = "fake", .prompt = prompt, .includes_usage = true},
                            [&](const std::string& piece) {
                              text += piece;
                              if (on_piece) on_piece();
                            });
  }
  net::Loop loop;
  std::unique_ptr<web::Client> client;
  std::string text;
  std::function<void()> on_piece;
};

ErrorCode code_of(const Result<AnswerEnd>& end) { return end ? ErrorCode::Internal : end.error().code; }

struct Fake {
  explicit Fake(ServerOptions options = {}, ApiOptions api = {})
      : server(serve(make_api(service, std::move(api)), std::move(options))) {}
  std::shared_ptr<FakeService> service = std::make_shared<FakeService>();
  std::unique_ptr<Server> server;  // goes first
};

TEST(WebClient, ListsModels) {
  const Fake fake;
  EXPECT_EQ(Asking(url_of(*fake.server)).client->models().value(), std::vector<std::string>{"fake"});
}

TEST(WebClient, TellsAnAnswerPieceByPiece) {
  const Fake fake;
  Asking asking(url_of(*fake.server));
  size_t pieces = 0;
  asking.on_piece = [&] { ++pieces; };
  const auto end = asking.complete("count 3");
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(asking.text, "1 2 3");
  EXPECT_EQ(pieces, 3u);
  EXPECT_EQ(end->reason, "stop");
  EXPECT_EQ(end->usage.completion_tokens, 3u);
  EXPECT_EQ(end->system_fingerprint, "fp-fake");
  EXPECT_EQ(end->breaks, 0u);
}

TEST(WebClient, SpeaksTlsToWhoeverHasATrustedCertificate) {
  const Fake fake({.certificate_file = certificate_file(), .key_file = key_file()});
  Url url = url_of(*fake.server, true);
  Asking trusting(url, {}, "", certificate_file());
  ASSERT_TRUE(trusting.complete("count 200"));
  EXPECT_TRUE(trusting.text.ends_with(" 199 200"));
  url.endpoint.host = "localhost";
  EXPECT_TRUE(Asking(url, {}, "", certificate_file()).client->models());
  const auto unknown = Asking(url).client->models();
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::PermissionDenied) << unknown.error().message;
  url.endpoint.host = "127.0.0.2";  // this machine too, but not in the certificate
  const auto other = Asking(url, {}, "", certificate_file()).client->models();
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().code, ErrorCode::Timeout) << other.error().message;
}

TEST(WebClient, FilesAndKeysAreChecked) {
  net::Loop loop;
  const auto make = [&](const ClientOptions& options) {
    const auto made = web::Client::make(loop, options);
    return made ? ErrorCode::Internal : made.error().code;
  };
  const Url secure{true, {"localhost", 1}, ""};
  EXPECT_EQ(make({.url = secure, .ca_file = "/nowhere/ca.pem"}), ErrorCode::NotFound);
  EXPECT_EQ(make({.url = secure, .ca_file = key_file()}), ErrorCode::InvalidArgument);
  EXPECT_EQ(make({.key = "a\r\nX: y"}), ErrorCode::InvalidArgument);
}

TEST(WebClient, ErrorsOfTheServiceAreItsOwn) {
  const Fake fake({}, {.authorize = [](std::string_view token, Access) {
                    return token == "secret" ? Verdict::Allowed : Verdict::Unknown;
                  }});
  EXPECT_EQ(Asking(url_of(*fake.server)).client->models().error().code, ErrorCode::PermissionDenied);
  Asking asking(url_of(*fake.server), {}, "secret");
  const auto busy = asking.complete("fail");
  EXPECT_EQ(code_of(busy), ErrorCode::ResourceExhausted);
  EXPECT_NE(busy.error().message.find("all caches are full"), std::string::npos);
  const auto broken = asking.complete("break");
  EXPECT_EQ(code_of(broken), ErrorCode::Unavailable);
  EXPECT_NE(broken.error().message.find("stage 2 has no peer"), std::string::npos);
  EXPECT_EQ(asking.text, "break") << "an error that the service tells is no break of the connection";
  EXPECT_EQ(code_of(asking.complete(std::string(2 << 20, 'x'))), ErrorCode::ResourceExhausted) << "413";
}

TEST(WebClient, ACancelEndsTheWaitAndTheRequest) {
  const Fake fake;
  Asking asking(url_of(*fake.server));
  size_t pieces = 0;
  asking.on_piece = [&] {
    if (++pieces == 3) asking.client->cancel();
  };
  EXPECT_EQ(code_of(asking.complete("hang")), ErrorCode::Cancelled);
  EXPECT_TRUE(fake.service->waits_for_cancelled(1));
  // From the loop, while nothing comes.
  asking.on_piece = [&] {
    if (++pieces == 6) asking.loop.post([&] { asking.client->cancel(); });
  };
  EXPECT_EQ(code_of(asking.complete("hang")), ErrorCode::Cancelled);
  EXPECT_TRUE(asking.complete("count 1")) << "what comes later is not cancelled";
}

TEST(WebClient, WhereNobodyListensItSaysSoAtOnce) {
  net::Endpoint gone;
  {
    const Fake fake;
    gone = fake.server->endpoint();
  }
  Asking asking({false, gone, "/v1"});
  const auto end = asking.complete("count 3");
  EXPECT_EQ(code_of(end), ErrorCode::Unavailable);
  EXPECT_NE(end.error().message.find(std::to_string(gone.port)), std::string::npos);
}

// ---- breaks

// Answers as the API does, but hangs up when so many events are sent; each connection has its own number.
class Breaking {
 public:
  Breaking(std::vector<size_t> events, size_t words) : events_(std::move(events)), words_(words) {}
  void operator()(const Request& request, const Responder& responder) {
    const std::string last(request.header("last-event-id").value_or(""));
    asked.push_back(request.method + " " + request.path + " " + last);
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
  std::vector<std::string> asked;

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

// ---- services that are slow, endless, or something else

// Sends bytes to whoever connects, as long as they are taken.
class Torrent {
 public:
  Torrent(std::string first, std::string again) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = {false, {"127.0.0.1", ntohs(address.sin_port)}, "/v1"};
    thread_ = std::jthread([listener = listener_, first, again] { run(listener, first, again); });
  }
  ~Torrent() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  const Url& url() const { return url_; }

 private:
  static bool send(int socket, const std::string& bytes) {
    return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  static void run(int listener, const std::string& first, const std::string& again) {
    for (int socket = 0; (socket = ::accept(listener, nullptr, nullptr)) >= 0; ::close(socket)) {
      bool is_open = send(socket, first);
      while (is_open && !again.empty()) is_open = send(socket, again);
      // Until the client has gone.
      for (char byte = 0; ::recv(socket, &byte, 1, 0) > 0;) {
      }
    }
  }
  int listener_ = -1;
  Url url_;
  std::jthread thread_;
};

const std::string kStreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

TEST(WebClient, EndlessAnswersAreCutOff) {
  const Torrent head("HTTP/1.1 200 OK\r\n", "X: " + std::string(1000, 'x') + "\r\n");
  EXPECT_EQ(Asking(head.url()).client->models().error().code, ErrorCode::Corrupted);
  const Torrent whole("HTTP/1.1 200 OK\r\n\r\n", std::string(1 << 16, '['));
  EXPECT_EQ(Asking(whole.url()).client->models().error().code, ErrorCode::ResourceExhausted);
  const Torrent event(kStreamHead + "data: ", std::string(1 << 16, 'x'));
  EXPECT_EQ(code_of(Asking(event.url()).complete("a")), ErrorCode::ResourceExhausted);
  const Torrent other("SSH-2.0-OpenSSH_9.2\r\n", "");
  EXPECT_EQ(code_of(Asking(other.url()).complete("a")), ErrorCode::Corrupted);
  // An endless stream is the reader's to end.
  const Torrent events(kStreamHead, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
  Asking asking(events.url());
  asking.on_piece = [&] {
    if (asking.text.size() == 100'000) asking.client->cancel();
  };
  EXPECT_EQ(code_of(asking.complete("a")), ErrorCode::Cancelled);
}

TEST(WebClient, EveryWaitHasADeadline) {
  const ClientLimits hasty{.connect_deadline = milliseconds(20),
                           .head_deadline = milliseconds(20),
                           .silence_deadline = milliseconds(20),
                           .whole_deadline = milliseconds(20)};
  const Torrent silent("", "");
  EXPECT_EQ(code_of(Asking(silent.url(), hasty).complete("a")), ErrorCode::Timeout);
  const Torrent half("HTTP/1.1 200 OK\r\nX", "");
  EXPECT_EQ(Asking(half.url(), hasty).client->models().error().code, ErrorCode::Timeout);
  const Torrent body("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "");
  EXPECT_EQ(Asking(body.url(), hasty).client->models().error().code, ErrorCode::Timeout);
  const Torrent stream(kStreamHead + "data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "");
  Asking asking(stream.url(), hasty);
  EXPECT_EQ(code_of(asking.complete("a")), ErrorCode::Timeout);
  EXPECT_EQ(asking.text, "a");
}

}  // namespace
}  // namespace weft::web::test
