// Whose turn it is, over random comings and goings of many connections.
#include "broker/service/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rng.h"

namespace weft::broker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Instant kStart{seconds(1000)};

TEST(Arrivals, UrgentOnesGoFirstEachInItsOrder) {
  Arrivals arrivals({.max = 100});
  arrivals.begin(1, 60, false);
  EXPECT_EQ(arrivals.let_in(kStart, 0), std::vector<ConnectionId>{1});
  arrivals.begin(2, 50, false);
  arrivals.begin(3, 20, false);  // there would be room, but it is not its turn
  arrivals.begin(4, 50, true);
  EXPECT_TRUE(arrivals.let_in(kStart, 0).empty());
  EXPECT_TRUE(arrivals.waits(4));
  EXPECT_TRUE(arrivals.end(1));
  EXPECT_FALSE(arrivals.end(1));
  EXPECT_EQ(arrivals.let_in(kStart, 0), (std::vector<ConnectionId>{4, 2}));
  EXPECT_TRUE(arrivals.end(4));
  EXPECT_TRUE(arrivals.let_in(kStart, 40).empty()) << "others take of the room";
  EXPECT_EQ(arrivals.let_in(kStart, 30), std::vector<ConnectionId>{3});
}

TEST(Arrivals, OneThatIsLargerThanAllComesWhenNothingElseDoes) {
  Arrivals arrivals({.max = 100});
  arrivals.begin(1, 500, false);
  EXPECT_TRUE(arrivals.let_in(kStart, 1).empty());
  EXPECT_EQ(arrivals.let_in(kStart, 0).size(), 1u);
  arrivals.begin(2, 1, true);
  EXPECT_TRUE(arrivals.let_in(kStart, 0).empty());
}

TEST(Arrivals, WhoIsSlowIsLateOnlyWhileOthersWait) {
  Arrivals arrivals({.max = 100, .deadline = seconds(10), .bytes_per_second = 10});
  arrivals.begin(1, 100, false);
  (void)arrivals.let_in(kStart, 0);
  EXPECT_TRUE(arrivals.late(kStart + seconds(1000)).empty());
  arrivals.begin(2, 10, false);
  EXPECT_TRUE(arrivals.late(kStart + seconds(20)).empty()) << "ten seconds for its bytes, and ten";
  EXPECT_EQ(arrivals.late(kStart + seconds(20) + milliseconds(1)), std::vector<ConnectionId>{1});
  arrivals.begin(3, 10, true);
  EXPECT_EQ(arrivals.late(kStart + seconds(10) + milliseconds(1)), std::vector<ConnectionId>{1});
  EXPECT_TRUE(arrivals.late(kStart + seconds(10)).empty());
}

// Never more than there is room for; nobody is forgotten; with room for all, all come.
TEST(Arrivals, KeepToTheRoomAndForgetNobody) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    constexpr size_t kMax = 1000;
    Arrivals arrivals({.max = kMax});
    std::map<ConnectionId, size_t> waits, comes;
    ConnectionId next = 0;
    const auto sum = [](const auto& all) {
      size_t bytes = 0;
      for (const auto& [connection, size] : all) bytes += size;
      return bytes;
    };
    const auto any = [&](auto& of) { return std::next(of.begin(), static_cast<long>(rng.below(of.size()))); };
    for (int turn = 0; turn < 500; ++turn) {
      const uint64_t what = rng.below(10);
      if (what < 5) {
        waits[++next] = 1 + rng.below(400);
        arrivals.begin(next, waits[next], rng.below(3) == 0);
      } else if (auto& of = what < 6 ? waits : comes; !of.empty()) {
        const auto gone = any(of);
        EXPECT_TRUE(arrivals.end(gone->first));
        of.erase(gone);
      }
      const size_t in_use = rng.below(kMax);
      const size_t before = sum(comes);
      for (const ConnectionId connection : arrivals.let_in(kStart, in_use)) {
        ASSERT_EQ(waits.count(connection), 1u);
        comes.insert(waits.extract(connection));
      }
      if (sum(comes) > before) {
        ASSERT_LE(sum(comes) + in_use, kMax);
      }
      for (const auto& [connection, size] : waits) ASSERT_TRUE(arrivals.waits(connection));
      for (const auto& [connection, size] : comes) ASSERT_FALSE(arrivals.waits(connection));
    }
    while (!waits.empty()) {
      for (const auto& [connection, size] : comes) arrivals.end(connection);
      comes.clear();
      const auto let_in = arrivals.let_in(kStart, 0);
      ASSERT_FALSE(let_in.empty());
      for (const ConnectionId connection : let_in) comes.insert(waits.extract(connection));
    }
  }
}

}  // namespace
}  // namespace weft::broker
