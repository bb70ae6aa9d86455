// Who may ask served models over HTTP, by the token that it shows.
#include "broker/service/callers.h"

#include <gtest/gtest.h>

#include <functional>

#include "broker/service/token_judge.h"
#include "broker/store/sqlite_store.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using As = security::Role;

class CallersTest : public ::testing::Test {
 protected:
  security::Token make(
      As role, const std::function<void(StoredToken&)>& change = [](StoredToken&) {}) {
    const security::Token token = security::make_token(role, broker_);
    StoredToken row;
    change(row);
    row.id = token.id;
    row.role = role_of(role);
    row.secret_digest = security::secret_digest(token.secret);
    EXPECT_TRUE(store_->create_token(row));
    return token;
  }
  ErrorCode refused(const std::string& text) {
    const auto caller = callers_->check(text);
    EXPECT_FALSE(caller.has_value()) << text;
    if (!caller && text.size() > 40) {
      EXPECT_EQ(caller.error().message.find(text.substr(text.size() - 30)), std::string::npos)
          << "what was shown is told to nobody";
    }
    return caller ? ErrorCode::Internal : caller.error().code;
  }

  test::Scratch scratch_;
  const PeerId broker_{.digest = Digest{{1, 2, 3}}};
  const std::filesystem::path database_ = scratch_.folder() / "broker.sqlite";
  std::unique_ptr<Store> store_ = std::move(*open_sqlite_store(database_));
  std::unique_ptr<Callers> callers_ = std::move(*Callers::open(database_, broker_));
};

TEST_F(CallersTest, ACallersASubmittersAndAnAdminsTokenAreGoodAtOnce) {
  for (const As role : {As::Caller, As::Submitter, As::Admin}) {
    const security::Token token = make(role, [](auto& row) { row.label = "for a shop"; });
    const auto caller = callers_->check(security::to_text(token));
    ASSERT_TRUE(caller.has_value()) << caller.error().message;
    EXPECT_EQ(caller->token, token.id);
    EXPECT_EQ(caller->role, role);
    EXPECT_EQ(caller->label, "for a shop");
  }
}

TEST_F(CallersTest, APeersTokenIsOfAnotherRole) {
  EXPECT_EQ(refused(security::to_text(make(As::Peer))), ErrorCode::PermissionDenied);
}

TEST_F(CallersTest, WhatIsNoTokenOrNoneThatIsGoodIsNotKnown) {
  for (const char* text : {"", "weft1-", "sk-1234", "Bearer x"})
    EXPECT_EQ(refused(text), ErrorCode::NotFound);
  EXPECT_EQ(refused(std::string(1 << 20, 'a')), ErrorCode::NotFound);
  const security::Token token = make(As::Caller);
  const auto with = [&](auto change) {
    security::Token other = token;
    change(other);
    return security::to_text(other);
  };
  EXPECT_EQ(refused(with([](auto& t) { t.secret.bytes[3] ^= 1; })), ErrorCode::NotFound);
  EXPECT_EQ(refused(with([](auto& t) { t.id ^= 1; })), ErrorCode::NotFound);
  EXPECT_EQ(refused(with([](auto& t) { t.broker = {}; })), ErrorCode::NotFound) << "another broker's";
  EXPECT_EQ(refused(security::to_text(make(As::Caller, [](auto& row) { row.expires_unix_ms = 1; }))),
            ErrorCode::NotFound);
  EXPECT_EQ(refused(security::to_text(make(As::Submitter, [](auto& row) { row.uses_max = 0; }))),
            ErrorCode::NotFound);
  // The role in a token is for people: what counts is the one that the broker wrote down.
  const security::Token peers = make(As::Peer);
  EXPECT_EQ(refused(security::to_text({As::Admin, broker_, peers.id, peers.secret})),
            ErrorCode::PermissionDenied);
}

TEST_F(CallersTest, ARevokedTokenIsKnownNoMoreFromThenOn) {
  const std::string text = security::to_text(make(As::Caller));
  ASSERT_TRUE(callers_->check(text).has_value());
  ASSERT_TRUE(store_->revoke_token(security::parse_token(text)->id));
  EXPECT_EQ(refused(text), ErrorCode::NotFound);
}

TEST_F(CallersTest, SomebodyWasInvitedOnceACallersTokenWasMade) {
  make(As::Submitter);
  make(As::Peer);
  EXPECT_TRUE(callers_->nobody_was_invited());
  ASSERT_TRUE(store_->revoke_token(make(As::Caller).id));
  EXPECT_FALSE(callers_->nobody_was_invited()) << "who revokes one does not open the door to all";
}

}  // namespace
}  // namespace weft::broker
