// Attention that is written out becomes one op, and what is computed stays what it was.
#include "dag/passes/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "tests/dag/run_graph.h"

namespace weft::dag {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kQueries = 5, kKeys = 6, kInner = 4;

// What is written between the products; and what goes wrong.
struct Written {
  bool trans_b = true, scales = true, divides = false, adds = true, masks = false;
  bool learns_bias = false, returns_weights = false, reads_scores = false, drops = false, guards = false;
};

std::vector<double> drawn(int64_t count, uint64_t seed) {
  Rng rng(seed, /*stream=*/9);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = 2 * rng.uniform() - 1;
  return values;
}

Graph model(const Written& w) {
  GraphBuilder b(op_table());
  const auto parameter = [&](const char* name, Shape shape) {
    return b.initializer(name, {DType::F32, std::move(shape)}, InitializerRole::Parameter);
  };
  const ValueId q = b.add(OpKind::Tanh, {parameter("q", {kBatch, kHeads, kQueries, kInner})});
  const ValueId k = b.add(OpKind::Tanh, {parameter("k", w.trans_b ? Shape{kBatch, kHeads, kKeys, kInner}
                                                                  : Shape{kBatch, kHeads, kInner, kKeys})});
  const ValueId v = parameter("v", {kBatch, kHeads, kKeys, kInner});
  ValueId s = b.add(OpKind::MatMul, {q, k}, {{Attr::TransB, int64_t{w.trans_b}}});
  const ValueId first = s;
  if (w.scales) s = b.add(OpKind::Mul, {s, b.scalar(DType::F32, 0.5)});
  if (w.divides) s = b.add(OpKind::Div, {s, b.scalar(DType::F32, 2)});
  if (w.adds)
    s = b.add(OpKind::Add, {s, w.learns_bias ? parameter("bias", {kQueries, kKeys})
                                             : b.input("bias", {DType::F32, {kQueries, kKeys}})});
  if (w.masks)
    s = b.add(OpKind::Where, {b.input("keep", {DType::Bool, {kBatch, 1, 1, kKeys}}), s,
                              b.scalar(DType::F32, -std::numeric_limits<double>::infinity())});
  ValueId p = b.add(OpKind::Softmax, {s}, {{Attr::Axis, int64_t{3}}});
  if (w.returns_weights) b.output("weights", p, OutputRole::Prediction);
  if (w.guards) p = b.add(OpKind::Where, {b.add(OpKind::IsNaN, {p}), b.scalar(DType::F32, 0), p});
  if (w.drops) p = b.add(OpKind::Dropout, {p}, {{Attr::Ratio, 0.5}, {Attr::Key, int64_t{1}}});
  ValueId y = b.add(OpKind::MatMul, {p, v});
  b.set_name(y, "attended");
  if (w.reads_scores)
    y = b.add(OpKind::Add,
              {y, b.add(OpKind::ReduceSum, {first}, {{Attr::Axes, Ints{3}}, {Attr::KeepDims, int64_t{1}}})});
  b.output("loss", b.add(OpKind::ReduceSum, {b.add(OpKind::Mul, {y, y})}, {{Attr::Axes, Ints{0, 1, 2, 3}}}),
           OutputRole::Loss);
  return b.finish();
}

int64_t count(const Graph& graph, OpKind kind) {
  return std::count_if(graph.ops().begin(), graph.ops().end(), [&](const Op& op) { return op.kind == kind; });
}

TEST(FuseAttention, ComputesTheSameAndSoDoItsGradients) {
  for (const bool trans_b : {true, false})
    for (const bool scales : {true, false})
      for (const bool adds : {true, false})
        for (const bool masks : {true, false}) {
          const Written w{
              .trans_b = trans_b, .scales = scales, .divides = !scales, .adds = adds, .masks = masks};
          SCOPED_TRACE(std::string(trans_b ? "transposed " : "") + (scales ? "scaled " : "") +
                       (adds ? "bias " : "") + (masks ? "mask" : ""));
          const Graph before = model(w), after = fuse_attention(before, {}, 0, op_table());
          EXPECT_EQ(count(after, OpKind::Attention), 1);
          EXPECT_EQ(count(after, OpKind::MatMul) + count(after, OpKind::Softmax), 0);
          const Inputs inputs{{"q", drawn(kBatch * kHeads * kQueries * kInner, 1)},
                              {"k", drawn(kBatch * kHeads * kKeys * kInner, 2)},
                              {"v", drawn(kBatch * kHeads * kKeys * kInner, 3)},
                              {"bias", drawn(kQueries * kKeys, 4)},
                              {"keep", {1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1}}};
          const auto as_written = differentiate(before, op_table()),
                     as_one = differentiate(after, op_table());
          ASSERT_TRUE(as_written.has_value() && as_one.has_value());
          const auto compare = [&](OutputRole role, const char* name) {
            const std::vector<double> a = run(*as_written, inputs, role, name),
                                      b = run(*as_one, inputs, role, name);
            ASSERT_EQ(a.size(), b.size());
            for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << name << " " << i;
          };
          compare(OutputRole::Loss, "");
          for (const char* name : {"q", "k", "v"}) compare(OutputRole::Gradient, name);
        }
}

TEST(FuseAttention, LeavesWhatItCannotSay) {
  for (const Written& w : {Written{.learns_bias = true}, Written{.returns_weights = true},
                           Written{.reads_scores = true}, Written{.drops = true}}) {
    const Graph graph = fuse_attention(model(w), {}, 0, op_table());
    EXPECT_EQ(count(graph, OpKind::Attention), 0);
    EXPECT_EQ(count(graph, OpKind::MatMul), 2);
  }
}

// Newer exporters guard the rows of which a mask keeps nothing: these are zero then, and so is what flows
// back.
TEST(FuseAttention, RowsOfNothingAreZeroWhereTheyAreGuarded) {
  const Graph graph = fuse_attention(model({.masks = true, .guards = true}), {}, 0, op_table());
  ASSERT_EQ(count(graph, OpKind::Attention), 1);
  EXPECT_EQ(count(graph, OpKind::IsNaN), 0);
  const Inputs inputs{{"q", drawn(kBatch * kHeads * kQueries * kInner, 1)},
                      {"k", drawn(kBatch * kHeads * kKeys * kInner, 2)},
                      {"v", drawn(kBatch * kHeads * kKeys * kInner, 3)},
                      {"bias", drawn(kQueries * kKeys, 4)},
                      {"keep", {1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0}}};
  const auto differentiated = differentiate(graph, op_table());
  ASSERT_TRUE(differentiated.has_value());
  EXPECT_TRUE(std::isfinite(run(*differentiated, inputs, OutputRole::Loss)[0]));
  for (const char* name : {"q", "k", "v"}) {
    const std::vector<double> slopes = run(*differentiated, inputs, OutputRole::Gradient, name);
    for (size_t i = 0; i < slopes.size(); ++i) {
      ASSERT_TRUE(std::isfinite(slopes[i])) << name << " " << i;
      if (i < slopes.size() / 2) continue;
      ASSERT_EQ(slopes[i], 0) << "of the sample that keeps nothing";
    }
  }
}

// A scale that the file keeps among its weights.
TEST(FuseAttention, TakesNumbersThatAreKnown) {
  GraphBuilder b(op_table());
  const ValueId q = b.input("q", {DType::F32, {kQueries, kInner}}),
                k = b.input("k", {DType::F32, {kKeys, kInner}});
  const ValueId scale = b.initializer("scale", {DType::F32, {}}, InitializerRole::Buffer);
  const ValueId s = b.add(OpKind::MatMul, {q, k}, {{Attr::TransB, int64_t{1}}});
  const ValueId p = b.add(OpKind::Softmax, {b.add(OpKind::Mul, {scale, s})}, {{Attr::Axis, int64_t{1}}});
  b.output("y", b.add(OpKind::MatMul, {p, b.input("v", {DType::F32, {kKeys, kInner}})}),
           OutputRole::Prediction);
  const Graph graph = b.finish();
  EXPECT_EQ(count(fuse_attention(graph, {}, 0, op_table()), OpKind::Attention), 0);
  const Graph fused = fuse_attention(graph, {{"scale", make_scalar(DType::F32, 0.25)}}, 0, op_table());
  ASSERT_EQ(count(fused, OpKind::Attention), 1);
  for (const Op& op : fused.ops())
    EXPECT_EQ(op.kind == OpKind::Attention ? op.attributes.get_double(Attr::Alpha) : 0.25, 0.25);
}

TEST(FuseAttention, LeavesFewScores) {
  EXPECT_EQ(count(fuse_attention(model({}), {}, kQueries * kKeys + 1, op_table()), OpKind::Attention), 0);
  EXPECT_EQ(count(fuse_attention(model({}), {}, kQueries * kKeys, op_table()), OpKind::Attention), 1);
}

}  // namespace
}  // namespace weft::dag
