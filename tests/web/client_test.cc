#include "web/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/web/asking.h"
#include "tests/web/client.h"

namespace weft::web::test {
namespace {

using std::chrono::milliseconds;

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
