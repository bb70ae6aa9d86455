#include "security/token.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "security/identity.h"

namespace weft::security {
namespace {

PeerId some_broker(uint8_t first) {
  PeerId id;
  for (uint8_t& byte : id.digest.bytes) byte = first++;
  return id;
}

constexpr std::string_view kAlphabet = "0123456789abcdefghjkmnpqrstvwxyz";

TEST(Token, RoundTrip) {
  for (const Role role : {Role::Peer, Role::Submitter, Role::Admin}) {
    const Token token = make_token(role, some_broker(3));
    const auto parsed = parse_token(to_text(token));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*parsed, token);
  }
}

TEST(Token, ADerivedOneIsTheSameEachTimeAndNobodyElses) {
  const auto broker = Identity::generate(), other = Identity::generate();
  ASSERT_TRUE(broker && other);
  const Token token = derive_token(Role::Peer, **broker, 0).value();
  EXPECT_EQ(token.role, Role::Peer);
  EXPECT_EQ(token.broker, (*broker)->id());
  EXPECT_EQ(derive_token(Role::Peer, **broker, 0).value(), token);
  EXPECT_EQ(parse_token(to_text(token)).value(), token);
  for (const Token& another :
       {derive_token(Role::Peer, **broker, 1).value(), derive_token(Role::Admin, **broker, 0).value(),
        derive_token(Role::Peer, **other, 0).value()}) {
    EXPECT_NE(another.id, token.id);
    EXPECT_NE(another.secret, token.secret);
  }
}

TEST(Token, TextIsPlain) {
  const std::string text = to_text(make_token(Role::Peer, some_broker(0)));
  EXPECT_EQ(text.substr(0, 6), "weft1-");
  EXPECT_EQ(text.size(), 6u + 98u);
  EXPECT_EQ(text.substr(6).find_first_not_of(kAlphabet), std::string::npos) << text;
}

TEST(Token, SpacesAroundAndCaseDoNotMatter) {
  const Token token = make_token(Role::Peer, some_broker(7));
  std::string text = to_text(token);
  for (char& c : text) c = static_cast<char>(std::toupper(c));
  const auto parsed = parse_token(" \t" + text + "\r\n");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(*parsed, token);
}

TEST(Token, AnotherFormatIsNamed) {
  std::string text = to_text(make_token(Role::Peer, some_broker(7)));
  text[4] = '2';
  const auto parsed = parse_token(text);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::VersionMismatch);
  EXPECT_NE(parsed.error().message.find("weft2"), std::string::npos) << parsed.error().message;
}

TEST(Token, WhatIsWrongIsSaid) {
  const std::string good = to_text(make_token(Role::Peer, some_broker(7)));
  std::string look_alike = good, changed = good;
  look_alike[20] = 'o';
  changed[20] = changed[20] == '2' ? '3' : '2';
  const std::pair<std::string, std::string> cases[] = {
      {"", "begin"},
      {"weft", "begin"},
      {"weft-abc", "begin"},
      {"weft1-", "has 0 characters"},
      {good + "0", "99"},
      {good.substr(0, good.size() - 1), "97"},
      {look_alike, "character that no token has"},
      {changed, "checksum"},
  };
  for (const auto& [text, why] : cases) {
    const auto parsed = parse_token(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(parsed.error().message.find(why), std::string::npos) << parsed.error().message;
    EXPECT_EQ(parsed.error().message.find(good.substr(60, 20)), std::string::npos) << "the secret is told";
  }
}

TEST(Token, LeftOverBitsMustBeZero) {
  std::string text = to_text(make_token(Role::Peer, some_broker(7)));
  const size_t digit = kAlphabet.find(text.back());
  ASSERT_EQ(digit & 3, 0u);
  for (size_t bits = 1; bits < 4; ++bits) {
    text.back() = kAlphabet[digit | bits];
    EXPECT_FALSE(parse_token(text));
  }
}

TEST(Token, AMillionMutatedOnesAreRefused) {
  const uint64_t seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  std::string text;
  Token token;
  int accepted = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    if (i % 1000 == 0) {
      token = make_token(i % 2000 == 0 ? Role::Peer : Role::Submitter, some_broker(static_cast<uint8_t>(i)));
      text = to_text(token);
    }
    std::string mutated = text;
    const uint64_t kind = rng.below(8);
    const auto place = [&] { return static_cast<size_t>(6 + rng.below(text.size() - 6)); };
    if (kind < 4) {
      for (uint64_t n = 0; n <= kind; ++n) mutated[place()] = kAlphabet[rng.below(32)];
    } else if (kind == 4) {
      std::swap(mutated[place()], mutated[place()]);
    } else if (kind == 5) {
      mutated[place()] = static_cast<char>(rng.below(256));
    } else if (kind == 6) {
      mutated.erase(place(), 1).insert(place() - 1, 1, kAlphabet[rng.below(32)]);
    } else {
      mutated.resize(rng.below(mutated.size() + 1));
    }
    const auto parsed = parse_token(mutated);
    if (parsed && *parsed != token) ++accepted;
  }
  EXPECT_EQ(accepted, 0);
}

TEST(Token, AnyBytesAreParsed) {
  const uint64_t seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = rng.below(2) != 0 ? "weft1-" : "";
    for (uint64_t n = rng.below(130); n > 0; --n) text += static_cast<char>(rng.below(256));
    EXPECT_FALSE(parse_token(text));
  }
}

TEST(Token, IdsAndSecretsDiffer) {
  std::set<uint64_t> ids;
  std::set<Digest> secrets;
  for (int i = 0; i < 100; ++i) {
    const Token token = make_token(Role::Peer, some_broker(0));
    ids.insert(token.id);
    secrets.insert(secret_digest(token.secret));
  }
  EXPECT_EQ(ids.size(), 100u);
  EXPECT_EQ(secrets.size(), 100u);
}

TEST(Token, SecretDigestIsFixed) {
  // SHA-256 of "weft token secret" and sixteen zero bytes, by sha256sum: databases hold these.
  EXPECT_EQ(to_hex(secret_digest({})), "75e1b967d6742c8a21f79b247fdb013e16f063375a607af49d6d2b442d4201b0");
  EXPECT_TRUE(equal_in_constant_time(secret_digest({}), secret_digest({})));
  EXPECT_FALSE(equal_in_constant_time(secret_digest({}), Digest{}));
}

TEST(Role, Names) {
  EXPECT_EQ(*parse_role(to_string(Role::Peer)), Role::Peer);
  EXPECT_EQ(*parse_role(to_string(Role::Submitter)), Role::Submitter);
  EXPECT_FALSE(parse_role("broker"));
}

}  // namespace
}  // namespace weft::security
