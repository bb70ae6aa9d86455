// Rings that lose some of their stages, again and again: each text has the bits of one machine, and no stage
// computes a position twice that has come round. And mistakes planted in what a new stage is given.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/incremental/ring_fixture.h"

namespace weft::incremental::testing {
namespace {

using serve::Pass;
using serve::PassPiece;
using serve::Request;

using Renew = std::function<Renewed(Rng& rng, size_t stages)>;

Renewed one(Rng& rng, size_t stages) {
  const auto first = static_cast<size_t>(rng.below(stages));
  return {first, first + 1};
}
Renewed two_neighbours(Rng& rng, size_t stages) {
  const auto first = static_cast<size_t>(rng.below(stages - 1));
  return {first, first + 2};
}
Renewed all_but_the_entry(Rng&, size_t stages) { return {0, stages}; }
Renewed nobody(Rng&, size_t) { return {}; }
Renewed any(Rng& rng, size_t stages) {
  const auto begin = static_cast<size_t>(rng.below(stages + 1));
  const auto end = begin + static_cast<size_t>(rng.below(stages + 1 - begin));
  return {begin, end, rng.below(4) == 0};
}

class RingLossTest : public RingTest {
 protected:
  static WorldOptions options_for(Rng& rng, uint64_t seed, const std::vector<uint32_t>& cuts) {
    WorldOptions options{.cuts = cuts, .loss = Loss::Some, .losses_max = 1 + rng.below(4)};
    options.ring = {.rows_max = 4 + static_cast<int64_t>(rng.below(13)),
                    .passes_max = 1 + seed % 4,
                    .sequences_max = 1 + rng.below(8),
                    .positions_max = 96 * static_cast<int64_t>(1 + rng.below(8)),
                    .prompt_rows = 1 + static_cast<int64_t>(rng.below(8))};
    options.ring.kept_positions_max = options.ring.positions_max;
    return options;
  }
  void expect_texts(const Renew& renew, const std::vector<uint32_t>& cuts, bool is_short = false) {
    size_t lost = 0;
    int64_t filled = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Rng rng(seed, 7);
      WorldOptions options = options_for(rng, seed, cuts);
      options.renew = renew;
      if (is_short) options.ring.kept_positions_max = static_cast<int64_t>(rng.below(100));
      World world(pool(seed % 2), random_requests(rng, 1 + rng.below(8), 20), options, seed);
      EXPECT_EQ(world.run(), "") << "seed " << seed;
      lost += world.lost();
      filled += world.filled();
    }
    EXPECT_GT(lost, 100u);
    EXPECT_GT(filled, 100);
  }
};

TEST_F(RingLossTest, OfOneStage) { expect_texts(one, {1, 3, 5, 8}); }
TEST_F(RingLossTest, OfTheOnlyOne) { expect_texts(one, {3, 6}); }
TEST_F(RingLossTest, OfTwoNeighbours) { expect_texts(two_neighbours, {1, 3, 5, 8}); }
TEST_F(RingLossTest, OfAllButTheEntry) { expect_texts(all_but_the_entry, {1, 3, 5, 8}); }
TEST_F(RingLossTest, OfAny) { expect_texts(any, {1, 2, 4, 5, 8}); }
TEST_F(RingLossTest, OfWhatIsUnderWay) { expect_texts(nobody, {2, 4, 7}); }
TEST_F(RingLossTest, WhereFewAreKept) { expect_texts(any, {1, 2, 4, 5, 8}, /*is_short=*/true); }

// What a new stage is given, wrong: each is seen, by a text or by a stage that misses a position.
class HistoryMistakeTest : public RingLossTest {
 protected:
  // Whether it changed anything.
  using Change = std::function<bool(Pass& pass)>;
  void expect_seen(const Change& change) {
    int happened = 0, seen = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Rng rng(seed, 8);
      WorldOptions options = options_for(rng, seed, {2, 4, 7});
      options.cancels = false;
      options.renew = one;
      bool has_changed = false;
      options.on_history = [&](Pass& pass) { has_changed = change(pass) || has_changed; };
      std::vector<Request> requests = random_requests(rng, 2 + rng.below(7), 40);
      for (Request& request : requests) {
        request.prompt.resize(std::max<size_t>(3, request.prompt.size()), 7);
        request.ends.clear();
      }
      World world(pool(seed % 2), requests, options, seed);
      const std::string fault = world.run();
      happened += has_changed ? 1 : 0;
      seen += fault.empty() ? 0 : 1;
      EXPECT_TRUE(has_changed || fault.empty()) << "seed " << seed << ": " << fault;
    }
    EXPECT_GE(happened, 40);
    EXPECT_GE(seen, happened * 9 / 10);  // a sequence that ends with the loss needs nothing
  }
};

TEST_F(HistoryMistakeTest, APassOfItIsLost) {
  expect_seen([](Pass& pass) { return !std::exchange(pass.pieces, {}).empty(); });
}
TEST_F(HistoryMistakeTest, ASequenceIsLeftOut) {
  expect_seen([](Pass& pass) {
    pass.pieces[0].sequence += 1000;
    return true;
  });
}
TEST_F(HistoryMistakeTest, RowsOfAnotherPosition) {
  expect_seen([](Pass& pass) {
    if (pass.pieces[0].count < 2) return false;
    for (auto& [name, tensor] : pass.rows) {
      if (tensor.dtype() != dag::DType::F32) continue;
      const auto width = static_cast<size_t>(tensor.shape()[1]);
      const auto numbers = tensor.mutable_as<float>();
      std::swap_ranges(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(width),
                       numbers.begin() + static_cast<std::ptrdiff_t>(width));
    }
    return true;
  });
}
TEST_F(HistoryMistakeTest, TheLastPositionIsMissing) {
  expect_seen([](Pass& pass) {
    PassPiece& last = pass.pieces.back();
    if (last.count < 2) return false;
    --last.count;
    for (auto& [name, tensor] : pass.rows)
      tensor = tensor.elements(0, serve::row_count(pass.pieces) * tensor.shape()[1])
                   .reshaped({serve::row_count(pass.pieces), tensor.shape()[1]});
    return true;
  });
}

}  // namespace
}  // namespace weft::incremental::testing
