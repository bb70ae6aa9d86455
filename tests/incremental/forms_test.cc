// Models in the forms that people write them in: each derives, and computes the bits of its whole window.
#include <gtest/gtest.h>

#include <ostream>

#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::incremental::testing {

void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

namespace {

std::vector<Form> forms() {
  return {
      {.name = "Gpt"},
      {.name = "AddedMask", .mask = Mask::AddBillion},
      {.name = "OldGpt2Mask", .mask = Mask::OldGpt2, .tied = true},
      {.name = "ComparedRanges", .mask = Mask::Comparison},
      {.name = "CornerOfALargerMask", .mask = Mask::SliceOfLarger},
      {.name = "CastMask", .mask = Mask::CastOfBools},
      {.name = "TiedHead", .tied = true},
      {.name = "WithoutBatch", .layout = Layout::Folded, .batch = false},
      {.name = "AsLongAsWide", .length = 64, .width = 64, .head_count = 4},
      {.name = "EverySizeTheSame", .length = 16, .width = 16, .head_count = 16, .vocabulary = 16},
      {.name = "AsLongAsAHead", .positions = Positions::None, .length = 16, .width = 64, .head_count = 4},
      // Rows that do not begin where a device can address them.
      {.name = "RowsOfEightyBytes", .width = 20},
      {.name = "RowsOfOddWidth", .positions = Positions::Learnt, .width = 21, .head_count = 3},
      {.name = "HeadsInTheBatch", .layout = Layout::Folded},
      {.name = "HeadsAmongTheRows", .layout = Layout::Rows},
      {.name = "KeysTransposed", .layout = Layout::Explicit},
      {.name = "TurnedScores", .layout = Layout::Turned},
      {.name = "TurnedScoresWithBias", .positions = Positions::Relative, .layout = Layout::Turned},
      {.name = "OneProduct", .layout = Layout::OneProduct},
      {.name = "Alibi", .mask = Mask::AddBillion, .positions = Positions::Alibi},
      {.name = "RelativeBias", .positions = Positions::Relative, .norm = Norm::Rms, .mlp = Mlp::Relu},
      {.name = "RotaryByHalves", .positions = Positions::Halves},
      {.name = "RotaryByNeighbours", .positions = Positions::Interleaved},
      {.name = "RotaryLookedUp", .positions = Positions::Gathered},
      {.name = "RotaryComputed", .positions = Positions::Computed},
      {.name = "GroupedByExpand",
       .mask = Mask::AddBillion,
       .positions = Positions::Halves,
       .heads = Heads::Expanded,
       .norm = Norm::Rms,
       .mlp = Mlp::SwiGlu},
      {.name = "GroupedByExpandFolded", .heads = Heads::Expanded, .layout = Layout::Folded},
      {.name = "GroupedByExpandTurned", .heads = Heads::Expanded, .layout = Layout::Turned},
      {.name = "GroupedByConcat", .positions = Positions::Computed, .heads = Heads::Concatenated},
      {.name = "OneKeyForAll", .heads = Heads::One},
      {.name = "SlidingWindow",
       .mask = Mask::Comparison,
       .positions = Positions::Halves,
       .heads = Heads::Expanded,
       .window = 11},
      {.name = "AttentionBesideMlp", .positions = Positions::Interleaved, .parallel = true},
      {.name = "SoftmaxWrittenOut", .weighting = Weighting::WrittenOut},
      {.name = "SoftmaxWrittenOutTurned", .weighting = Weighting::WrittenOut, .layout = Layout::Turned},
      {.name = "NanReplaced", .weighting = Weighting::WithoutNan},
      {.name = "SigmoidAttentionTurned", .weighting = Weighting::Sigmoid, .layout = Layout::Turned},
      {.name = "SigmoidAttention", .mask = Mask::AddBillion, .weighting = Weighting::Sigmoid},
      {.name = "SharedKeys", .heads = Heads::Expanded, .layers = 3, .shares_keys = true},
      {.name = "ScoresHandedOn", .layers = 3, .hands_scores = true},
      {.name = "BatchNorm", .norm = Norm::Batch},
      {.name = "GeluWrittenOut", .mlp = Mlp::GeluTanh},
      {.name = "Experts", .norm = Norm::Rms, .mlp = Mlp::Experts},
      {.name = "AttentionAlone", .norm = Norm::None, .mlp = Mlp::None},
      {.name = "SixLayers", .layers = 6},
      {.name = "Long", .positions = Positions::Halves, .length = 330, .layers = 1},
      {.name = "NoAttention", .attends = false},
  };
}

class Forms : public ::testing::TestWithParam<Form> {};

TEST_P(Forms, HaveTheBitsOfTheWindow) {
  const auto backend = peer::make_cpu_backend({.threads = 2, .pin = false});
  ASSERT_TRUE(backend) << backend.error().message;
  expect_equal_bits(make_model(GetParam()), **backend, 11);
}

INSTANTIATE_TEST_SUITE_P(All, Forms, ::testing::ValuesIn(forms()),
                         [](const auto& test) { return test.param.name; });

TEST(ReferenceBackend, HasTheBitsOfTheWindow) {
  const auto backend = peer::make_reference_backend();
  for (const std::string name : {"Gpt", "TurnedScores", "GroupedByExpand", "SoftmaxWrittenOut"}) {
    SCOPED_TRACE(name);
    for (Form form : forms()) {
      if (form.name != name) continue;
      form.length = 70;
      expect_equal_bits(make_model(form), *backend, 12, {.chunks = {1, 64}, .sequences = 2, .passes = 8});
    }
  }
}

}  // namespace
}  // namespace weft::incremental::testing
