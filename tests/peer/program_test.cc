// Memory plans: blocks that are alive together never overlap, and nothing that is still needed is written
// over.
#include "peer/program.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::peer {
namespace {

bool overlap_in_time(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }
bool overlap_in_space(const Block& a, const Block& b) {
  return a.size.value > 0 && b.size.value > 0 && a.offset < b.offset + b.size.value &&
         b.offset < a.offset + a.size.value;
}

TEST(PlaceBlocks, BlocksAliveTogetherNeverOverlap) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    std::vector<Block> blocks(80);
    int64_t sum = 0;
    for (Block& block : blocks) {
      block.size = {static_cast<int64_t>(rng.below(5000))};
      block.first = static_cast<uint32_t>(rng.below(60));
      block.last = block.first + static_cast<uint32_t>(rng.below(15));
      sum += (block.size.value + 63) / 64 * 64;
    }
    const Bytes total = place_blocks(blocks, 64);
    int64_t alive_most = 0;
    for (uint32_t t = 0; t < 80; ++t) {
      int64_t alive = 0;
      for (const Block& block : blocks)
        if (block.first <= t && t <= block.last) alive += block.size.value;
      alive_most = std::max(alive_most, alive);
    }
    EXPECT_GE(total.value, alive_most);
    EXPECT_LT(total.value, sum);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].offset % 64, 0);
      EXPECT_LE(blocks[i].offset + blocks[i].size.value, total.value);
      for (size_t k = 0; k < i; ++k)
        EXPECT_FALSE(overlap_in_time(blocks[i], blocks[k]) && overlap_in_space(blocks[i], blocks[k]))
            << i << " and " << k;
    }
  }
}

TEST(PlaceBlocks, ReusesMemoryOfWhatIsOver) {
  std::vector<Block> blocks = {{{1000}, 0, 1}, {{1000}, 2, 3}, {{500}, 4, 5}};
  EXPECT_EQ(place_blocks(blocks, 64).value, 1024);
}

}  // namespace
}  // namespace weft::peer
