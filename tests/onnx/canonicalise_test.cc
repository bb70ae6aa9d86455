#include "dag/passes/canonicalise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::Attr;
using dag::DType;
using dag::Graph;
using dag::GraphBuilder;
using dag::Ints;
using dag::OpKind;
using dag::Tensor;
using dag::ValueId;

Tensor random_tensor(const dag::TensorSpec& spec, uint64_t seed, int64_t integers_below = 16) {
  Rng rng(seed, 5);
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (double& value : values)
    value = is_float(spec.dtype) ? rng.normal()
                                 : static_cast<double>(rng.below(static_cast<uint64_t>(integers_below)));
  return from_doubles(spec, values);
}

Graph must_canonicalise(const Graph& graph) {
  auto result = dag::canonicalise(graph, dag::op_table());
  EXPECT_TRUE(result.has_value());
  return std::move(*result);
}

// The same outputs before and after, on random inputs and weights.
void expect_same(const Graph& before, const Graph& after, uint64_t seed, double tolerance = 1e-6) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::map<std::string, Tensor> inputs;
  dag::Weights weights;
  for (const ValueId input : before.inputs())
    inputs[before.value(input).name] = random_tensor(before.spec(input), ++seed);
  for (const auto& initializer : before.initializers())
    weights[initializer.name] = random_tensor(before.spec(initializer.value), ++seed);
  const auto a = run_graph(before, weights, inputs), b = run_graph(after, weights, inputs);
  ASSERT_TRUE(a.has_value() && b.has_value());
  ASSERT_EQ(a->size(), b->size());
  for (const auto& [name, tensor] : *a) {
    const auto x = to_doubles(tensor), y = to_doubles(b->at(name));
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i)
      if (!(std::isnan(x[i]) && std::isnan(y[i]))) {
        ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(x[i]))) << name << " " << i;
      }
  }
}

struct Maker {
  GraphBuilder b{dag::op_table()};
  ValueId x = b.input("x", {DType::F32, {2, 5, 8}});
  ValueId parameter(const std::string& name, dag::Shape shape) {
    return b.initializer(name, {DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  }
  ValueId op(OpKind kind, std::vector<ValueId> inputs, dag::Attributes attributes = {}) {
    return b.add(kind, std::move(inputs), std::move(attributes));
  }
  ValueId number(double value) { return b.scalar(DType::F32, value); }
  Graph finish(ValueId y) {
    b.output("y", y, dag::OutputRole::Prediction);
    return b.finish();
  }
};

ValueId mean(Maker& m, ValueId x) {
  return m.op(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{2}}, {Attr::KeepDims, int64_t{1}}});
}

Graph layer_norm_by_parts(bool by_pow, bool affine, bool two_differences) {
  Maker m;
  const ValueId d = m.op(OpKind::Sub, {m.x, mean(m, m.x)});
  const ValueId e = two_differences ? m.op(OpKind::Sub, {m.x, mean(m, m.x)}) : d;
  const ValueId square = by_pow ? m.op(OpKind::Pow, {e, m.number(2)}) : m.op(OpKind::Mul, {e, e});
  const ValueId deviation = m.op(OpKind::Sqrt, {m.op(OpKind::Add, {mean(m, square), m.number(1e-5)})});
  ValueId y = m.op(OpKind::Div, {d, deviation});
  if (affine) {
    y = m.op(OpKind::Mul, {y, m.parameter("scale", {8})});
    y = m.op(OpKind::Add, {m.parameter("bias", {8}), y});
  }
  return m.finish(y);
}

TEST(Canonicalise, LayerNormIsFoundInItsParts) {
  for (const bool by_pow : {false, true})
    for (const bool affine : {false, true})
      for (const bool twice : {false, true}) {
        const Graph before = layer_norm_by_parts(by_pow, affine, twice);
        const Graph after = must_canonicalise(before);
        EXPECT_EQ(count_kind(after, OpKind::LayerNorm), 1);
        EXPECT_EQ(after.ops().size(), affine ? 4u : 2u);
        expect_same(before, after, 11);
      }
}

TEST(Canonicalise, AMeanOverOtherDimsIsNoLayerNorm) {
  Maker m;
  const dag::Attributes over_one{{Attr::Axes, Ints{1}}, {Attr::KeepDims, int64_t{1}}};
  const ValueId d = m.op(OpKind::Sub, {m.x, m.op(OpKind::ReduceMean, {m.x}, over_one)});
  const ValueId v = m.op(OpKind::ReduceMean, {m.op(OpKind::Mul, {d, d})}, over_one);
  const Graph before =
      m.finish(m.op(OpKind::Div, {d, m.op(OpKind::Sqrt, {m.op(OpKind::Add, {v, m.number(1e-5)})})}));
  const Graph after = must_canonicalise(before);
  EXPECT_EQ(count_kind(after, OpKind::LayerNorm), 0);
  expect_same(before, after, 12);
}

ValueId gelu_erf(Maker& m, ValueId x, int form) {
  const ValueId inner =
      form % 2 ? m.op(OpKind::Mul, {x, m.number(0.70710678)}) : m.op(OpKind::Div, {x, m.number(1.4142135)});
  const ValueId gate = m.op(OpKind::Add, {m.op(OpKind::Erf, {inner}), m.number(1)});
  if (form < 2) return m.op(OpKind::Mul, {m.op(OpKind::Mul, {x, gate}), m.number(0.5)});
  if (form < 4) return m.op(OpKind::Mul, {m.op(OpKind::Mul, {m.number(0.5), x}), gate});
  return m.op(OpKind::Mul, {m.op(OpKind::Div, {x, m.number(2)}), gate});
}

TEST(Canonicalise, ErfGeluIsFoundInEveryOrderOfFactors) {
  for (int form = 0; form < 6; ++form) {
    SCOPED_TRACE(form);
    Maker m;
    const Graph before = m.finish(gelu_erf(m, m.x, form));
    const Graph after = must_canonicalise(before);
    EXPECT_EQ(count_kind(after, OpKind::Gelu), 1);
    EXPECT_EQ(after.ops().size(), 2u);
    expect_same(before, after, 13);
  }
}

TEST(Canonicalise, AGeluOfAProductTimesAnotherFactorIsStillFound) {
  Maker m;
  const ValueId x = m.op(OpKind::Mul, {m.x, m.parameter("a", {8})});
  const Graph before = m.finish(m.op(OpKind::Mul, {gelu_erf(m, x, 2), m.parameter("b", {8})}));
  const Graph after = must_canonicalise(before);
  EXPECT_EQ(count_kind(after, OpKind::Gelu), 1);
  EXPECT_EQ(count_kind(after, OpKind::Mul), 2);
  expect_same(before, after, 14);
}

TEST(Canonicalise, TanhGeluIsFound) {
  for (const bool by_pow : {false, true}) {
    Maker m;
    const ValueId cube = by_pow ? m.op(OpKind::Pow, {m.x, m.number(3)})
                                : m.op(OpKind::Mul, {m.x, m.op(OpKind::Mul, {m.x, m.x})});
    const ValueId sum = m.op(OpKind::Add, {m.x, m.op(OpKind::Mul, {m.number(0.044715), cube})});
    const ValueId gate =
        m.op(OpKind::Add,
             {m.number(1), m.op(OpKind::Tanh, {m.op(OpKind::Mul, {m.number(0.7978845834732056), sum})})});
    const Graph before = m.finish(m.op(OpKind::Mul, {m.number(0.5), m.op(OpKind::Mul, {m.x, gate})}));
    const Graph after = must_canonicalise(before);
    EXPECT_EQ(count_kind(after, OpKind::Gelu), 1);
    EXPECT_EQ(after.ops().size(), 2u);
    expect_same(before, after, 15);
  }
}

TEST(Canonicalise, OtherNumbersAreNoGelu) {
  Maker m;
  const ValueId gate =
      m.op(OpKind::Add, {m.op(OpKind::Erf, {m.op(OpKind::Div, {m.x, m.number(1.5)})}), m.number(1)});
  const Graph before = m.finish(m.op(OpKind::Mul, {m.op(OpKind::Mul, {m.x, gate}), m.number(0.5)}));
  EXPECT_EQ(count_kind(must_canonicalise(before), OpKind::Gelu), 0);
}

TEST(Canonicalise, ATransposedWeightBecomesAFlag) {
  Maker m;
  const ValueId w = m.op(OpKind::Transpose, {m.parameter("w", {3, 8})}, {{Attr::Perm, Ints{1, 0}}});
  const Graph before = m.finish(m.op(OpKind::MatMul, {m.x, w}));
  const Graph after = must_canonicalise(before);
  EXPECT_EQ(count_kind(after, OpKind::Transpose), 0);
  expect_same(before, after, 16);
}

TEST(Canonicalise, BothOperandsAndExistingFlagsAreRespected) {
  Maker m;
  const dag::Attributes swap{{Attr::Perm, Ints{0, 2, 1}}};
  const ValueId left = m.op(OpKind::Transpose, {m.x}, swap);                           // [2, 8, 5]
  const ValueId right = m.op(OpKind::Transpose, {m.parameter("w", {2, 5, 8})}, swap);  // [2, 8, 5]
  const Graph before = m.finish(m.op(OpKind::MatMul, {left, right}, {{Attr::TransB, int64_t{1}}}));
  const Graph after = must_canonicalise(before);
  EXPECT_EQ(count_kind(after, OpKind::Transpose), 0);
  expect_same(before, after, 17);
}

TEST(Canonicalise, HeadsKeepTheirInnermostDim) {
  Maker m;
  const ValueId heads = m.op(OpKind::Reshape, {m.x}, {{Attr::Shape, Ints{2, 5, 2, 4}}});
  const ValueId q = m.op(OpKind::Transpose, {heads}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  const ValueId k = m.op(OpKind::Transpose, {heads}, {{Attr::Perm, Ints{0, 2, 3, 1}}});
  const Graph before = m.finish(m.op(OpKind::MatMul, {q, k}));
  const Graph after = must_canonicalise(before);
  for (const dag::Op& op : after.ops())
    if (op.kind == OpKind::Transpose) {
      EXPECT_EQ(op.attributes.get_ints(Attr::Perm), (Ints{0, 2, 1, 3}));
    }
  expect_same(before, after, 18);
}

TEST(Canonicalise, ChainsOfShapesMerge) {
  Maker m;
  ValueId y = m.op(OpKind::Reshape, {m.x}, {{Attr::Shape, Ints{10, 8}}});
  y = m.op(OpKind::Reshape, {y}, {{Attr::Shape, Ints{80}}});
  y = m.op(OpKind::Reshape, {y}, {{Attr::Shape, Ints{2, 5, 8}}});
  y = m.op(OpKind::Transpose, {y}, {{Attr::Perm, Ints{1, 2, 0}}});
  y = m.op(OpKind::Transpose, {y}, {{Attr::Perm, Ints{2, 1, 0}}});
  y = m.op(OpKind::Expand, {y}, {{Attr::Shape, Ints{2, 8, 5}}});
  const Graph before = m.finish(y);
  const Graph after = must_canonicalise(before);
  EXPECT_EQ(after.ops().size(), 2u);
  expect_same(before, after, 19);
}

TEST(Canonicalise, TwiceIsOnce) {
  for (const char* path : {"examples/fashion-mnist/model.onnx", "examples/gpt/model.onnx"}) {
    const auto imported = import_bytes(read_all(path));
    ASSERT_TRUE(imported.has_value());
    const Graph once = must_canonicalise(imported->graph);
    EXPECT_EQ(once.ops().size(), must_canonicalise(once).ops().size());
  }
}

TEST(Canonicalise, ExportedModelsComputeTheSame) {
  for (const char* name : {"gpt3/model.onnx.gz", "gpt3/model_fixed.onnx.gz", "gpt4/model.onnx.gz",
                           "resnet_small/model.onnx.gz"}) {
    SCOPED_TRACE(name);
    const auto imported = import_bytes(gunzip(std::string("tests/numerics/") + name));
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    expect_same(imported->graph, must_canonicalise(imported->graph), 20, 1e-4);
  }
}

}  // namespace
}  // namespace weft::onnx::testing
