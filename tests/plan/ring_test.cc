// Tied weights: a stage that owns both ends of the row, where that is faster.
#include "plan/ring.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dag/split.h"
#include "plan/follow.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "plan/traffic.h"
#include "tests/plan/graphs.h"
#include "tests/support/models.h"

namespace weft::plan {
namespace {

using dag::Graph;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr double kMegabit = 1e6 / 8;  // bytes

// As the catalogue has an rtx3080, in fp32.
ClusterView gpus(uint32_t count, double bytes_per_second, Duration latency) {
  std::vector<DeviceView> devices;
  for (uint32_t i = 0; i < count; ++i) {
    devices.push_back(test::device("gpu" + std::to_string(i), 1, "home", "gpu", {int64_t{10} << 30}));
    devices.back().rates = {11.9e12, 11.9e12, 5.7e11, 5e-6};
  }
  ClusterView cluster(std::move(devices));
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t k = 0; k < count; ++k)
      if (i != k) cluster.set_link(i, k, {bytes_per_second, latency});
  return cluster;
}

Plan planned(const PlanRequest& request) {
  auto plan = make_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan.value_or(Plan{});
}
// Whether the first stage computes, in forward, with what another one made.
bool is_ring(const Graph& graph, const Plan& plan) {
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    for (const dag::ValueId input : graph.ops()[i].inputs)
      if (input.valid() && graph.ops()[i].phase == dag::Phase::Forward && plan.stage_of_op[i] == 0 &&
          plan.stage_of_op[graph.value(input).producer.index] != 0)
        return true;
  return false;
}

TEST(Ring, ATiedModelIsSharedAmongDevicesAsAnUntiedOneIs) {
  const Graph tied = test::gpt({}), untied = test::gpt({.tied = false});
  const ClusterView four = gpus(4, 1e4 * kMegabit, microseconds(100));
  const auto request = [&](const Graph& graph) {
    return PlanRequest{
        .graph = &graph, .microbatches = 16, .samples = 16, .optimizer_slots = 2, .cluster = four};
  };
  const Plan ring = planned(request(tied)), row = planned(request(untied));
  EXPECT_EQ(ring.stages.size(), 4u);
  EXPECT_LT(seconds(ring.predicted_step), 1.1 * seconds(row.predicted_step));
  EXPECT_LT(seconds(ring.predicted_step), 0.4 * seconds(ring.predicted_alone));
  EXPECT_TRUE(is_ring(tied, ring));
  EXPECT_FALSE(is_ring(untied, row));
  for (const PlannedLink& link : ring.links) EXPECT_LT(link.bytes.value, 10'000'000) << "no tied rows";
}

TEST(Ring, BaselinesHaveItToo) {
  const Graph tied = test::gpt({.layers = 6});
  const ClusterView four = gpus(4, 1e4 * kMegabit, microseconds(100));
  for (const char* name : {"op-fence", "equal-ops", "equal-compute", "equal-memory", "equal-ops-joining"})
    EXPECT_TRUE(
        is_ring(tied, planned({.graph = &tied, .microbatches = 16, .cluster = four, .strategy = name})))
        << name;
}

TEST(Ring, IsNotTakenWhereItIsSlower) {
  // Bandwidth is no matter and every turn is long: once more by the first stage is twice as long.
  const Graph graph = test::gpt({.layers = 4, .vocabulary = 8192, .tokens = 128});
  EXPECT_FALSE(is_ring(graph, planned({.graph = &graph,
                                       .microbatches = 1,
                                       .stages = 2,
                                       .cluster = gpus(2, 1e7 * kMegabit, milliseconds(50))})));
  EXPECT_TRUE(is_ring(graph, planned({.graph = &graph,
                                      .microbatches = 8,
                                      .stages = 2,
                                      .cluster = gpus(2, 1e3 * kMegabit, microseconds(100))})));
  // On slow lines neither pays.
  const Plan slow =
      planned({.graph = &graph, .microbatches = 8, .cluster = gpus(4, 10 * kMegabit, milliseconds(10))});
  EXPECT_EQ(slow.stages.size(), 1u);
}

TEST(Ring, IsThereOnlyWhereSomethingLargeTiesTheEnds) {
  const Graph untied = test::gpt({.layers = 4, .vocabulary = 512, .tokens = 64, .tied = false}),
              small = test::gpt({.layers = 4, .vocabulary = 64}), chain = test::chain(1, 12),
              residual = test::training_graph("residual");
  EXPECT_FALSE(make_model(untied).ring.has_value());
  EXPECT_FALSE(make_model(chain).ring.has_value());
  EXPECT_FALSE(make_model(residual).ring.has_value());
  EXPECT_FALSE(make_model(small).ring.has_value()) << "more than the rows themselves crosses";
  const Graph graph = test::gpt({.layers = 4, .vocabulary = 4096, .tokens = 64});
  const Model model = make_model(graph);
  ASSERT_TRUE(model.ring.has_value());
  const auto position = [&](dag::OpId op) { return model.position_of_op[op.index]; };
  const dag::ValueId wte = graph.find_initializer("wte")->value;
  EXPECT_EQ(model.ring->head_end, position(graph.value(wte).producer) + 1);
  const auto users = graph.users();
  for (const dag::OpId reader : users[wte.index])
    EXPECT_TRUE(position(reader) < model.ring->head_end || position(reader) >= model.ring->tail_max);
  EXPECT_LE(model.ring->tails.front(), model.ring->tail_max);
  EXPECT_GT(model.ring->tails.front(), model.ring->head_end);
}

int64_t bytes_of_cut(const Graph& graph, const Model& model, const std::vector<uint32_t>& stage_of_position) {
  std::vector<uint32_t> stage_of_op;
  for (const uint32_t p : model.position_of_op) stage_of_op.push_back(stage_of_position[p]);
  stage_of_op = dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, stage_of_op);
  const uint32_t stages = *std::max_element(stage_of_op.begin(), stage_of_op.end()) + 1;
  const auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
  EXPECT_TRUE(split.has_value()) << split.error().message;
  int64_t bytes = 0;
  if (split)
    for (const auto& edge : split->cut_edges) bytes += graph.spec(edge.value).bytes().value;
  return bytes;
}

// The ring's table against what dag::cut finds, as the row's: what two earlier stages read of one value,
// which the tables count once, differs alike.
TEST(Ring, BytesAreThoseOfTheCut) {
  const Graph graph = test::gpt({.layers = 3, .vocabulary = 4096, .tokens = 64});
  const Model model = make_model(graph);
  ASSERT_TRUE(model.ring.has_value());
  const uint32_t tail = model.ring->tail_max, head = model.ring->head_end;
  int exact = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 31);
    const auto a = static_cast<uint32_t>(head + rng.below(tail - head - 1));
    const auto b = static_cast<uint32_t>(a + 1 + rng.below(tail - a - 1));
    std::vector<uint32_t> ring, row;
    for (uint32_t p = 0; p < model.positions; ++p) {
      row.push_back(p < a ? 0 : p < b ? 1 : p < tail ? 2 : 3);
      ring.push_back(row.back() % 3);
    }
    const auto estimated = [&](const Crossing& crossing) {
      return crossing.received(a, b) + crossing.returned(a, b) + crossing.received(b, tail) +
             crossing.returned(b, tail) + crossing.over(tail);
    };
    const int64_t of_ring = bytes_of_cut(graph, model, ring), of_row = bytes_of_cut(graph, model, row);
    EXPECT_EQ(estimated(model.ring->crossing) - of_ring, estimated(model.crossing) - of_row)
        << a << " " << b << " " << tail;
    exact += estimated(model.ring->crossing) == of_ring;
  }
  EXPECT_GT(exact, 10);
}

TEST(Ring, EvaluationHasTheEndsTogetherAsWell) {
  const Graph forward = test::transformer(2, {.width = 32, .layers = 8, .vocabulary = 256}).graph,
              graph = test::lowered(forward), other = test::lowered(forward, /*training=*/false);
  const Plan plan =
      planned({.graph = &graph, .microbatches = 4, .stages = 3, .cluster = test::equal_devices(3, 1e7)});
  ASSERT_TRUE(is_ring(graph, plan));
  const auto followed = follow_stages(other, {}, graph, plan.stage_of_op);
  for (const auto& initializer : other.initializers()) {
    const dag::ValueId there = graph.find_initializer(initializer.name)->value;
    EXPECT_EQ(followed[other.value(initializer.value).producer.index],
              plan.stage_of_op[graph.value(there).producer.index])
        << initializer.name;
  }
  const auto users = other.users();
  const dag::ValueId wte = other.find_initializer("wte")->value;
  for (const dag::OpId reader : users[wte.index])
    EXPECT_EQ(followed[reader.index], followed[other.value(wte).producer.index]);
  const auto split = dag::split(other, followed, 3, dag::op_table());
  ASSERT_TRUE(split.has_value()) << split.error().message;
  for (const auto& edge : split->cut_edges)
    EXPECT_FALSE(other.producer(edge.value).inputs.empty()) << "no weight crosses";
}

TEST(Ring, IsSaidInWords) {
  const Graph graph = test::gpt({.layers = 4, .vocabulary = 8192, .tokens = 64});
  for (const uint32_t stages : {2u, 3u}) {
    const Plan plan = planned({.graph = &graph,
                               .microbatches = 8,
                               .stages = stages,
                               .cluster = gpus(stages, 1e3 * kMegabit, microseconds(100))});
    ASSERT_TRUE(is_ring(graph, plan));
    const auto says_it = [](const std::string& line) {
      return line.starts_with("  stage 1 also has the last ops, from ") &&
             line.find(", for they share 'wte' (24.0 MiB) with the first: ") != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(plan.explanation.begin(), plan.explanation.end(), says_it));
  }
}

}  // namespace
}  // namespace weft::plan
