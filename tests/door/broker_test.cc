// A whole broker with its HTTP door: who is let in, and what it says at its start.
#include <gtest/gtest.h>

#include "broker/service/broker_service.h"
#include "tests/support/scratch.h"
#include "tests/web/client.h"

namespace weft::broker {
namespace {

class HttpDoor : public ::testing::Test {
 protected:
  Result<std::unique_ptr<BrokerService>> start(const net::Endpoint& http) {
    BrokerServiceOptions options;
    options.data_dir = scratch_.folder() / "broker";
    options.listen = {"127.0.0.1", 0};
    options.http = http;
    options.log = [](const std::string&) {};
    return BrokerService::start(std::move(options));
  }
  int status_of(const BrokerService& broker, const std::string& token) const {
    std::string request = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    if (!token.empty()) request += "Authorization: Bearer " + token + "\r\n";
    return web::test::ask(*broker.http_endpoint(), request + "\r\n").status;
  }
  MadeToken make(security::Role role) const {
    auto made = create_token(scratch_.folder() / "broker", {.role = role});
    EXPECT_TRUE(made.has_value());
    return made.value_or(MadeToken{});
  }

  test::Scratch scratch_;
};

TEST_F(HttpDoor, LetsInWhoShowsATokenThatIsGoodForIt) {
  const auto started = start({"127.0.0.1", 0});
  ASSERT_TRUE(started.has_value()) << started.error().message;
  const BrokerService& broker = **started;
  ASSERT_TRUE(broker.http_endpoint());
  EXPECT_EQ(status_of(broker, ""), 200) << "nobody was invited yet, and only this machine reaches it";
  EXPECT_EQ(status_of(broker, *broker.submitter_token()), 200);
  EXPECT_EQ(status_of(broker, "sk-what-a-client-shows-by-itself"), 200);
  // Made and revoked beside the running broker, as `weft token` does.
  const MadeToken caller = make(security::Role::Caller);
  EXPECT_EQ(status_of(broker, caller.text), 200);
  EXPECT_EQ(status_of(broker, ""), 401);
  EXPECT_EQ(status_of(broker, "weft1-no"), 401);
  EXPECT_EQ(status_of(broker, broker.peer_token()), 403);
  EXPECT_EQ(status_of(broker, make(security::Role::Admin).text), 200);
  ASSERT_TRUE(revoke_token(scratch_.folder() / "broker", caller.id));
  EXPECT_EQ(status_of(broker, caller.text), 401);
}

TEST_F(HttpDoor, AnAddressThatOthersReachNeedsACertificate) {
  const auto refused = start({"0.0.0.0", 0});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("--http"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(start({"127.0.0.1", 0}).has_value()) << "and nothing of it is left open";
}

TEST_F(HttpDoor, WithoutTheOptionThereIsNone) {
  BrokerServiceOptions options;
  options.data_dir = scratch_.folder() / "broker";
  options.listen = {"127.0.0.1", 0};
  options.log = [](const std::string&) {};
  const auto started = BrokerService::start(std::move(options));
  ASSERT_TRUE(started.has_value());
  EXPECT_FALSE((*started)->http_endpoint());
}

}  // namespace
}  // namespace weft::broker
