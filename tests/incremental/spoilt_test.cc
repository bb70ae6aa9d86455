// Rows that are not finite and are taken back, as of a token that was guessed in vain: what follows has the
// bits that it has without them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "serve/stage.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::incremental::testing {
namespace {

using serve::PassPiece;
using serve::Stage;

constexpr int64_t kSpoils = 7;  // a token

// The row of the token in what tokens are looked up in.
void spoil(Model& model) {
  for (const dag::Op& op : model.graph->ops()) {
    if (op.kind != dag::OpKind::Gather || model.graph->value(op.inputs[1]).name != model.tokens) continue;
    const dag::Tensor& table = model.weights.at(model.graph->value(op.inputs[0]).name);
    dag::Tensor changed(table.spec());
    std::memcpy(changed.mutable_bytes().data(), table.bytes().data(), table.bytes().size());
    auto* rows = reinterpret_cast<float*>(changed.mutable_bytes().data());
    const int64_t width = table.shape()[1];
    std::fill_n(rows + kSpoils * width, width, std::numeric_limits<float>::quiet_NaN());
    model.weights.insert_or_assign(model.graph->value(op.inputs[0]).name, changed);
    return;
  }
  FAIL() << "no table is looked up";
}

class Spoilt : public ::testing::Test {
 protected:
  void make(const Form& form, peer::Backend& backend, std::vector<uint32_t> cuts) {
    Model model = make_model(form);
    spoil(model);
    const auto derived = derive(model);
    ASSERT_TRUE(derived) << derived.error().message;
    model_ = *derived;
    std::vector<serve::PartRange> ranges;
    uint32_t begin = 0;
    cuts.push_back(serve::part_count(*model_));
    for (const uint32_t end : cuts) {
      ranges.push_back({begin, end});
      begin = end;
    }
    auto stage = Stage::create(model_, ranges, model.weights, std::make_shared<peer::State>(backend), 64);
    ASSERT_TRUE(stage) << stage.error().message;
    stage_ = std::move(*stage);
    ranges_ = ranges.size();
  }
  // Logits of all of them.
  dag::Tensor pass(uint64_t sequence, int64_t first, const std::vector<int64_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    const std::vector<PassPiece> pieces{
        {.sequence = sequence, .first = first, .count = count, .logits = count, .expected = 90}};
    const dag::RowSpec spec = model_->tokens();
    serve::RowTensors rows{{spec.name, dag::from_int64s({spec.dtype, {count, 1}}, tokens)}};
    for (size_t range = 0; range < ranges_; ++range) {
      auto out = stage_->run(range, pieces, rows);
      EXPECT_TRUE(out) << out.error().message;
      if (!out) return {};
      rows = std::move(*out);
    }
    return rows.begin()->second;
  }

  std::shared_ptr<const dag::Incremental> model_;
  std::unique_ptr<Stage> stage_;
  size_t ranges_ = 0;
};

bool is_finite(const dag::Tensor& tensor) {
  const std::span<const float> values(reinterpret_cast<const float*>(tensor.bytes().data()),
                                      tensor.bytes().size() / sizeof(float));
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

TEST_F(Spoilt, WhatIsTakenBackLeavesNothingBehind) {
  const auto cpu = peer::make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(cpu);
  const auto reference = peer::make_reference_backend();
  const std::vector<Form> forms{
      {.name = "learnt"},
      {.name = "rotary", .positions = Positions::Halves, .heads = Heads::Expanded},
      {.name = "masks that are added", .mask = Mask::AddBillion, .heads = Heads::One}};
  for (peer::Backend* backend : {cpu->get(), reference.get()})
    for (const Form& form : forms)
      for (const std::vector<uint32_t>& cuts : {std::vector<uint32_t>{}, std::vector<uint32_t>{1, 3}}) {
        SCOPED_TRACE(form.name + (cuts.empty() ? "" : ", in ranges"));
        make(form, *backend, cuts);
        ASSERT_TRUE(stage_);
        for (const uint64_t sequence : {1, 2}) EXPECT_TRUE(is_finite(pass(sequence, 0, {1, 2, 3, 4})));
        EXPECT_FALSE(is_finite(pass(1, 4, {5, kSpoils, 6}))) << "else this asks nothing";
        // Back before it, then behind the first of them, a row at a time.
        int64_t at = 4;
        for (const int64_t token : {5, 8, 9, 10}) {
          const dag::Tensor again = pass(1, at, {token}), alone = pass(2, at, {token});
          ASSERT_EQ(again.bytes().size(), alone.bytes().size());
          EXPECT_TRUE(is_finite(again)) << "position " << at;
          EXPECT_EQ(std::memcmp(again.bytes().data(), alone.bytes().data(), alone.bytes().size()), 0)
              << "position " << at;
          ++at;
        }
        // Guessed in a pass of its own, while what was right stays.
        EXPECT_FALSE(is_finite(pass(1, 8, {kSpoils})));
        const dag::Tensor again = pass(1, 8, {3, 2}), alone = pass(2, 8, {3, 2});
        EXPECT_EQ(std::memcmp(again.bytes().data(), alone.bytes().data(), alone.bytes().size()), 0);
      }
}

}  // namespace
}  // namespace weft::incremental::testing
