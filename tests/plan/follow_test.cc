#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "dag/split.h"
#include "plan/follow.h"
#include "plan/model.h"
#include "plan/plan.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

class FollowStages : public testing::TestWithParam<std::tuple<std::string, uint32_t>> {};

TEST_P(FollowStages, InitializersStayWhereTheyAre) {
  const auto& [name, stages] = GetParam();
  const dag::Graph graph = test::training_graph(name), other = test::evaluation_graph(name);
  const auto plan = make_plan({.graph = &graph,
                               .microbatches = 4,
                               .stages = stages,
                               .optimizer_slots = 1,
                               .cluster = test::equal_devices(stages)});
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  const auto followed = follow_stages(other, {}, graph, plan->stage_of_op);
  ASSERT_EQ(followed.size(), other.ops().size());
  for (const auto& initializer : other.initializers()) {
    const auto* there = graph.find_initializer(initializer.name);
    if (!there) continue;
    EXPECT_EQ(followed[other.value(initializer.value).producer.index],
              plan->stage_of_op[graph.value(there->value).producer.index])
        << initializer.name;
  }
  const bool ring = plan->explanation.back().find(" also has the last ops") != std::string::npos;
  std::map<uint32_t, uint32_t> stage_of_group;
  for (uint32_t i = 0; i < followed.size(); ++i) {
    EXPECT_LT(followed[i], stages);
    for (const dag::ValueId input : other.ops()[i].inputs)
      EXPECT_TRUE(!input.valid() || followed[other.value(input).producer.index] <= followed[i] ||
                  (ring && followed[i] == 0));
    const dag::GroupId group = other.ops()[i].group;
    const uint32_t key = group.valid() ? group.index : static_cast<uint32_t>(followed.size()) + i;
    EXPECT_EQ(stage_of_group.emplace(key, followed[i]).first->second, followed[i]);
  }
  // A stage may be without ops here: the pieces are counted without it.
  const std::set<uint32_t> used(followed.begin(), followed.end());
  std::vector<uint32_t> piece_of_op;
  for (const uint32_t stage : followed)
    piece_of_op.push_back(static_cast<uint32_t>(std::distance(used.begin(), used.find(stage))));
  const auto split = dag::split(other, piece_of_op, static_cast<uint32_t>(used.size()), dag::op_table());
  ASSERT_TRUE(split.has_value()) << split.error().message;
}

INSTANTIATE_TEST_SUITE_P(Examples, FollowStages,
                         testing::Combine(testing::Values("fashion", "gpt"), testing::Values(1u, 2u, 4u)),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param) + "_" +
                                  std::to_string(std::get<1>(param_info.param));
                         });

// By initializer, how often it crosses.
std::map<std::string, int> crossing_initializers(const dag::Graph& graph,
                                                 const std::vector<uint32_t>& stages) {
  std::map<std::string, int> crossing;
  const auto split = dag::split(graph, stages, 3, dag::op_table());
  EXPECT_TRUE(split.has_value()) << split.error().message;
  if (!split) return crossing;
  for (const auto& one : graph.initializers())
    for (const dag::CutEdge& edge : split->cut_edges) crossing[one.name] += edge.value == one.value;
  return crossing;
}

TEST(FollowStages, PiecesOutOfTheRowAreFollowedToo) {
  for (const char* name : {"fashion", "gpt"})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(std::string(name) + " seed " + std::to_string(seed));
      const dag::Graph graph = test::training_graph(name), other = test::evaluation_graph(name);
      const Model model = make_model(graph, {}, 12);
      Rng rng(seed, 3);
      std::vector<uint32_t> stage_of_position, stage_of_op;
      for (uint32_t p = 0; p < model.positions; ++p)
        stage_of_position.push_back(p < 3 ? p : static_cast<uint32_t>(rng.below(3)));
      for (const uint32_t position : model.position_of_op) stage_of_op.push_back(stage_of_position[position]);
      stage_of_op = dag::stages_by_origin(graph, stage_of_op);
      const auto followed = follow_stages(other, {}, graph, stage_of_op);
      const auto before = crossing_initializers(graph, stage_of_op);
      for (const auto& initializer : other.initializers()) {
        const auto* there = graph.find_initializer(initializer.name);
        if (!there) continue;
        EXPECT_EQ(followed[other.value(initializer.value).producer.index],
                  stage_of_op[graph.value(there->value).producer.index])
            << initializer.name;
      }
      for (const auto& [crosses, times] : crossing_initializers(other, followed))
        if (before.contains(crosses)) {
          EXPECT_LE(times, before.at(crosses)) << crosses << " is sent for no reason";
        }
    }
}

TEST(FollowStages, AnInitializerOfTheOtherGraphAloneFollowsItsReader) {
  dag::GraphBuilder a(dag::op_table()), b(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {4}};
  const auto parameter = dag::InitializerRole::Parameter;
  const auto x = a.input("x", spec);
  const auto first = a.add(dag::OpKind::Mul, {x, a.initializer("first", spec, parameter)});
  a.output("y", a.add(dag::OpKind::Mul, {first, a.initializer("second", spec, parameter)}),
           dag::OutputRole::Prediction);
  const dag::Graph graph = a.finish();  // x, first, Mul, second, Mul
  const auto u = b.input("x", spec);
  const auto unknown = b.initializer("unknown", spec, parameter);
  const auto label = b.add(dag::OpKind::Neg, {b.input("label", spec)});
  const auto mul = b.add(dag::OpKind::Mul, {u, b.initializer("second", spec, parameter)});
  b.output("y", b.add(dag::OpKind::Add, {b.add(dag::OpKind::Add, {mul, unknown}), label}),
           dag::OutputRole::Prediction);
  const dag::Graph other = b.finish();  // x, unknown, label, Neg, second, Mul, Add, Add
  EXPECT_EQ(follow_stages(other, {}, graph, {0, 0, 0, 1, 1}),
            (std::vector<uint32_t>{1, 1, 1, 1, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace weft::plan
