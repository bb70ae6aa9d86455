// Stages of different classes of devices: each runs its ops as the whole graph is lowered for its class, and
// what crosses is named the same at both ends. One processor runs every layout here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/split.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "plan/model.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/cuts.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

using dag::BackendTraits;
using dag::Layout;
using dag::Lowered;

const std::vector<BackendTraits> kClasses = {
    {.fuse_elementwise = true, .convolution_layout = Layout::Blocked8},
    {.fuse_elementwise = true, .convolution_layout = Layout::Blocked16},
    {.fuse_elementwise = false, .convolution_layout = Layout::Plain}};

struct Whole {
  test::Model model;
  Graph graph;  // before lowering
  std::vector<std::shared_ptr<const Lowered>> lowered;
  plan::Model positions;

  explicit Whole(test::Model built) : model(std::move(built)) {
    graph = value_or_fail(dag::differentiate(model.graph, dag::op_table()));
    for (const BackendTraits& traits : kClasses)
      lowered.push_back(std::make_shared<const Lowered>(dag::lower_traced(graph, dag::op_table(), traits)));
    positions = plan::make_model(graph, lowered);
  }

  // Between the planner's positions, which no class's groups are cut by.
  std::vector<uint32_t> random_cut(uint32_t stages, Rng& rng) const {
    std::set<uint32_t> begins;
    while (begins.size() + 1 < stages)
      begins.insert(1 + static_cast<uint32_t>(rng.below(positions.positions - 1)));
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : positions.position_of_op)
      stage_of_op.push_back(
          static_cast<uint32_t>(std::distance(begins.begin(), begins.upper_bound(position))));
    return stage_of_op;
  }

  Result<dag::Split> split(const std::vector<uint32_t>& stage_of_op,
                           const std::vector<uint32_t>& class_of_stage) const {
    std::vector<const Lowered*> classes;
    for (const auto& one : lowered) classes.push_back(one.get());
    return dag::split({&graph, stage_of_op, classes, class_of_stage}, dag::op_table());
  }
};

Whole whole_of(const std::string& name, uint64_t seed) {
  return Whole(name == "residual"
                   ? test::residual_net(seed, {.batch = 4, .channels = 8, .size = 8, .blocks = 3})
                   : test::transformer(seed, {.batch = 4, .layers = 3}));
}

std::unique_ptr<Backend> cpu() { return value_or_fail(make_cpu_backend({.threads = 1, .pin = false})); }

// Sums in another order: rounding apart, the same.
void expect_close(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const std::vector<double> x = to_doubles(tensor), y = to_doubles(b.at(name));
    ASSERT_EQ(x.size(), y.size()) << name;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += (x[i] - y[i]) * (x[i] - y[i]);
      norm += x[i] * x[i];
    }
    EXPECT_LE(std::sqrt(difference), 2e-4 * std::sqrt(norm) + 1e-6) << name;
  }
}

class Classes : public testing::TestWithParam<std::string> {};

TEST_P(Classes, OneClassGivesTheBitsOfTheWholeWhereverItIsCut) {
  auto backend = cpu();
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Whole whole = whole_of(GetParam(), seed);
    for (uint32_t c = 0; c < kClasses.size(); ++c) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", class " + std::to_string(c));
      Rng rng(seed, 31 + c);
      const auto stages = static_cast<uint32_t>(2 + rng.below(3));
      const auto split = whole.split(whole.random_cut(stages, rng), std::vector<uint32_t>(stages, c));
      ASSERT_TRUE(split.has_value()) << split.error().message;
      expect_same_bits(run_whole(whole.lowered[c]->graph, *backend, whole.model),
                       run_split(*split, *backend, whole.model));
    }
  }
}

TEST_P(Classes, MixedStagesComputeTheSame) {
  auto backend = cpu();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Whole whole = whole_of(GetParam(), seed);
    Rng rng(seed, 32);
    const auto stages = static_cast<uint32_t>(2 + rng.below(4));
    std::vector<uint32_t> class_of_stage;
    for (uint32_t s = 0; s < stages; ++s)
      class_of_stage.push_back((s + static_cast<uint32_t>(seed)) % static_cast<uint32_t>(kClasses.size()));
    const auto split = whole.split(whole.random_cut(stages, rng), class_of_stage);
    ASSERT_TRUE(split.has_value()) << split.error().message;
    for (const dag::CutEdge& edge : split->cut_edges)
      EXPECT_EQ(split->stages[edge.from_stage].graph.spec(edge.sent),
                split->stages[edge.to_stage].graph.spec(edge.received));
    expect_close(run_whole(whole.lowered[0]->graph, *backend, whole.model),
                 run_split(*split, *backend, whole.model));
  }
}

// A spare of another class takes a stage over: its piece alone is lowered anew.
TEST_P(Classes, AStageLoweredForAnotherClassComputesTheSame) {
  auto backend = cpu();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Whole whole = whole_of(GetParam(), seed);
    Rng rng(seed, 33);
    const auto stages = static_cast<uint32_t>(2 + rng.below(3));
    const uint32_t before = static_cast<uint32_t>(seed) % 3;
    auto split = whole.split(whole.random_cut(stages, rng), std::vector<uint32_t>(stages, before));
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const auto lost = static_cast<uint32_t>(rng.below(stages));
    if (seed % 2 == 0) split = test::recomputed(std::move(*split), [&](uint32_t s) { return s == lost; });
    for (const uint32_t hop : {1u, 2u}) {  // and from there to the third
      const BackendTraits& traits = kClasses[(before + hop) % kClasses.size()];
      const dag::StageGraph& old = split->stages[lost];
      dag::Relowered made = dag::relower(old, traits, dag::op_table());
      EXPECT_EQ(made.stage.segment_count, old.segment_count);
      EXPECT_TRUE(std::is_sorted(made.stage.segment_of_op.begin(), made.stage.segment_of_op.end()));
      for (dag::CutEdge& edge : split->cut_edges) {
        if (edge.from_stage == lost) edge.sent = made.value_of[edge.sent.index];
        if (edge.to_stage == lost) edge.received = made.value_of[edge.received.index];
      }
      split->stages[lost] = std::move(made.stage);
      expect_close(run_whole(whole.lowered[before]->graph, *backend, whole.model),
                   run_split(*split, *backend, whole.model));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Classes, testing::Values("residual", "transformer"),
                         [](const auto& param_info) { return param_info.param; });

TEST(Cuts, NoSegmentIsThereForLeavesAlone) {
  const Whole whole = whole_of("transformer", 1);
  Rng rng(1, 34);
  const auto split = whole.split(whole.random_cut(4, rng), {0, 0, 0, 0});
  ASSERT_TRUE(split.has_value()) << split.error().message;
  for (const dag::StageGraph& stage : split->stages) {
    std::vector<bool> computes(stage.segment_count, false);
    for (uint32_t i = 0; i < stage.graph.ops().size(); ++i)
      if (!stage.graph.ops()[i].inputs.empty()) computes[stage.segment_of_op[i]] = true;
    EXPECT_TRUE(std::all_of(computes.begin(), computes.end(), [](bool b) { return b; }));
    for (uint32_t i = 1; i < stage.graph.ops().size(); ++i) {
      if (stage.segment_of_op[i] != stage.segment_of_op[i - 1]) continue;
      EXPECT_EQ(stage.graph.ops()[i].phase, stage.graph.ops()[i - 1].phase) << "a segment is of one phase";
    }
  }
}

TEST(Cuts, ACutThroughTheGroupOfOneStagesClassIsRefused) {
  const Whole whole = whole_of("residual", 1);
  const auto ops = whole.lowered[0]->graph.ops();
  std::vector<uint32_t> stage_of_op(whole.graph.ops().size(), 0);
  uint32_t inside = 0;
  for (uint32_t i = 1; i < ops.size() && inside == 0; ++i)
    if (ops[i].group.valid() && ops[i - 1].group == ops[i].group && ops[i].phase == dag::Phase::Forward)
      inside = whole.lowered[0]->source_op[i].index;
  ASSERT_GT(inside, 0u);
  for (uint32_t i = inside; i < stage_of_op.size(); ++i) stage_of_op[i] = 1;
  stage_of_op = dag::stages_by_origin(whole.graph, stage_of_op);
  const auto refused = whole.split(stage_of_op, {0, 2});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("fusion group"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(whole.split(stage_of_op, {2, 2}).has_value()) << "a class without groups may be cut anywhere";
}

}  // namespace
}  // namespace weft::peer
