// Stages in a ring against one decoder: the first holds the beginning and the end, each has weights of its
// own, and rows pass from one to the next as tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "serve/stage.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::incremental::testing {
namespace {

using serve::PassPiece;
using serve::RowTensors;
using serve::Stage;

class Ring {
 public:
  // Cuts at random between parts.
  Ring(const Model& model, std::shared_ptr<const dag::Incremental> incremental, size_t stages,
       peer::Backend& backend, Rng& rng)
      : model_(std::move(incremental)) {
    const uint32_t parts = serve::part_count(*model_);
    std::vector<uint32_t> cuts;
    while (cuts.size() < stages) {
      const auto cut = static_cast<uint32_t>(1 + rng.below(parts - 1));
      if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
    }
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::vector<serve::PartRange>> ranges{{{0, cuts[0]}, {cuts.back(), parts}}};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) ranges.push_back({{cuts[i], cuts[i + 1]}});
    for (auto& of_stage : ranges) {
      auto stage = Stage::create(model_, of_stage, model.weights, std::make_shared<peer::State>(backend), 64);
      EXPECT_TRUE(stage) << stage.error().message;
      if (stage) stages_.push_back(std::move(*stage));
    }
  }
  bool is_whole() const { return !stages_.empty(); }
  Stage& stage(size_t i) { return *stages_[i]; }

  Result<dag::Tensor> pass(const std::vector<PassPiece>& pieces, const std::vector<int64_t>& tokens) {
    const dag::RowSpec spec = model_->tokens();
    RowTensors rows{
        {spec.name, dag::from_int64s({spec.dtype, {static_cast<int64_t>(tokens.size()), 1}}, tokens)}};
    for (size_t i = 0; i <= stages_.size(); ++i) {
      const bool last = i == stages_.size();
      WEFT_TRY(rows, stages_[last ? 0 : i]->run(last ? 1 : 0, pieces, rows));
    }
    return rows.begin()->second;
  }

 private:
  std::shared_ptr<const dag::Incremental> model_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

void expect_equal(const dag::Tensor& a, const dag::Tensor& b) {
  ASSERT_EQ(a.spec(), b.spec());
  EXPECT_EQ(std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()), 0);
}

class StagesOf : public ::testing::TestWithParam<size_t> {};

// Three sequences, prompts in chunks, each decoded on, one of them begun anew from its middle.
TEST_P(StagesOf, GiveTheBitsOfOne) {
  const uint64_t seed = 20261125 + GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(backend);
  for (const Form& form :
       {Form{.name = "learnt", .length = 400, .layers = 4},
        Form{.name = "rotary",
        .positions = Positions::Halves,
        .heads = Heads::Expanded,
        .length = 400,
        .layers = 4,
        .tied = true},
        Form{.name = "odd width", .length = 400, .width = 21, .head_count = 3, .layers = 4},
        Form{.name = "shared keys", .length = 400, .layers = 4, .shares_keys = true}}) {
    SCOPED_TRACE(form.name);
    const Model model = make_model(form);
    const auto incremental = derive(model);
    ASSERT_TRUE(incremental) << incremental.error().message;
    Ring ring(model, *incremental, GetParam(), **backend, rng);
    const auto one = Stage::create(*incremental, {{0, serve::part_count(**incremental)}}, model.weights,
                                   std::make_shared<peer::State>(**backend), 64);
    ASSERT_TRUE(one && ring.is_whole());
    const dag::RowSpec spec = (*incremental)->tokens();
    std::map<uint64_t, int64_t> length;
    for (int pass = 0; pass < 24; ++pass) {
      std::vector<PassPiece> pieces;
      std::vector<int64_t> tokens;
      for (const uint64_t sequence : {7u, 8u, 9u}) {
        if (pass == 6 && sequence == 8) length[sequence] /= 2;  // what follows is something else
        const auto count = static_cast<int64_t>(1 + rng.below(20));
        // Memory for all of it at once, for a part of it, and for as much as is needed.
        const int64_t expected = sequence == 7 ? 400 : sequence == 8 ? 150 : 0;
        pieces.push_back({sequence, length[sequence], count, 1, expected});
        for (int64_t i = 0; i < count; ++i)
          tokens.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(form.vocabulary))));
        length[sequence] += count;
      }
      const auto made = ring.pass(pieces, tokens);
      ASSERT_TRUE(made) << made.error().message;
      const auto wanted = (*one)->run(
          0, pieces,
          {{spec.name, dag::from_int64s({spec.dtype, {static_cast<int64_t>(tokens.size()), 1}}, tokens)}});
      ASSERT_TRUE(wanted) << wanted.error().message;
      expect_equal(*made, wanted->begin()->second);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Counts, StagesOf, ::testing::Values(1, 2, 3, 4));

TEST(Stage, RefusesWhatDoesNotFitAndChangesNothing) {
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(backend);
  const Model model = make_model({.name = "small", .length = 32});
  const auto incremental = derive(model);
  ASSERT_TRUE(incremental);
  const auto stage = Stage::create(*incremental, {{0, serve::part_count(**incremental)}}, model.weights,
                                   std::make_shared<peer::State>(**backend), 8);
  ASSERT_TRUE(stage);
  const dag::RowSpec spec = (*incremental)->tokens();
  const auto run = [&](std::vector<PassPiece> pieces, int64_t rows) {
    const auto tensor = dag::Tensor({spec.dtype, {rows, 1}});
    const auto made = (*stage)->run(0, pieces, {{spec.name, tensor}});
    return made ? std::string("fine") : std::string(to_string(made.error().code));
  };
  EXPECT_EQ(run({{1, 0, 3, 1}}, 3), "fine");
  EXPECT_EQ(run({{1, 4, 1, 1}}, 1), to_string(ErrorCode::InvalidArgument));  // a gap
  EXPECT_EQ(run({{2, 1, 1, 1}}, 1), to_string(ErrorCode::InvalidArgument));  // unknown, in its middle
  EXPECT_EQ(run({{1, 3, 2, 1}}, 1), to_string(ErrorCode::InvalidArgument));  // rows are missing
  EXPECT_EQ(run({{1, 3, 1, 1}, {1, 4, 1, 1}}, 2), to_string(ErrorCode::InvalidArgument));  // twice
  EXPECT_EQ(run({{1, 3, 1, 2}}, 1), to_string(ErrorCode::InvalidArgument));     // logits without a row
  EXPECT_EQ(run({{1, 3, 9, 1}}, 9), to_string(ErrorCode::OutOfRange));          // too many rows
  EXPECT_EQ(run({{1, 3, INT64_MAX, 1}}, 1), to_string(ErrorCode::OutOfRange));  // beyond the context
  const dag::Tensor row({spec.dtype, {1, 1}});
  const std::vector<PassPiece> next{{1, 3, 1, 1}};
  const auto more = (*stage)->run(0, next, {{spec.name, row}, {"rows that nobody wants", row}});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ((*stage)->sequences(), 1u);
  EXPECT_EQ(run({{1, 3, 1, 1}}, 1), "fine");
  (*stage)->end(1);
  (*stage)->end(99);
  EXPECT_EQ((*stage)->sequences(), 0u);
  EXPECT_EQ(run({{1, 4, 1, 1}}, 1), to_string(ErrorCode::InvalidArgument));  // what ended is gone
}

}  // namespace
}  // namespace weft::incremental::testing
