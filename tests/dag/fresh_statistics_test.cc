// What a graph makes of running statistics, apart from the rest. That blending comes to the same bits is
// shown over whole pipelines (tests/pipeline).
#include "dag/fresh_statistics.h"

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "tests/support/models.h"

namespace weft::dag {
namespace {

// BatchNorm's statistics in small: mean = 0.9 mean + 0.1 of the batch's.
struct Net {
  GraphBuilder builder{op_table()};
  ValueId x = builder.input("x", {DType::F32, {4, 3}});
  ValueId mean = builder.initializer("mean", {DType::F32, {3}}, InitializerRole::RunningStatistic);
  ValueId batch = builder.add(OpKind::ReduceMean, {x}, {{Attr::Axes, std::vector<int64_t>{0}}});
  ValueId added = builder.add(OpKind::Mul, {batch, builder.scalar(DType::F32, 0.1)});
  ValueId kept = builder.add(OpKind::Mul, {mean, builder.scalar(DType::F32, 0.9)});
  ValueId blended = builder.add(OpKind::Add, {kept, added});
};

TEST(FreshStatistics, AreWhatBlendingReads) {
  Net net;
  net.builder.output("y", net.batch, OutputRole::Prediction);
  net.builder.output("mean", net.blended, OutputRole::StateUpdate);
  const Graph graph = net.builder.finish();
  const auto found = fresh_statistics(graph);
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().values, std::vector<ValueId>{net.added});
  EXPECT_EQ(found->front().count, 3);
  const Graph blending = blending_graph(graph, *found, op_table());
  ASSERT_EQ(blending.inputs().size(), 1u);
  EXPECT_EQ(blending.value(blending.inputs()[0]).name, fresh_input(net.added));
  ASSERT_NE(blending.find_output(OutputRole::StateUpdate, "mean"), nullptr);
  EXPECT_EQ(blending.find_initializer("mean")->role, InitializerRole::RunningStatistic);
}

TEST(FreshStatistics, AreNotToldApartWhereTheRestReadsThem) {
  for (const bool shown : {false, true}) {
    Net net;
    const ValueId read = net.builder.add(OpKind::Sub, {net.x, net.mean});
    net.builder.output("y", shown ? net.blended : read, OutputRole::Prediction);
    net.builder.output("mean", net.blended, OutputRole::StateUpdate);
    EXPECT_FALSE(fresh_statistics(net.builder.finish()).has_value()) << shown;
  }
}

TEST(FreshStatistics, AreNotWhatNoMicrobatchMakes) {
  Net net;
  const ValueId constant = net.builder.add(OpKind::Add, {net.mean, net.builder.scalar(DType::F32, 1)});
  net.builder.output("y", net.batch, OutputRole::Prediction);
  net.builder.output("mean", constant, OutputRole::StateUpdate);
  EXPECT_FALSE(fresh_statistics(net.builder.finish()).has_value());
}

TEST(FreshStatistics, OfATrainingGraphAreAllOfThem) {
  const test::Model model = test::residual_net(3, {.batch = 4});
  const auto training = differentiate(model.graph, op_table());
  ASSERT_TRUE(training.has_value()) << training.error().message;
  const Graph graph = lower(*training, op_table(), {.fuse_elementwise = true});
  const auto found = fresh_statistics(graph);
  ASSERT_TRUE(found.has_value());
  size_t updates = 0;
  for (const GraphOutput& output : graph.outputs()) updates += output.role == OutputRole::StateUpdate;
  EXPECT_EQ(found->size(), updates);
  EXPECT_GT(updates, 0u);
  // Two statistics of three ops each at most: nothing of the forward pass came along.
  const Graph blending = blending_graph(graph, *found, op_table());
  for (const Op& op : blending.ops())
    EXPECT_TRUE(op.kind == OpKind::Input || op.kind == OpKind::Initializer || op.kind == OpKind::Constant ||
                op.kind == OpKind::Mul || op.kind == OpKind::Add)
        << to_string(op.kind);
}

TEST(FreshStatistics, AreNotOfNothing) {
  GraphBuilder builder(op_table());
  const ValueId x = builder.input("x", {DType::F32, {0}});
  const ValueId mean = builder.initializer("mean", {DType::F32, {0}}, InitializerRole::RunningStatistic);
  builder.output("mean", builder.add(OpKind::Add, {mean, x}), OutputRole::StateUpdate);
  EXPECT_FALSE(fresh_statistics(builder.finish()).has_value());
}

TEST(FreshStatistics, AreNoneWhereThereAreNone) {
  const test::Model model = test::transformer(3, {.batch = 2});
  const auto found = fresh_statistics(model.graph);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->empty());
}

}  // namespace
}  // namespace weft::dag
