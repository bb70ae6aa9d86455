// Which addresses are dialled that somebody else named.
#include "net/dial_policy.h"

#include <gtest/gtest.h>

#include "net/connection.h"
#include "net/listener.h"
#include "security/identity.h"

namespace weft::net {
namespace {

using enum AddressKind;

std::string_view name_of(AddressKind kind) {
  return kind == Public ? "public" : kind == Private ? "private" : kind == Loopback ? "loopback" : "nobody";
}

TEST(DialPolicy, KindsOfAddresses) {
  const std::pair<const char*, AddressKind> cases[] = {
      {"8.8.8.8", Public},
      {"1.0.0.0", Public},
      {"0.0.0.0", Nobody},
      {"0.1.2.3", Nobody},
      {"9.255.255.255", Public},
      {"10.0.0.0", Private},
      {"10.255.255.255", Private},
      {"11.0.0.0", Public},
      {"100.63.255.255", Public},
      {"100.64.0.1", Private},
      {"100.127.255.255", Private},
      {"100.128.0.0", Public},
      {"126.255.255.255", Public},
      {"127.0.0.1", Loopback},
      {"127.255.255.255", Loopback},
      {"128.0.0.0", Public},
      {"169.253.255.255", Public},
      {"169.254.169.254", Private},
      {"172.15.255.255", Public},
      {"172.16.0.1", Private},
      {"172.31.255.255", Private},
      {"172.32.0.0", Public},
      {"192.0.0.8", Private},
      {"192.88.99.1", Nobody},
      {"192.167.255.255", Public},
      {"192.168.1.1", Private},
      {"192.169.0.0", Public},
      {"198.18.0.1", Private},
      {"198.19.255.255", Private},
      {"198.20.0.0", Public},
      {"223.255.255.255", Public},
      {"224.0.0.1", Nobody},
      {"239.255.255.255", Nobody},
      {"240.0.0.1", Nobody},
      {"255.255.255.255", Nobody},
      {"::", Nobody},
      {"::1", Loopback},
      {"::2", Nobody},  // compatible with 0.0.0.2
      {"2a00:1450::1", Public},
      {"fbff::1", Public},
      {"fc00::1", Private},
      {"fdff:ffff::1", Private},
      {"fe00::1", Public},
      {"fe80::1", Private},
      {"fe80::1%eth0", Private},
      {"febf::1", Private},
      {"fec0::1", Private},
      {"ff02::1", Nobody},
      {"::ffff:8.8.8.8", Public},
      {"::ffff:127.0.0.1", Loopback},
      {"::ffff:10.1.2.3", Private},
      {"::ffff:0.0.0.0", Nobody},
      {"::ffff:224.0.0.1", Nobody},
      {"::127.0.0.1", Loopback},
      {"::10.0.0.1", Private},
      {"64:ff9b::8.8.8.8", Public},
      {"64:ff9b::192.168.0.1", Private},
      {"64:ff9b::127.0.0.1", Loopback},
      {"64:ff9b:1::1", Private},
      {"2002:808:808::1", Public},
      {"2002:a00:1::1", Private},    // 10.0.0.1
      {"2002:7f00:1::1", Loopback},  // 127.0.0.1
      {"2001:0:1234::1", Nobody},
      {"2001:4860::1", Public},
  };
  for (const auto& [text, kind] : cases) {
    const auto address = parse_ip(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(name_of(kind_of(*address)), name_of(kind)) << text;
  }
  for (const char* text : {"", "localhost", "1.2.3", "127.1", "0x7f.0.0.1", "017700000001", "1:2", "::g"})
    EXPECT_FALSE(parse_ip(text)) << text << " is a name, which is judged by what it is resolved to";
}

TEST(DialPolicy, OneMayPointAsFarInsideAsOneIs) {
  const auto of = [](const char* text, bool is_here) { return reach_of(*parse_ip(text), is_here); };
  EXPECT_EQ(of("8.8.8.8", false), Reach::Public);
  EXPECT_EQ(of("192.168.1.5", false), Reach::Private);
  EXPECT_EQ(of("fd00::5", false), Reach::Private);
  EXPECT_EQ(of("127.0.0.1", false), Reach::Loopback);
  EXPECT_EQ(of("::1", false), Reach::Loopback);
  EXPECT_EQ(of("192.168.1.5", true), Reach::Loopback);
  EXPECT_EQ(of("8.8.8.8", true), Reach::Loopback);

  struct Case {
    const char* address;
    uint16_t port;
    bool from_public, from_private, from_loopback;
  };
  const Case cases[] = {
      {"8.8.8.8", 7700, true, true, true},
      {"8.8.8.8", 1024, true, true, true},
      {"8.8.8.8", 443, true, true, true},
      {"8.8.8.8", 1023, false, false, false},
      {"8.8.8.8", 22, false, false, false},
      {"8.8.8.8", 25, false, false, false},
      {"8.8.8.8", 0, false, false, false},
      {"10.0.0.1", 7700, false, true, true},
      {"10.0.0.1", 443, false, true, true},
      {"10.0.0.1", 80, false, false, false},
      {"169.254.169.254", 8080, false, true, true},
      {"::ffff:192.168.0.1", 7700, false, true, true},
      {"fd00::1", 7700, false, true, true},
      {"127.0.0.1", 7700, false, false, true},
      {"127.0.0.1", 22, false, false, false},
      {"::1", 7700, false, false, true},
      {"::ffff:127.0.0.1", 7700, false, false, true},
      {"0.0.0.0", 7700, false, false, false},
      {"224.0.0.1", 7700, false, false, false},
      {"255.255.255.255", 7700, false, false, false},
      {"ff02::1", 7700, false, false, false},
  };
  for (const Case& one : cases) {
    const auto allowed = [&](Reach reach) {
      const Status may = check_dial(*parse_ip(one.address), one.port, reach);
      if (!may) {
        EXPECT_EQ(may.error().code, ErrorCode::PermissionDenied);
        EXPECT_NE(may.error().message.find(":" + std::to_string(one.port)), std::string::npos);
      }
      return may.has_value();
    };
    EXPECT_EQ(allowed(Reach::Public), one.from_public) << one.address << ":" << one.port;
    EXPECT_EQ(allowed(Reach::Private), one.from_private) << one.address << ":" << one.port;
    EXPECT_EQ(allowed(Reach::Loopback), one.from_loopback) << one.address << ":" << one.port;
  }
}

TEST(DialPolicy, ThisMachineKnowsItsAddresses) {
  EXPECT_TRUE(is_own_address(*parse_ip("127.0.0.1")));
  EXPECT_FALSE(is_own_address(*parse_ip("192.0.2.77")));
  EXPECT_FALSE(is_own_address(*parse_ip("0.0.0.0")));
}

// What connect() makes of it: the name is nothing, each address that it has is judged.
TEST(DialPolicy, EachAddressIsJudgedRightBeforeItIsDialled) {
  Loop loop;
  const auto server = security::Identity::generate().value(), client = security::Identity::generate().value();
  int arrived = 0;
  ListenOptions listen;
  listen.identity = server.get();
  std::vector<ConnectionPtr> kept;
  const auto listener = Listener::open(loop, {"127.0.0.1", 0}, listen, [&](ConnectionPtr connection) {
                          ++arrived;
                          kept.push_back(std::move(connection));
                        }).value();
  std::vector<std::string> judged;
  bool allows = false;
  std::optional<Result<ConnectionPtr>> result;
  const auto dial = [&](const std::string& host) {
    judged.clear();
    result.reset();
    ConnectOptions options{.identity = client.get(), .expected = server->id()};
    options.may_dial = [&](const IpAddress& address, uint16_t port) -> Status {
      judged.emplace_back(name_of(kind_of(address)));
      EXPECT_EQ(port, listener->endpoint().port);
      if (allows) return {};
      return fail(ErrorCode::PermissionDenied, "not there");
    };
    const auto attempt = connect(loop, {host, listener->endpoint().port}, options,
                                 [&](Result<ConnectionPtr> came) { result = std::move(came); });
    EXPECT_TRUE(loop.run_until(std::chrono::seconds(10), [&] { return result.has_value(); }));
  };
  for (const std::string host : {"127.0.0.1", "localhost", "::ffff:127.0.0.1"}) {
    allows = false;
    dial(host);
    ASSERT_FALSE(*result) << host;
    EXPECT_EQ(result->error().code, ErrorCode::PermissionDenied) << result->error().message;
    EXPECT_NE(result->error().message.find("not there"), std::string::npos);
    ASSERT_FALSE(judged.empty());
    for (const std::string& kind : judged) EXPECT_EQ(kind, "loopback") << host;
  }
  EXPECT_EQ(arrived, 0);
  allows = true;
  dial("127.0.0.1");
  EXPECT_TRUE(*result);
}

}  // namespace
}  // namespace weft::net
