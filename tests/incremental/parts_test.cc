// What a token costs in the graphs of parts: no op makes a table of all positions by all, and the caches are
// not moved.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weft::incremental::testing
