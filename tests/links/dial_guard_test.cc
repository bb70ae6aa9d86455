// What a peer dials of all that its broker names.
#include "peer/service/dial_guard.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::peer {
namespace {

class DialGuardTest : public testing::Test {
 protected:
  DialGuard guard(bool dials_private = false) {
    return DialGuard({.dials_private = dials_private,
                      .log = [this](const std::string& line) { lines_.push_back(line); },
                      .now = [this] { return now_; }});
  }
  static Status dial(DialGuard& guard, const char* address, uint16_t port = 7700) {
    return guard.may_dial(*net::parse_ip(address), port);
  }
  Instant now_{std::chrono::hours(1)};
  std::vector<std::string> lines_;
};

TEST_F(DialGuardTest, ABrokerThatWasNotReachedYetIsFarAway) {
  DialGuard one = guard();
  EXPECT_FALSE(dial(one, "10.0.0.1"));
  EXPECT_TRUE(dial(one, "8.8.8.8"));
  one.set_reach(net::Reach::Loopback);
  EXPECT_TRUE(dial(one, "127.0.0.1"));
  one.set_reach(net::Reach::Public);  // it was reached elsewhere
  EXPECT_FALSE(dial(one, "127.0.0.1"));
}

TEST_F(DialGuardTest, TheOwnerMayOpenItsNetworkButNotItsMachine) {
  DialGuard one = guard(/*dials_private=*/true);
  one.set_reach(net::Reach::Public);
  EXPECT_TRUE(dial(one, "192.168.1.7"));
  EXPECT_FALSE(dial(one, "127.0.0.1"));
  EXPECT_FALSE(dial(one, "192.168.1.7", 22));
}

TEST_F(DialGuardTest, RefusalsAreSaidOnceASecond) {
  DialGuard one = guard();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(dial(one, "10.0.0.1", 25));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("warning dial_refused reason=\"10.0.0.1:25"), std::string::npos) << lines_[0];
  now_ += DialGuard::kSayEvery;
  EXPECT_FALSE(dial(one, "224.0.0.1"));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_NE(lines_[1].find("unsaid=999"), std::string::npos) << lines_[1];
}

TEST_F(DialGuardTest, NobodyMakesAScannerOfIt) {
  DialGuard one = guard();
  const auto allowed = [&](int tries) {
    int count = 0;
    for (int i = 0; i < tries; ++i) {
      const Status may = dial(one, "8.8.8.8", static_cast<uint16_t>(2000 + i));
      count += may.has_value();
      if (!may) {
        EXPECT_EQ(may.error().code, ErrorCode::ResourceExhausted);
      }
    }
    return count;
  };
  EXPECT_EQ(allowed(5000), static_cast<int>(DialGuard::kAtOnce));
  now_ += std::chrono::seconds(10);
  EXPECT_EQ(allowed(5000), static_cast<int>(10 * DialGuard::kPerSecond));
}

}  // namespace
}  // namespace weft::peer
