#include "net/endpoint.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::net {
namespace {

TEST(Endpoint, RoundTrip) {
  const std::pair<const char*, Endpoint> cases[] = {
      {"example.org:7000", {"example.org", 7000}},
      {"192.0.2.1:0", {"192.0.2.1", 0}},
      {"[2001:db8::1]:65535", {"2001:db8::1", 65535}},
      {"[fe80::1%eth0]:7", {"fe80::1%eth0", 7}},
      {"my_host-2:80", {"my_host-2", 80}},
  };
  for (const auto& [text, endpoint] : cases) {
    const auto parsed = parse_endpoint(text);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*parsed, endpoint);
    EXPECT_EQ(to_string(*parsed), text);
  }
}

TEST(Endpoint, WhatIsWrongIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "no port"},
      {"host", "no port"},
      {":7000", "no host"},
      {"host:", "number"},
      {"host:65536", "number"},
      {"host:-1", "number"},
      {"host:7000x", "number"},
      {"host:000007000", "number"},
      {"2001:db8::1:7000", "brackets"},
      {"[2001:db8::1]", "no port"},
      {"[2001:db8::1:7000", "not closed"},
      {"[host]:1", "no IPv6"},
      {"a b:1", "character"},
      {"a\n:1", "character"},
      {std::string(256, 'a') + ":1", "255"},
  };
  for (const auto& [text, why] : cases) {
    const auto parsed = parse_endpoint(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(parsed.error().message.find(why), std::string::npos) << parsed.error().message;
    EXPECT_LT(parsed.error().message.size(), 300u);
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  }
}

TEST(Endpoint, AnyTextIsJudged) {
  const uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  constexpr std::string_view kLikely = "a1:[].%-0:";
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (uint64_t n = rng.below(12); n > 0; --n)
      text += rng.below(8) == 0 ? static_cast<char>(rng.below(256)) : kLikely[rng.below(kLikely.size())];
    const auto parsed = parse_endpoint(text);
    if (!parsed) continue;
    const auto again = parse_endpoint(to_string(*parsed));
    ASSERT_TRUE(again) << text;
    EXPECT_EQ(*again, *parsed);
  }
}

}  // namespace
}  // namespace weft::net
