#include "dag/graph.h"

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/promote.h"
#include "dag/text.h"
#include "tests/support/models.h"

namespace weft::dag {
namespace {

TEST(GraphBuilder, RefusesOperandsThatDoNotFitAndNamesThem) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.input("a", {DType::F32, {2, 3}});
  const ValueId b = builder.input("b", {DType::F32, {4, 5}});
  const auto result = builder.try_add(OpKind::MatMul, {a, b}, {}, "product");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(result.error().message.find("MatMul 'product'(f32[2,3], f32[4,5])"), std::string::npos)
      << result.error().message;
  EXPECT_FALSE(builder.try_add(OpKind::Add, {a}).has_value()) << "too few operands";
  EXPECT_FALSE(builder.try_add(OpKind::Add, {a, ValueId{}}).has_value()) << "an absent operand";
}

TEST(GraphBuilder, RefusesResultsBeyondTheElementLimit) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.input("a", {DType::F32, {1}});
  const auto result = builder.try_add(OpKind::Expand, {a}, {{Attr::Shape, Shape{1 << 21, 1 << 21}}});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::OutOfRange);
}

TEST(Graph, UsersListEveryReadInOrder) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.input("a", {DType::F32, {2}});
  const ValueId square = builder.add(OpKind::Mul, {a, a});
  builder.add(OpKind::Add, {square, a});
  const Graph graph = builder.finish();
  EXPECT_EQ(graph.users()[a.index], (std::vector<OpId>{{1}, {1}, {2}}));
}

TEST(GraphCopy, GivesTheSameText) {
  const Graph graph = test::transformer(1).graph;
  GraphCopy copy(graph, op_table());
  for (uint32_t i = 0; i < graph.ops().size(); ++i) copy.copy(OpId{i});
  copy.copy_outputs();
  EXPECT_EQ(to_text(copy.finish()), to_text(graph));
}

TEST(Text, ShowsOpsWithShapesAndAttributes) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.input("a", {DType::F32, {2, 3}});
  const ValueId b = builder.add(OpKind::Transpose, {a}, {{Attr::Perm, Ints{1, 0}}}, "turn");
  builder.output("y", b, OutputRole::Prediction);
  EXPECT_EQ(to_text(builder.finish()),
            "%0 f32[2,3] = Input() name=\"a\"  # a\n"
            "%1 f32[3,2] = Transpose(%0) perm=[1,0]  # turn\n"
            "prediction y = %1\n");
}

TEST(Differentiate, AddsTermsInReverseOrderOfTheUsers) {
  GraphBuilder builder(op_table());
  const ValueId x = builder.initializer("x", {DType::F32, {}}, InitializerRole::Parameter);
  const ValueId first = builder.add(OpKind::Exp, {x});
  const ValueId second = builder.add(OpKind::Sin, {x});
  const ValueId third = builder.add(OpKind::Tanh, {x});
  builder.output("loss", builder.add(OpKind::Add, {builder.add(OpKind::Add, {first, second}), third}),
                 OutputRole::Loss);
  const auto graph = differentiate(builder.finish(), op_table());
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  // d x = (d tanh + d sin) + d exp
  const Op& outer = graph->producer(graph->find_output(OutputRole::Gradient, "x")->value);
  ASSERT_EQ(outer.kind, OpKind::Add);
  const Op& inner = graph->producer(outer.inputs[0]);
  ASSERT_EQ(inner.kind, OpKind::Add);
  EXPECT_EQ(graph->producer(inner.inputs[0]).kind, OpKind::TanhGrad);
  const auto origin = [&](ValueId value) { return graph->op(graph->producer(value).origin).kind; };
  EXPECT_EQ(origin(inner.inputs[1]), OpKind::Sin);
  EXPECT_EQ(origin(outer.inputs[1]), OpKind::Exp);
  EXPECT_EQ(graph->op(outer.origin).kind, OpKind::Initializer) << "the sum belongs to the parameter";
}

TEST(Differentiate, GivesNothingForFrozenOnes) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.initializer("a", {DType::F32, {2}}, InitializerRole::Parameter);
  const ValueId b = builder.initializer("b", {DType::F32, {2}}, InitializerRole::Frozen);
  const ValueId product = builder.add(OpKind::Mul, {a, b});
  builder.output(
      "loss",
      builder.add(OpKind::ReduceSum, {product}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}}),
      OutputRole::Loss);
  const auto graph = differentiate(builder.finish(), op_table());
  ASSERT_TRUE(graph.has_value());
  EXPECT_NE(graph->find_output(OutputRole::Gradient, "a"), nullptr);
  EXPECT_EQ(graph->find_output(OutputRole::Gradient, "b"), nullptr);
}

TEST(Differentiate, RefusesALossThatIsNoNumber) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.initializer("a", {DType::F32, {2}}, InitializerRole::Parameter);
  builder.output("loss", builder.add(OpKind::Exp, {a}), OutputRole::Loss);
  EXPECT_EQ(differentiate(builder.finish(), op_table()).error().code, ErrorCode::InvalidArgument);
}

TEST(Differentiate, NamesEveryOpWithoutADerivative) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.initializer("a", {DType::F32, {2}}, InitializerRole::Parameter);
  const ValueId b = builder.add(OpKind::ReluGrad, {a, a});
  const ValueId c = builder.add(OpKind::TanhGrad, {b, b});
  builder.output("loss",
                 builder.add(OpKind::ReduceSum, {c}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}}),
                 OutputRole::Loss);
  const auto graph = differentiate(builder.finish(), op_table());
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, ErrorCode::Unsupported);
  EXPECT_NE(graph.error().message.find("ReluGrad x1"), std::string::npos) << graph.error().message;
  EXPECT_NE(graph.error().message.find("TanhGrad x1"), std::string::npos) << graph.error().message;
}

TEST(Prune, DropsWhatNoOutputNeeds) {
  GraphBuilder builder(op_table());
  const ValueId a = builder.input("a", {DType::F32, {2}});
  builder.add(OpKind::Exp, {a});
  builder.output("y", builder.add(OpKind::Sin, {a}), OutputRole::Prediction);
  const Graph graph = prune(builder.finish(), op_table());
  ASSERT_EQ(graph.ops().size(), 2u);
  EXPECT_EQ(graph.ops()[1].kind, OpKind::Sin);
}

// ---- lowering ----

Graph lowered_residual(Layout layout) {
  const auto graph = differentiate(test::residual_net(1, {.channels = 16}).graph, op_table());
  return lower(*graph, op_table(), {.fuse_elementwise = true, .convolution_layout = layout});
}

TEST(Lower, KeepsConvolutionsBlockedFromOneToTheNext) {
  const Graph graph = lowered_residual(Layout::Blocked8);
  int reorders = 0, blocked = 0;
  for (const Op& op : graph.ops()) {
    reorders += op.kind == OpKind::Reorder;
    if (op.kind == OpKind::Conv || op.kind == OpKind::BatchNorm || op.kind == OpKind::Relu ||
        op.kind == OpKind::ReluGrad) {
      EXPECT_EQ(graph.value(op.outputs[0]).layout, Layout::Blocked8) << to_text(graph);
      ++blocked;
    }
  }
  EXPECT_GT(blocked, 10);
  EXPECT_EQ(reorders, 0)
      << "the first convolution reads plain pixels, the mean over space gives plain features";
  for (const auto& output : graph.outputs())
    EXPECT_EQ(graph.value(output.value).layout, Layout::Plain) << output.name;
}

TEST(Lower, LeavesOddChannelCountsPlain) {
  const auto graph = differentiate(test::residual_net(1, {.channels = 6}).graph, op_table());
  const Graph lowered = lower(*graph, op_table(), {.convolution_layout = Layout::Blocked8});
  for (const Op& op : lowered.ops())
    if (op.kind == OpKind::Conv && lowered.spec(op.outputs[0]).shape[1] % 8 != 0) {
      EXPECT_EQ(lowered.value(op.outputs[0]).layout, Layout::Plain);
    }
}

TEST(Lower, GroupsAreContiguousAndOnlyElementwise) {
  const Graph graph = lowered_residual(Layout::Blocked8);
  std::map<uint32_t, uint32_t> last_of_group;
  size_t grouped = 0;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (!op.group.valid()) continue;
    ++grouped;
    EXPECT_EQ(op_table().row(op.kind).family, Family::Elementwise);
    const auto before = last_of_group.find(op.group.index);
    if (before != last_of_group.end()) {
      EXPECT_EQ(before->second, i - 1) << "group " << op.group.index << " is torn apart";
    }
    last_of_group[op.group.index] = i;
  }
  EXPECT_GT(grouped, 4u);
}

// x -> a -> (matmul) -> b, and b uses a again: a and b may not become one kernel, for the matmul stands
// between.
TEST(Lower, NeverGroupsAcrossAnOpThatStandsBetween) {
  GraphBuilder builder(op_table());
  const ValueId x = builder.input("x", {DType::F32, {4, 4}});
  const ValueId a = builder.add(OpKind::Tanh, {x});
  const ValueId product = builder.add(OpKind::MatMul, {a, a});
  builder.output("y", builder.add(OpKind::Mul, {a, product}), OutputRole::Prediction);
  const Graph graph = lower(builder.finish(), op_table(), {.fuse_elementwise = true});
  for (const Op& op : graph.ops()) EXPECT_FALSE(op.group.valid());
}

TEST(InputRoles, StayWithTheInputsOfACopy) {
  GraphBuilder builder(op_table());
  const ValueId x = builder.input("x", {DType::F32, {2, 3}});
  const ValueId unread = builder.input("unread", {DType::F32, {2, 3}}, InputRole::Loss);
  const ValueId y = builder.input("y", {DType::F32, {2, 3}}, InputRole::Loss);
  builder.output("loss", builder.add(OpKind::Sub, {x, y}), OutputRole::Loss);
  const Graph graph = builder.finish();
  EXPECT_EQ(graph.input_role(unread), InputRole::Loss);
  for (const Graph& copy :
       {prune(graph, op_table()), lower(graph, op_table(), {}), promote_to_f64(graph, op_table())}) {
    ASSERT_EQ(copy.input_roles().size(), copy.inputs().size());
    for (const ValueId input : copy.inputs())
      EXPECT_EQ(copy.input_role(input), copy.value(input).name == "x" ? InputRole::Model : InputRole::Loss);
  }
}

}  // namespace
}  // namespace weft::dag
