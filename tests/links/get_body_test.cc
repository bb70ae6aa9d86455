// What comes of a blob that was asked for, chunk by chunk, of whoever keeps to what was promised and who does
// not.
#include "peer/service/get_body.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"

namespace weft::peer::test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t size, uint64_t seed) {
  Rng rng(seed, 1);
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(rng.below(7));
  return bytes;
}
std::string hash_of(const Bytes& bytes) {
  storage::Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

TEST(GetBody, CollectsChunksAlsoThoseThatWerePlaced) {
  const Bytes all = random_bytes(1000, 1);
  GetBody body;
  EXPECT_FALSE(body.expects(1)) << "nothing has been promised yet";
  ASSERT_TRUE(body.begin({.size = all.size()}));
  ASSERT_TRUE(body.expects(1000));
  EXPECT_FALSE(body.expects(1001));
  ASSERT_TRUE(body.take(std::span(all).first(300), 0));
  EXPECT_TRUE(body.expects(700));
  EXPECT_FALSE(body.expects(701));
  const net::PayloadPlace place = body.place(12, 400);
  ASSERT_NE(place.body, nullptr);
  EXPECT_EQ(place.head_size, 12u);
  std::memcpy(place.body.get(), all.data() + 300, 400);
  ASSERT_TRUE(body.take({}, 400));
  EXPECT_EQ(body.place(12, 301).body, nullptr) << "more than is left";
  EXPECT_FALSE(body.is_whole());
  ASSERT_TRUE(body.take(std::span(all).last(300), 0));
  EXPECT_TRUE(body.is_whole());
  EXPECT_EQ(body.hash(), hash_of(all));
  EXPECT_EQ(body.take_bytes(), all);
}

TEST(GetBody, HandsOnAndCollectsNothing) {
  const Bytes all = random_bytes(500, 2);
  Bytes heard;
  bool refuses = false;
  GetBody body([&](std::span<const std::byte> bytes) -> Status {
    heard.insert(heard.end(), bytes.begin(), bytes.end());
    return refuses ? fail(ErrorCode::ResourceExhausted, "the disk is full") : Status{};
  });
  ASSERT_TRUE(body.begin({.size = uint64_t{1} << 50})) << "no memory is named for it";
  EXPECT_EQ(body.place(12, 100).body, nullptr);
  ASSERT_TRUE(body.take(std::span(all).first(200), 0));
  refuses = true;
  EXPECT_EQ(body.take(std::span(all).last(300), 0).error().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(heard, all);
  EXPECT_TRUE(body.is_handed_on());
}

TEST(GetBody, UnpacksOnItsBaseAndNoMoreThanAUnitAtATime) {
  const Bytes base = random_bytes(3 * storage::kPackedUnit, 3);
  Bytes all = base;
  all[5] = std::byte{9};
  const auto owner = std::make_shared<Bytes>(base);
  storage::Packer packer;
  Bytes packed;
  std::vector<Bytes> units;
  for (size_t at = 0; at < all.size(); at += storage::kPackedUnit) {
    const size_t size = std::min(storage::kPackedUnit, all.size() - at);
    units.push_back(packer.pack(std::span(all).subspan(at, size), std::span(base).subspan(at, size)));
    packed.insert(packed.end(), units.back().begin(), units.back().end());
  }
  const auto begun = [&] {
    GetBody body({}, {owner, std::span<const std::byte>(*owner)});
    EXPECT_TRUE(body.has_base_of(all.size()));
    EXPECT_FALSE(body.has_base_of(all.size() + 1));
    EXPECT_TRUE(body.begin({.size = all.size(), .is_packed = true, .has_base = true}));
    return body;
  };
  GetBody body = begun();
  for (const Bytes& unit : units) {
    ASSERT_TRUE(body.expects(unit.size()));
    EXPECT_EQ(body.place(12, unit.size()).body, nullptr) << "it has to be unpacked first";
    ASSERT_TRUE(body.take(unit, 0));
  }
  EXPECT_TRUE(body.is_whole());
  EXPECT_EQ(body.hash(), hash_of(all));
  EXPECT_EQ(body.take_bytes(), all);
  GetBody greedy = begun();
  EXPECT_EQ(greedy.take(packed, 0).error().code, ErrorCode::Corrupted) << "three units in a chunk";
}

}  // namespace
}  // namespace weft::peer::test
