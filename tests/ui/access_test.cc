// Who may use the page.
#include "ui/access.h"

#include <gtest/gtest.h>

namespace weft::ui {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr Instant kBegin{};
constexpr const char* kFrom = "192.0.2.7:5000";

HostName host(const char* text) { return parse_host(text).value(); }
AccessOptions options_of(std::vector<HostName> hosts, std::string key = {}) {
  return {.hosts = std::move(hosts), .key = std::move(key)};
}
web::Request request_of(const std::string& method, const std::string& host,
                        std::vector<web::Header> more = {}) {
  web::Request request{.method = method, .path = "/"};
  if (!host.empty()) request.headers.push_back({"host", host});
  request.headers.insert(request.headers.end(), more.begin(), more.end());
  return request;
}
int status_of(const Access& access, const web::Request& request) {
  const auto why = access.check_source(request);
  return why ? why->status : 200;
}

TEST(Host, IsReadWithAndWithoutAPort) {
  EXPECT_EQ(host("UI.Example.org").name, "ui.example.org");
  EXPECT_FALSE(host("ui.example.org").port);
  EXPECT_EQ(host("127.0.0.1:7780").port, 7780);
  EXPECT_EQ(host("[::1]:7780").name, "[::1]");
  EXPECT_FALSE(host("[::1]").port);
  for (const char* bad : {"", ":80", "a b", "a:b", "[::1", "http://a", "a/b", "a:80:80"})
    EXPECT_FALSE(parse_host(bad)) << bad;
}

TEST(Host, OnlyThePagesOwnNamesAreAnswered) {
  const Access access(options_of({host("127.0.0.1:7780"), host("localhost:7780"), host("ui.example.org")}));
  for (const char* own :
       {"127.0.0.1:7780", "localhost:7780", "LOCALHOST:7780", "ui.example.org", "ui.example.org:8443"})
    EXPECT_EQ(status_of(access, request_of("GET", own)), 200) << own;
  for (const char* other : {"", "127.0.0.1", "127.0.0.1:7781", "evil.example", "ui.example.org.evil.example",
                            "evil.example:7780", "127.0.0.1:7780@evil.example", "[::1]:7780"})
    EXPECT_EQ(status_of(access, request_of("GET", other)), 403) << other;
}

TEST(Origin, WhatChangesSomethingComesFromThePageItself) {
  const std::string own = "127.0.0.1:7780";
  const Access access(options_of({host(own.c_str())}));
  const auto post = [&](std::vector<web::Header> headers) {
    return status_of(access, request_of("POST", own, std::move(headers)));
  };
  EXPECT_EQ(post({{"origin", "http://127.0.0.1:7780"}}), 200);
  EXPECT_EQ(post({{"origin", "https://127.0.0.1:7780"}}), 200);  // a proxy before it
  EXPECT_EQ(post({}), 403);
  for (const char* other : {"null", "", "http://evil.example", "http://127.0.0.1:7781", "http://127.0.0.1",
                            "file://127.0.0.1:7780", "127.0.0.1:7780"})
    EXPECT_EQ(post({{"origin", other}}), 403) << other;
  EXPECT_EQ(status_of(access, request_of("GET", own, {{"origin", "http://evil.example"}})), 403);
}

TEST(Origin, AnotherSitesPageMayLinkHereAndNothingElse) {
  const std::string own = "127.0.0.1:7780";
  const Access access(options_of({host(own.c_str())}));
  const auto get = [&](std::vector<web::Header> headers) {
    return status_of(access, request_of("GET", own, std::move(headers)));
  };
  EXPECT_EQ(get({{"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "navigate"}}), 200);
  EXPECT_EQ(get({{"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "no-cors"}}), 403);
  EXPECT_EQ(get({{"sec-fetch-site", "same-site"}, {"sec-fetch-mode", "cors"}}), 403);
  EXPECT_EQ(get({{"sec-fetch-site", "same-origin"}, {"sec-fetch-mode", "cors"}}), 200);
}

// What a browser sends back of Set-Cookie.
std::string pair_of(const std::string& cookie) { return cookie.substr(0, cookie.find(';')); }

struct WithKey : ::testing::Test {
  Access access{options_of({host("192.0.2.1:7780")}, "secret")};
  int session(const std::string& cookies, Instant now = kBegin) {
    const auto why = access.check_session(request_of("GET", "192.0.2.1:7780", {{"cookie", cookies}}), now);
    return why ? why->status : 200;
  }
  int open(const std::string& key, Instant now = kBegin, const std::string& from = kFrom) {
    const auto cookie = access.open_session(key, from, "fresh", now);
    return cookie ? 200 : cookie.error().status;
  }
};

TEST_F(WithKey, ItIsExchangedForACookieOfTwelveHours) {
  EXPECT_EQ(session(""), 403);
  const auto cookie = access.open_session("secret", kFrom, "drawn", kBegin);
  ASSERT_TRUE(cookie);
  EXPECT_EQ(*cookie, "weft_ui=drawn; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200");
  EXPECT_EQ(session(pair_of(*cookie)), 200);
  EXPECT_EQ(session("a=b; " + pair_of(*cookie) + "; c=d"), 200);
  for (const char* wrong : {"weft_ui=", "weft_ui=draw", "weft_ui=drawns", "other=drawn", "weft_ui", "drawn"})
    EXPECT_EQ(session(wrong), 403) << wrong;
  EXPECT_EQ(session(pair_of(*cookie), kBegin + hours(12) - seconds(1)), 200);
  EXPECT_EQ(session(pair_of(*cookie), kBegin + hours(12)), 403);
}

TEST_F(WithKey, WithoutOneNobodyIsAsked) {
  Access open(options_of({host("127.0.0.1:7780")}));
  EXPECT_FALSE(open.check_session(request_of("GET", "127.0.0.1:7780"), kBegin));
  EXPECT_FALSE(open.open_session("", kFrom, "drawn", kBegin));  // there is none to have
}

TEST_F(WithKey, TenWrongKeysAMinuteCloseTheAddressForAMinute) {
  for (int i = 0; i < 9; ++i) EXPECT_EQ(open("wrong", kBegin + seconds(i)), 403);
  EXPECT_EQ(open("secret", kBegin + seconds(9)), 200);  // the right one is still taken
  EXPECT_EQ(open("wrong", kBegin + seconds(10)), 403);  // the tenth
  EXPECT_EQ(open("secret", kBegin + seconds(11)), 429);
  EXPECT_EQ(open("secret", kBegin + seconds(11), "192.0.2.8:5000"), 200);  // others are not concerned
  EXPECT_EQ(open("secret", kBegin + seconds(69)), 429);
  EXPECT_EQ(open("secret", kBegin + seconds(70)), 200);
}

TEST_F(WithKey, WrongKeysOfMoreThanAMinuteAgoDoNotCount) {
  for (int i = 0; i < 40; ++i) EXPECT_EQ(open("wrong", kBegin + seconds(7 * i)), 403) << i;
  EXPECT_EQ(open("secret", kBegin + seconds(7 * 40)), 200);
}

TEST_F(WithKey, AnIPv6NetworkIsOneAddress) {
  EXPECT_EQ(address_of("192.0.2.7:5000"), "192.0.2.7");
  EXPECT_EQ(address_of("[2001:db8::1]:5000"), address_of("[2001:db8::ffff:2]:80"));
  EXPECT_NE(address_of("[2001:db8::1]:5000"), address_of("[2001:db8:0:1::1]:5000"));
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(open("wrong", kBegin, "[2001:db8::" + std::to_string(i + 1) + "]:5000"), 403);
  EXPECT_EQ(open("secret", kBegin, "[2001:db8::99]:5000"), 429);
}

TEST_F(WithKey, SessionsAndAddressesAreBounded) {
  for (size_t i = 0; i < kSessionsMax + 1; ++i)
    ASSERT_TRUE(access.open_session("secret", kFrom, "s" + std::to_string(i), kBegin));
  EXPECT_EQ(session("weft_ui=s0"), 403);  // it made room
  EXPECT_EQ(session("weft_ui=s1"), 200);
  for (size_t i = 0; i < 3 * kAddressesMax; ++i)
    EXPECT_EQ(open("wrong", kBegin + seconds(1),
                   "10.0." + std::to_string(i / 256) + "." + std::to_string(i % 256) + ":1"),
              403);
}

}  // namespace
}  // namespace weft::ui
