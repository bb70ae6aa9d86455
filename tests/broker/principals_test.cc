// Who is known, against a naive list of it, over random comings.
#include "broker/pool/principals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using proto::Role;
using test::key;

struct Naive {
  struct Entry {
    PeerId who{};
    Role role{};
    uint64_t token = 0;
  };
  std::vector<Entry> all;  // seen longest ago first

  bool is_admitted(const PeerId& who, Role role) const {
    return std::any_of(all.begin(), all.end(),
                       [&](const Entry& e) { return e.who == who && e.role == role; });
  }
  void seen(const PeerId& who) {
    const auto its =
        std::stable_partition(all.begin(), all.end(), [&](const Entry& e) { return e.who != who; });
    std::sort(its, all.end(), [](const Entry& a, const Entry& b) { return a.role < b.role; });
  }
  size_t count_of(uint64_t token) const {
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const Entry& e) { return e.token == token; }));
  }
  // Of the token's, the first goes, or is the last if it is needed, until there are not too many, or each one
  // was asked for.
  void forget(uint64_t token, size_t max, const std::set<PeerId>& needed) {
    for (size_t left = count_of(token); left > 0 && count_of(token) > max; --left) {
      const auto first =
          std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.token == token; });
      const Entry entry = *first;
      all.erase(first);
      if (needed.contains(entry.who)) all.push_back(entry);
    }
  }
};

TEST(Principals, AreThoseOfANaiveList) {
  constexpr uint8_t kKeys = 40;
  constexpr size_t kMax = 5;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto up_to = [&](uint64_t n) { return random() % n; };
    const auto some_key = [&] { return key(static_cast<uint8_t>(up_to(kKeys))); };
    Principals principals(kMax);
    Naive naive;
    for (int turn = 0; turn < 300; ++turn) {
      const PeerId who = some_key();
      const Role role = up_to(3) == 0 ? Role::Submitter : Role::Peer;
      const uint64_t token = up_to(3);
      if (up_to(50) == 0) {
        for (const auto& [gone, roles] : principals.revoke({token, 77}))
          for (const Role as : roles)
            EXPECT_EQ(std::erase_if(naive.all,
                                    [&, gone = gone](const Naive::Entry& e) {
                                      return e.who == gone && e.role == as && e.token == token;
                                    }),
                      1u);
        EXPECT_EQ(naive.count_of(token), 0u);
      } else if (!principals.is_admitted(who, role)) {
        std::set<PeerId> needed = {who};
        while (up_to(3) != 0) needed.insert(some_key());
        principals.admit(who, role, token);
        naive.all.push_back({who, role, token});
        for (const PrincipalForgotten& forgotten :
             principals.forget(token, [&](const PeerId& id) { return needed.contains(id); }))
          EXPECT_FALSE(principals.is_admitted(forgotten.principal, forgotten.role));
        naive.forget(token, kMax, needed);
      }
      principals.seen(who);
      naive.seen(who);
      for (uint8_t k = 0; k < kKeys; ++k)
        for (const Role as : {Role::Peer, Role::Submitter})
          ASSERT_EQ(principals.is_admitted(key(k), as), naive.is_admitted(key(k), as)) << "turn " << turn;
    }
  }
}

}  // namespace
}  // namespace weft::broker
