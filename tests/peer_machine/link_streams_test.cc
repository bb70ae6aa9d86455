// The further connections of a link, from dialled to up.
#include "peer/machine/link_streams.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {

using Numbers = std::vector<uint64_t>;

TEST(LinkStreams, OneThatWasDialledIsUpOnceItHasIntroducedItself) {
  LinkStreams streams;
  EXPECT_FALSE(streams.awaits(1));
  streams.dial(1);
  EXPECT_TRUE(streams.awaits(1));
  EXPECT_EQ(streams.connections(), Numbers{});
  streams.connect(1, 40, Instant{});
  EXPECT_FALSE(streams.awaits(1));
  EXPECT_EQ(streams.connections(), Numbers{40});
  EXPECT_FALSE(streams.is_up(40));
  EXPECT_EQ(streams.up(), Numbers{});
  streams.set_up(40);
  EXPECT_TRUE(streams.is_up(40));
  EXPECT_EQ(streams.up(), Numbers{40});
}

TEST(LinkStreams, OneThatCameIsUpAtOnceAndEachIsFoundByItsNumber) {
  LinkStreams streams;
  const Instant now = Instant{} + std::chrono::seconds(9);
  streams.accept(2, 51, now);
  streams.accept(1, 52, now);
  streams.dial(3);
  EXPECT_TRUE(streams.is_up(51));
  EXPECT_EQ(streams.up(), (Numbers{52, 51})) << "in the order of their indices";
  ASSERT_NE(streams.find(51), nullptr);
  EXPECT_EQ(streams.find(51)->heard, now);
  EXPECT_FALSE(streams.find(51)->relayed);
  EXPECT_EQ(streams.find(53), nullptr);
}

TEST(LinkStreams, OneThatGoesLeavesItsIndexFree) {
  LinkStreams streams;
  streams.accept(1, 51, Instant{});
  streams.dial(2);
  streams.drop(99);
  EXPECT_TRUE(streams.contains(1));
  streams.drop(51);
  EXPECT_FALSE(streams.contains(1));
  EXPECT_TRUE(streams.awaits(2)) << "one that is being dialled has no number yet";
  streams.give_up(2);
  EXPECT_FALSE(streams.contains(2));
  streams.accept(3, 53, Instant{});
  streams.clear();
  EXPECT_EQ(streams.connections(), Numbers{});
}

}  // namespace
}  // namespace weft::peer
