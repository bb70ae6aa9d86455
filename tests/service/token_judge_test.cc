// What a million tokens that nobody was given are worth, at a store on a disk and the core that admits by it.
#include "broker/service/token_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "broker/broker.h"
#include "broker/store/sqlite_store.h"
#include "security/token.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using proto::Role;

constexpr int64_t kNow = 1'000'000;

struct Given {  // to somebody
  StoredToken stored{};
  proto::TokenProof proof{};
};

class TokenJudge : public ::testing::Test {
 protected:
  // Of each role some that are good for ever, until a while from now, for two keys; and some that are no
  // more.
  void SetUp() override {
    for (int n = 0; n < 120; ++n) {
      Given given;
      given.proof.id = random_number();
      for (uint8_t& byte : given.proof.secret) byte = static_cast<uint8_t>(rng_.below(256));
      given.stored = {.id = given.proof.id,
                      .role = std::array{Role::Peer, Role::Submitter, Role::Admin, Role::Caller}[n % 4],
                      .secret_digest = security::secret_digest({given.proof.secret}),
                      .created_unix_ms = 1,
                      .expires_unix_ms = {},
                      .uses_max = {}};
      switch (n / 4 % 5) {
        case 0:
          break;
        case 1:
          given.stored.expires_unix_ms = kNow + 1;
          break;
        case 2:
          given.stored.uses_max = 2;
          break;
        case 3:
          given.stored.expires_unix_ms = kNow - static_cast<int64_t>(rng_.below(2));
          break;
        default:
          given.stored.revoked = true;
      }
      ASSERT_TRUE(store_->create_token(given.stored));
      if (given.stored.revoked) {
        ASSERT_TRUE(store_->revoke_token(given.stored.id));
      }
      given_.push_back(given);
    }
  }
  uint64_t random_number() { return rng_.next_u64(); }
  const Given& any() { return given_[rng_.below(given_.size())]; }

  // One that was given to somebody, or what a stranger makes of it.
  proto::TokenProof attempt() {
    proto::TokenProof proof = any().proof;
    auto& secret = proof.secret;
    switch (rng_.below(8)) {
      case 0:
        break;
      case 1:
        proof.secret = any().proof.secret;
        break;
      case 2:
        for (uint64_t bits = 1 + rng_.below(3); bits > 0; --bits)
          secret[rng_.below(secret.size())] ^= static_cast<uint8_t>(1u << rng_.below(8));
        break;
      case 3:
        proof.id ^= uint64_t{1} << rng_.below(64);
        break;
      case 4:  // what the broker keeps of it
        std::copy_n(any().stored.secret_digest.bytes.begin(), secret.size(), secret.begin());
        break;
      case 5:
        secret = {};
        if (rng_.below(2) == 0) proof.id = 0;
        break;
      case 6:
        for (size_t at = rng_.below(secret.size()); at < secret.size(); ++at)
          secret[at] = static_cast<uint8_t>(rng_.below(256));
        break;
      default:
        std::rotate(secret.begin(), secret.begin() + 1 + static_cast<long>(rng_.below(15)), secret.end());
    }
    return proof;
  }
  // By the promise: the very token, good for one key more, for this role.
  bool is_good(const proto::TokenProof& proof, Role role) const {
    const Role as = role == Role::PeerBulk ? Role::Peer : role;
    return std::any_of(given_.begin(), given_.end(), [&](const Given& given) {
      const StoredToken& token = given.stored;
      return as != Role::Caller && given.proof.id == proof.id && given.proof.secret == proof.secret &&
             !token.revoked && token.expires_unix_ms.value_or(kNow + 1) > kNow &&
             token.uses < token.uses_max.value_or(~0u) &&
             (token.role == as || (token.role == Role::Admin && as == Role::Submitter));
    });
  }
  void count_use(uint64_t id) {
    for (Given& given : given_)
      if (given.stored.id == id) ++given.stored.uses;
  }

  static constexpr uint64_t kSeed = 20261124;
  Rng rng_{kSeed, 0};
  test::Scratch scratch_;
  std::unique_ptr<Store> store_ = std::move(*open_sqlite_store(scratch_.folder() / "broker.sqlite"));
  std::vector<Given> given_;
};

TEST_F(TokenJudge, NobodyIsAdmittedByWhatItWasNotGiven) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Broker broker({.software = "test", .limits = {.clients_max = 1'000'000'000}, .pool = {.gone_max = 16}}, {});
  uint64_t admitted = 0, refused = 0;
  ConnectionId connection = 0;
  // Few that are good: each is a write to the disk.
  while (refused < 1'000'000) {
    Introduced event{.connection = ++connection, .address = "192.0.2.1:1000"};
    for (size_t at = 0; at < 8; ++at)
      event.who.digest.bytes[at] = static_cast<uint8_t>(connection >> (8 * at));
    event.hello.role =
        std::array{Role::Peer, Role::Submitter, Role::PeerBulk, Role::Admin, Role::Caller}[rng_.below(5)];
    if (event.hello.role == Role::Peer)
      event.hello.device = proto::DeviceReport{.device = "cpu:1", .threads = 1};
    event.hello.token = attempt();
    const bool is_good_one = is_good(*event.hello.token, event.hello.role);
    if (is_good_one && admitted > 2'000) continue;
    const TokenJudgement judged = judge_token(*store_, event.hello, kNow);
    ASSERT_EQ(judged.verdict == TokenVerdict::Valid, is_good_one) << "attempt " << connection;
    event.verdict = judged.verdict;
    event.token_role = judged.role;
    const Effects effects = broker.step({Instant(std::chrono::seconds(1)), kNow}, event);
    const bool was_admitted = std::any_of(effects.effects.begin(), effects.effects.end(),
                                          [](const Effect& e) { return std::holds_alternative<Admit>(e); });
    ASSERT_EQ(was_admitted, is_good_one) << "attempt " << connection;
    ASSERT_EQ(effects.records.size(), is_good_one ? 1u : 0u);
    ++(was_admitted ? admitted : refused);
    if (!was_admitted) continue;
    ASSERT_TRUE(store_->append(effects.records));
    count_use(event.hello.token->id);
    broker.step({Instant(std::chrono::seconds(1)), kNow}, Disconnected{connection, "test"});
    broker.step({Instant(std::chrono::seconds(1)), kNow}, Tick{});
  }
  EXPECT_GT(admitted, 1'000u);
  for (const Given& given : given_) EXPECT_LE(given.stored.uses, given.stored.uses_max.value_or(~0u));
}

}  // namespace
}  // namespace weft::broker
