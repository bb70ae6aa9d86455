// What a token costs in the graphs of parts: no op makes a table of all positions by all, and the caches are
// not moved.
#include <gtest/gtest.h>

#include <set>

#include "dag/text.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::incremental::testing {
namespace {

using dag::OpKind;

constexpr int64_t kLength = 512, kCapacity = 64;

bool is_made(const dag::Op& op) {
  return !op.inputs.empty() && op.kind != OpKind::Reshape;  // a Reshape moves nothing
}
int64_t largest_made(const dag::Graph& graph) {
  int64_t most = 0;
  for (const dag::Op& op : graph.ops())
    if (is_made(op)) most = std::max(most, graph.spec(op.outputs[0]).element_count());
  return most;
}
int count(const dag::Graph& graph, OpKind kind) {
  return static_cast<int>(std::count_if(graph.ops().begin(), graph.ops().end(),
                                        [&](const dag::Op& op) { return op.kind == kind; }));
}

std::vector<Form> forms() {
  return {
      {.name = "OldGpt2Mask", .mask = Mask::OldGpt2},
      {.name = "Comparison", .mask = Mask::Comparison, .window = 9},
      {.name = "SliceOfLarger", .mask = Mask::SliceOfLarger},
      {.name = "SliceOfLargerTurned", .mask = Mask::SliceOfLarger, .layout = Layout::Turned},
      {.name = "CastOfBools", .mask = Mask::CastOfBools, .heads = Heads::Expanded},
      {.name = "Alibi", .mask = Mask::AddBillion, .positions = Positions::Alibi},
      {.name = "Relative", .positions = Positions::Relative, .layout = Layout::Turned},
      {.name = "Interleaved", .positions = Positions::Interleaved},
      {.name = "Gathered", .positions = Positions::Gathered},
      {.name = "Computed", .positions = Positions::Computed, .heads = Heads::Expanded},
  };
}

TEST(Parts, MakeNothingOfAllPositionsForAToken) {
  for (Form form : forms()) {
    SCOPED_TRACE(form.name);
    form.length = kLength;
    const auto made = derive(make_model(form));
    ASSERT_TRUE(made) << made.error().message;
    for (size_t part = 0; part < (*made)->row_parts(); ++part)
      EXPECT_LE(largest_made((*made)->rows(part, 1)), 4 * form.width) << "row part " << part;
    for (size_t part = 0; part < (*made)->attending_parts(); ++part)
      EXPECT_LE(largest_made((*made)->attending(part, 1, kCapacity)), 4 * kLength)
          << "attending part " << part;
  }
}

TEST(Parts, KeepGroupedHeadsOnce) {
  for (const Layout layout : {Layout::Batched, Layout::Folded, Layout::Turned}) {
    const Form form{.name = "", .heads = Heads::Expanded, .layout = layout};
    const auto made = derive(make_model(form));
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ((*made)->attending_parts(), 2u);
    for (const dag::CacheSpec& cache : (*made)->attending_part(0).caches)
      EXPECT_EQ(cache.bytes_a_position(), (Bytes{form.width / 2 * 4}));
    const dag::Graph graph = (*made)->attending(0, 1, kCapacity);
    EXPECT_EQ(count(graph, OpKind::Expand), 0);
    EXPECT_EQ(count(graph, OpKind::CacheWrite), 2);
  }
}

std::vector<std::string> texts_of(const dag::Incremental& model) {
  std::vector<std::string> texts;
  for (size_t part = 0; part < model.row_parts(); ++part) texts.push_back(to_text(model.rows(part, 3)));
  for (size_t part = 0; part < model.attending_parts(); ++part)
    texts.push_back(to_text(model.attending(part, 3, kCapacity)));
  return texts;
}

// As a stage derives them, which has its own weights and those.
TEST(Parts, HangOnNoOtherWeightsThanThoseThatTheyName) {
  size_t named = 0;
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    Model model = make_model(form);
    const auto made = derive(model);
    ASSERT_TRUE(made) << made.error().message;
    const std::vector<std::string> read = (*made)->read_weights();
    EXPECT_TRUE(std::is_sorted(read.begin(), read.end()));
    EXPECT_LT(read.size(), model.weights.size());
    named += read.size();
    const dag::Weights all = model.weights;
    std::erase_if(model.weights, [&](const auto& weight) {
      return std::find(read.begin(), read.end(), weight.first) == read.end();
    });
    EXPECT_EQ(model.weights.size(), read.size());
    const auto again = derive(model);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ((*again)->read_weights(), read);
    EXPECT_EQ(texts_of(**again), texts_of(**made));
    for (const std::string& name : read) {
      Model lacks = model;
      lacks.weights.erase(name);
      EXPECT_FALSE(derive(lacks).has_value()) << name;
    }
  }
  EXPECT_GE(named, 2u);
}

TEST(Parts, AWeightThatAMaskHangsOnIsReadWhereItLies) {
  const Model model = make_model({.name = "", .mask = Mask::SliceOfLarger});
  std::vector<std::string> asked;
  dag::IncrementalOptions options{.tokens = model.tokens, .logits = {}, .evaluate = peer::evaluate_reference};
  options.read = [&](const std::string& name) -> Result<dag::Tensor> {
    asked.push_back(name);
    return model.weights.at(name);
  };
  const auto made = dag::Incremental::derive(model.graph, dag::op_table(), options);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(std::set<std::string>(asked.begin(), asked.end()),
            std::set<std::string>(made->read_weights().begin(), made->read_weights().end()));
  EXPECT_FALSE(asked.empty());
  options.read = [&](const std::string&) -> Result<dag::Tensor> {
    return dag::make_scalar(dag::DType::F32, 1);
  };
  const auto refused = dag::Incremental::derive(model.graph, dag::op_table(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument) << refused.error().message;
}

}  // namespace
}  // namespace weft::incremental::testing
