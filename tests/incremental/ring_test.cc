// Rings of stages against one machine: each text has its bits, whatever is lost, late or cancelled in
// between. And mistakes planted in a stage, each of which has to be seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/incremental/ring_fixture.h"

namespace weft::incremental::testing {
namespace {

using serve::Pass;
using serve::PassPiece;
using serve::Request;
using serve::RingStage;

const std::vector<std::vector<uint32_t>> kCuts{{}, {3, 6}, {2, 4, 7}, {1, 3, 5, 8}};

serve::RingOptions random_options(Rng& rng, size_t passes) {
  serve::RingOptions options;
  options.rows_max = 4 + static_cast<int64_t>(rng.below(13));
  options.passes_max = passes;
  options.sequences_max = 1 + rng.below(8);
  options.positions_max = 96 * static_cast<int64_t>(1 + rng.below(8));
  options.prompt_rows = 1 + static_cast<int64_t>(rng.below(8));
  return options;
}

TEST_F(RingTest, GivesTheTextOfOneMachine) {
  for (uint64_t seed = 0; seed < 128; ++seed) {
    Rng rng(seed, 1);
    WorldOptions options{.cuts = kCuts[seed % 4], .ring = random_options(rng, 1 + seed / 4 % 4)};
    options.loss = static_cast<Loss>(seed / 16 % 4);
    World world(pool(seed % 2), random_requests(rng, 1 + rng.below(8)), options, seed);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

// More sequences than passes: as many are under way as may be, and each has its share of what is generated.
TEST_F(RingTest, KeepsAllPassesUnderWay) {
  for (size_t passes = 1; passes <= 4; ++passes) {
    Rng rng(passes, 2);
    std::vector<Request> requests = random_requests(rng, 6);
    for (Request& request : requests) {
      request.prompt.resize(1);
      request.tokens_max = 40;
      request.ends.clear();
    }
    WorldOptions options{.cuts = kCuts[3], .ring = {.passes_max = passes, .positions_max = 6 * 96}};
    options.cancels = false;
    int64_t largest = 0;
    options.run_stage = [&](RingStage& stage, const Pass& pass) {
      if (pass.number > 40) largest = std::max(largest, serve::row_count(pass.pieces));
      return stage.run(pass);
    };
    World world(pool(), requests, options, passes);
    EXPECT_EQ(world.run(), "");
    EXPECT_EQ(world.most_under_way(), passes);
    EXPECT_LE(largest, static_cast<int64_t>((requests.size() + passes - 1) / passes));
  }
}

// So does one request alone, while its prompt is computed.
TEST_F(RingTest, APromptIsInSeveralPasses) {
  Rng rng(1, 4);
  Request request = random_request(rng, 3);
  request.prompt.resize(60, 5);
  WorldOptions options{.cuts = kCuts[3], .ring = {.rows_max = 8, .passes_max = 4, .positions_max = 96}};
  options.cancels = false;
  World world(pool(), {request}, options, 1);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(world.most_under_way(), 4u);
}

// Of a random sequence of the pass.
void spoil(Pass& pass, Rng& rng) {
  int64_t row = 0;
  const auto wanted = static_cast<size_t>(rng.below(pass.pieces.size()));
  for (size_t i = 0; i < wanted; ++i) row += pass.pieces[i].count;
  if (pass.pieces[wanted].ends()) return;
  for (auto& [name, tensor] : pass.rows)
    if (tensor.dtype() == dag::DType::F32)
      tensor.mutable_as<float>()[row * tensor.shape()[1]] = std::numeric_limits<float>::quiet_NaN();
}

// Requests fail while others, and more of their own, are under way.
TEST_F(RingTest, WhatFailsHarmsNoOther) {
  size_t failed = 0;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Rng rng(seed, 6);
    WorldOptions options{.cuts = kCuts[1 + seed % 3], .ring = random_options(rng, 1 + seed / 4 % 4)};
    options.ring.rows_max = 4;
    options.run_stage = [&](RingStage& stage, const Pass& pass) {
      auto out = stage.run(pass);
      if (out && rng.below(16) == 0) spoil(*out, rng);
      return out;
    };
    options.entry_stage = [&](std::unique_ptr<serve::Stage> stage) {
      return std::make_unique<Failing>(std::move(stage), [&](size_t) {
        return rng.below(32) == 0 ? std::optional(ErrorCode::ResourceExhausted) : std::nullopt;
      });
    };
    World world(pool(seed % 2), random_requests(rng, 8), options, seed);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
    failed += world.failed();
  }
  EXPECT_GT(failed, 64u);
  EXPECT_LT(failed, 64u * 7);
}

// A stage with a mistake. It hides it from the entry: what goes on has the pieces that came.
class Mistake {
 public:
  virtual ~Mistake() = default;
  Result<Pass> run(RingStage& stage, const Pass& pass) {
    Pass changed = pass;
    change(changed);
    happened_ = happened_ || changed.pieces != pass.pieces || rows_changed_;
    Pass out = pass;
    if (!changed.pieces.empty()) {
      WEFT_TRY(out, stage.run(changed));
    }
    out.pieces = pass.pieces;
    return out;
  }
  bool happened() const { return happened_; }

 protected:
  virtual void change(Pass& pass) = 0;
  bool happened_ = false, rows_changed_ = false;
};

class EndNotPassedOn final : public Mistake {
  void change(Pass& pass) override {
    if (happened_) return;
    std::erase_if(pass.pieces, [](const PassPiece& piece) { return piece.ends(); });
  }
};

class WrongSequence final : public Mistake {
  void change(Pass& pass) override {
    std::vector<PassPiece*> going_on;
    for (PassPiece& piece : pass.pieces)
      if (!piece.ends()) going_on.push_back(&piece);
    if (happened_ || going_on.size() < 2) return;
    std::swap(going_on[0]->sequence, going_on[1]->sequence);
  }
};

// The rows of the pass before, where they have the same form.
class StaleRows final : public Mistake {
  void change(Pass& pass) override {
    const serve::RowTensors fresh = pass.rows;
    const bool fits = std::equal(fresh.begin(), fresh.end(), last_.begin(), last_.end(),
                                 [](auto& a, auto& b) { return a.second.spec() == b.second.spec(); });
    if (!rows_changed_ && fits && !fresh.empty()) {
      pass.rows = last_;
      rows_changed_ = true;
    }
    last_ = fresh;
  }
  serve::RowTensors last_;
};

// What comes anew from its beginning is put behind what was there.
class NotCutBack final : public Mistake {
  void change(Pass& pass) override {
    for (PassPiece& piece : pass.pieces) {
      int64_t& length = lengths_[piece.sequence];
      if (!piece.ends() && piece.first < length && length + piece.count <= 96) piece.first = length;
      length = piece.first + piece.count;
    }
  }
  std::map<uint64_t, int64_t> lengths_;
};

class MistakeTest : public RingTest {
 protected:
  // In the stage behind the entry, in rings of three.
  template <typename M>
  void expect_seen(Loss loss = Loss::None) {
    int happened = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Rng rng(seed, 3);
      WorldOptions options{.cuts = kCuts[2], .ring = random_options(rng, 1 + seed % 4)};
      options.ring.positions_max = 96 * 8;
      options.cancels = false;
      options.loss = loss;
      M mistake;
      const RingStage* wrong = nullptr;  // whichever is first reached
      options.run_stage = [&](RingStage& stage, const Pass& pass) {
        if (wrong == nullptr) wrong = &stage;
        return &stage == wrong ? mistake.run(stage, pass) : stage.run(pass);
      };
      std::vector<Request> requests = random_requests(rng, 2 + rng.below(7), 20);
      // What makes no difference cannot be seen: the first position twice, as long as it looks at itself
      // alone; and other logits of a token that ends a text, and so is not told.
      for (Request& request : requests) {
        if (request.prompt.size() == 1) request.prompt.push_back((request.prompt[0] + 1) % kVocabulary);
        request.ends.clear();
      }
      World world(pool(seed % 2), requests, options, seed);
      const std::string fault = world.run();
      happened += mistake.happened() ? 1 : 0;
      EXPECT_EQ(fault.empty(), !mistake.happened()) << "seed " << seed << ": " << fault;
    }
    EXPECT_GE(happened, 50);
  }
};

TEST_F(MistakeTest, AnEndThatIsNotPassedOn) { expect_seen<EndNotPassedOn>(); }
TEST_F(MistakeTest, AWrongSequence) { expect_seen<WrongSequence>(); }
TEST_F(MistakeTest, RowsOfThePassBefore) { expect_seen<StaleRows>(); }
TEST_F(MistakeTest, ACacheThatIsNotCutBack) { expect_seen<NotCutBack>(Loss::Passes); }

}  // namespace
}  // namespace weft::incremental::testing
