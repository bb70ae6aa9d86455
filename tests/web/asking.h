// A client of the API in the test's hands, and servers for it.
#pragma once

#include <gtest/gtest.h>

#include "tests/web/fake_service.h"
#include "web/api.h"
#include "web/client.h"
#include "web/server.h"

namespace weft::web::test {

// A handler that is a function.
class Answers final : public Handler {
 public:
  using Work = std::function<void(const Request& request, const Responder& responder)>;
  explicit Answers(Work work) : work_(std::move(work)) {}
  void on_request(Request request, Responder responder) override { work_(request, responder); }

 private:
  const Work work_;
};

inline std::unique_ptr<Server> serve(std::shared_ptr<Handler> handler, ServerOptions options = {}) {
  auto server = Server::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server) << server.error().message;
  return std::move(*server);
}

inline Url url_of(const Server& server, bool is_secure = false) {
  return {is_secure, server.endpoint(), "/v1"};
}

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

inline ErrorCode code_of(const Result<AnswerEnd>& end) {
  return end ? ErrorCode::Internal : end.error().code;
}

struct Fake {
  explicit Fake(ServerOptions options = {}, ApiOptions api = {})
      : server(serve(make_api(service, std::move(api)), std::move(options))) {}
  std::shared_ptr<FakeService> service = std::make_shared<FakeService>();
  std::unique_ptr<Server> server;  // goes first
};

}  // namespace weft::web::test
