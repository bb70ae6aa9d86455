// Rings whose entry guesses tokens: each text has the bits of one machine that guesses nothing, whatever is
// guessed, and whatever is lost in between. And a stage that does not cut back what was guessed in vain.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "serve/draft.h"
#include "tests/incremental/ring_fixture.h"

namespace weft::incremental::testing {
namespace {

using serve::Pass;
using serve::PassPiece;
using serve::Request;
using serve::RingStage;

// Knows the texts, and errs by a coin: another token then, or none that the model has.
class KnownTexts final : public serve::Draft {
 public:
  KnownTexts(Pool& pool, const std::vector<Request>& requests, uint64_t seed, double right)
      : rng_(seed, 9), right_(right) {
    const std::vector<Told> told = pool.on_one_machine(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int64_t>& text = texts_[requests[i].sampling.seed];
      text = requests[i].prompt;
      for (const serve::Draw& draw : told[i].draws) text.push_back(draw.token);
    }
  }
  std::vector<int64_t> propose(uint64_t sequence, std::span<const int64_t> tokens,
                               const serve::SamplingOptions& options, int64_t count) override {
    const std::vector<int64_t>& text = texts_.at(options.seed);
    std::vector<int64_t> guesses;
    open.insert(sequence);
    for (size_t at = tokens.size(); count-- > 0; ++at) {
      const bool is_right = at < text.size() && rng_.uniform() < right_;
      guesses.push_back(is_right ? text[at] : static_cast<int64_t>(rng_.below(kVocabulary + 1)));
    }
    return guesses;
  }
  void end(uint64_t sequence) override { open.erase(sequence); }
  std::set<uint64_t> open;

 private:
  std::map<uint64_t, std::vector<int64_t>> texts_;  // by the request's seed
  Rng rng_;
  double right_;
};

class RingDraftTest : public RingTest {
 protected:
  struct Tried {
    WorldOptions options;
    std::vector<Request> requests;
    std::shared_ptr<KnownTexts> draft{};
  };
  Tried make(uint64_t seed, const std::vector<uint32_t>& cuts) {
    Rng rng(seed, 10);
    Tried tried{.options = {.cuts = cuts}, .requests = random_requests(rng, 1 + rng.below(6), 40)};
    tried.draft = std::make_shared<KnownTexts>(pool(seed % 2), tried.requests, seed, rng.uniform() * 1.2);
    tried.options.ring = {.rows_max = 4 + static_cast<int64_t>(rng.below(13)),
                          .passes_max = 1 + seed % 7,
                          .sequences_max = 1 + rng.below(8),
                          .positions_max = 96 * static_cast<int64_t>(1 + rng.below(8)),
                          .prompt_rows = 1 + static_cast<int64_t>(rng.below(8)),
                          .draft = tried.draft,
                          .row_cost = rng.uniform(),
                          .passes_shared = rng.below(1 + seed % 7)};
    tried.options.ring.kept_positions_max = tried.options.ring.positions_max;
    return tried;
  }
};

TEST_F(RingDraftTest, GivesTheTextOfOneMachine) {
  const std::vector<std::vector<uint32_t>> cuts{{}, {3, 6}, {2, 4, 7}, {1, 3, 5, 8}};
  for (uint64_t seed = 0; seed < 128; ++seed) {
    Tried tried = make(seed, cuts[seed % 4]);
    World world(pool(seed % 2), tried.requests, tried.options, seed);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
    EXPECT_TRUE(tried.draft->open.empty());
  }
}

// One stage or several, the entry too, again and again.
TEST_F(RingDraftTest, GivesItWhateverIsLost) {
  size_t lost = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Tried tried = make(seed, {1, 2, 4, 5, 8});
    tried.options.loss = seed % 4 == 0 ? Loss::Passes : Loss::Some;
    tried.options.losses_max = 4;
    tried.options.renew = [](Rng& rng, size_t stages) {
      const auto begin = static_cast<size_t>(rng.below(stages + 1));
      const auto end = begin + static_cast<size_t>(rng.below(stages + 1 - begin));
      return Renewed{begin, end, rng.below(4) == 0};
    };
    if (seed % 3 == 0) tried.options.ring.kept_positions_max = static_cast<int64_t>(seed % 100);
    World world(pool(seed % 2), tried.requests, tried.options, seed);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
    lost += world.lost();
  }
  EXPECT_GT(lost, 200u);
}

// One sequence alone fills the ring where its guesses are right. A place is left for its next token, should
// one be wrong.
TEST_F(RingDraftTest, OneSequenceIsInAllPasses) {
  Rng rng(1, 11);
  Request request = random_request(rng, 3);
  request.tokens_max = 50;
  request.ends.clear();
  WorldOptions options{.cuts = {1, 3, 5, 8}, .ring = {.passes_max = 6, .positions_max = 96}};
  options.cancels = false;
  options.ring.draft = std::make_shared<KnownTexts>(pool(), std::vector<Request>{request}, 1, 1);
  World world(pool(), {request}, options, 1);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(world.most_under_way(), 5u);
}

// What comes anew from an earlier position is put behind what was there.
TEST_F(RingDraftTest, AStageThatDoesNotCutBackIsSeen) {
  int happened = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Tried tried = make(seed, {2, 4, 7});
    tried.options.cancels = false;
    for (Request& request : tried.requests) request.ends.clear();
    tried.options.ring.draft = std::make_shared<KnownTexts>(pool(seed % 2), tried.requests, seed, 0.5);
    std::map<uint64_t, int64_t> lengths;
    bool has_changed = false;
    const RingStage* wrong = nullptr;
    tried.options.run_stage = [&](RingStage& stage, const Pass& pass) -> Result<Pass> {
      if (wrong == nullptr) wrong = &stage;
      if (&stage != wrong) return stage.run(pass);
      Pass changed = pass;
      for (PassPiece& piece : changed.pieces) {
        int64_t& length = lengths[piece.sequence];
        if (!piece.ends() && piece.first < length && length + piece.count <= piece.expected)
          piece.first = length, has_changed = true;
        length = piece.first + piece.count;
      }
      auto out = stage.run(changed);
      if (out) out->pieces = pass.pieces;
      return out;
    };
    World world(pool(seed % 2), tried.requests, tried.options, seed);
    const std::string fault = world.run();
    happened += has_changed ? 1 : 0;
    EXPECT_EQ(fault.empty(), !has_changed) << "seed " << seed << ": " << fault;
  }
  EXPECT_GE(happened, 50);
}

}  // namespace
}  // namespace weft::incremental::testing
