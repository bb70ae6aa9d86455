// Graphs that are meant to cost: they end soon, in parts or with an error, and take little of the stack.
#include <gtest/gtest.h>

#include "tests/incremental/compare.h"
#include "tests/incremental/net.h"

namespace weft::incremental::testing {

using dag::DType;
using dag::OpKind;
using V = Net::V;

namespace {

constexpr int kDeep = 100'000;

// Attention over x [1, T, W], its mask made by `chain` of a causal one.
Model with_mask(Net& net, const std::function<V(V mask)>& chain) {
  const V x = net.gather(net.weight({11, 8}), net.tokens());
  const V scores = net.matmul(net.linear(x, 8), net.linear(x, 8), false, true);
  const V causal =
      net.table(DType::F32, false, [](int64_t row, int64_t key) { return key <= row ? 0 : -1e9; });
  const V weights = net.softmax(net.add(scores, chain(causal)), -1);
  return net.finish(net.linear(net.matmul(weights, x), 11));
}
// Every graph of a part that there is.
void emit_all(const dag::Incremental& made) {
  for (size_t part = 0; part < made.row_parts(); ++part) EXPECT_FALSE(made.rows(part, 2).ops().empty());
  for (size_t part = 0; part < made.attending_parts(); ++part)
    EXPECT_FALSE(made.attending(part, 2, made.context()).ops().empty());
}

TEST(Hostile, DeepChainOfTables) {
  Net net(16, true, 1);
  const Model model = with_mask(net, [&](V mask) {
    for (int i = 0; i < kDeep; ++i) mask = net.op(OpKind::Neg, {mask});
    return mask;
  });
  const auto made = derive(model);
  ASSERT_TRUE(made) << made.error().message;
  emit_all(**made);
}

TEST(Hostile, TablesThatDoubleAtEachStep) {
  Net net(16, true, 1);
  const Model model = with_mask(net, [&](V mask) {
    for (int i = 0; i < 200; ++i) mask = net.op(OpKind::Max, {mask, net.op(OpKind::Min, {mask, mask})});
    return mask;
  });
  const auto made = derive(model);
  ASSERT_TRUE(made) << made.error().message;
  emit_all(**made);
}

TEST(Hostile, DeepChainOfRows) {
  Net net(16, true, 1);
  V x = net.gather(net.weight({11, 8}), net.tokens());
  for (int i = 0; i < kDeep; ++i) x = net.op(OpKind::Tanh, {x});
  const auto made = derive(net.finish(net.linear(x, 11)));
  ASSERT_TRUE(made) << made.error().message;
  emit_all(**made);
}

// A mask of its own for each of many steps, each of which hangs on all before it.
TEST(Hostile, MasksThatHangOnEachOther) {
  Net net(64, true, 1);
  const V x = net.gather(net.weight({11, 8}), net.tokens());
  V scores = net.matmul(x, x, false, true);
  V table = net.table(DType::F32, false, [](int64_t row, int64_t key) { return key <= row ? 0 : -1e9; });
  for (int i = 0; i < 20'000; ++i) {
    table = net.op(OpKind::Tanh, {table});
    scores = net.add(scores, table);
  }
  const auto made = derive(net.finish(net.linear(net.matmul(net.softmax(scores, -1), x), 11)));
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("looks at later positions"), std::string::npos) << made.error().message;
}

// More than anybody would compute for a mask.
TEST(Hostile, MasksThatNeverEnd) {
  Net net(64, true, 1);
  const Model model = with_mask(net, [&](V mask) {
    for (int i = 0; i < kDeep; ++i) mask = net.op(OpKind::Neg, {mask});
    return mask;
  });
  const auto made = derive(model, int64_t{1} << 22);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::ResourceExhausted) << made.error().message;
}

TEST(Hostile, ManyLayersOfTurnedScores) {
  Net net(8, true, 1);
  V x = net.gather(net.weight({11, 2}), net.tokens());
  const V mask = net.table(DType::F32, true, [](int64_t row, int64_t key) { return key <= row ? 0 : -1e9; });
  for (int i = 0; i < 10'000; ++i) {
    const V weights = net.softmax(net.add(net.matmul(x, x, false, true), mask), -2);
    x = net.matmul(weights, x, true, false);
  }
  const auto made = derive(net.finish(net.linear(x, 11)));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->attending_parts(), 1u);  // nothing but attention stands between the layers
}

TEST(Hostile, ManyLayersWrittenOut) {
  Net net(8, true, 1);
  V x = net.gather(net.weight({11, 2}), net.tokens());
  const V mask = net.table(DType::F32, false, [](int64_t row, int64_t key) { return key <= row ? 0 : -1e9; });
  for (int i = 0; i < 5'000; ++i) {
    const V scores = net.add(net.matmul(x, x, false, true), mask);
    const V raised = net.op(OpKind::Exp, {net.sub(scores, net.reduce(OpKind::ReduceMax, scores, -1))});
    x = net.matmul(net.div(raised, net.reduce(OpKind::ReduceSum, raised, -1)), x);
  }
  const auto made = derive(net.finish(net.linear(x, 11)));
  ASSERT_TRUE(made) << made.error().message;
}

TEST(Hostile, LongSequence) {
  constexpr int64_t kLong = 1 << 20;
  Net net(kLong, true, 1);
  const V x = net.gather(net.weight({11, 2}), net.tokens());
  const V rows =
      net.op(OpKind::CumSum, {net.expand(net.constant(dag::make_scalar(DType::I64, 1)), {kLong, 1})},
             {{dag::Attr::Axis, int64_t{0}}});
  const V causal = net.op(OpKind::LessEqual, {net.reshape(rows, {1, kLong}), rows});
  const V scores = net.where(causal, net.matmul(x, x, false, true), net.number(-1e9));
  const auto made = derive(net.finish(net.linear(net.matmul(net.softmax(scores, -1), x), 11)));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::ResourceExhausted) << made.error().message;
}

}  // namespace
}  // namespace weft::incremental::testing
