// Adapters beside weights compute, and are trained, as the same model in which each weight is replaced by
// W + scale * B A, written out as ops.
#include "dag/passes/adapt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "tests/dag/run_graph.h"

namespace weft::dag {
namespace {

constexpr double kAlpha = 6;
constexpr int64_t kRank = 2;

// How a model reads its weight "w" of that shape.
struct Form {
  std::string name;
  Shape weight;
  std::function<ValueId(GraphBuilder&, ValueId w)> read;
  bool in_first = false, is_table = false;
};

Attributes turned(bool a, bool b) { return {{Attr::TransA, int64_t{a}}, {Attr::TransB, int64_t{b}}}; }

std::vector<Form> forms() {
  const auto input = [](GraphBuilder& b, Shape shape) {
    return b.input("x", {DType::F32, std::move(shape)});
  };
  const auto ids = [](GraphBuilder& b) {
    Tensor tensor({DType::I64, {2, 3}});
    const int64_t values[] = {4, 0, 6, 6, 1, 3};
    std::copy(std::begin(values), std::end(values), tensor.mutable_as<int64_t>().begin());
    return b.constant(tensor);
  };
  return {
      {"MatMul",
       {5, 4},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::MatMul, {input(b, {2, 3, 5}), w});
       },
       true},
      {"MatMulTurned",
       {4, 5},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::MatMul, {input(b, {2, 3, 5}), w}, turned(false, true));
       }},
      {"TurnedX",
       {5, 4},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::MatMul, {input(b, {2, 5, 3}), w}, turned(true, false));
       },
       true},
      {"OnLeft",
       {4, 5},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::MatMul, {w, input(b, {2, 5, 3})});
       }},
      {"OnLeftTurned",
       {5, 4},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::MatMul, {w, input(b, {2, 3, 5})}, turned(true, true));
       },
       true},
      {"Table",
       {7, 4},
       [=](auto& b, ValueId w) {
         return b.add(OpKind::Gather, {w, ids(b)}, {{Attr::Axis, int64_t{0}}});
       },
       true,
       true},
      {"TiedTable",
       {7, 4},
       [=](auto& b, ValueId w) {
         const ValueId rows = b.add(OpKind::Gather, {w, ids(b)}, {{Attr::Axis, int64_t{0}}});
         return b.add(OpKind::MatMul, {b.add(OpKind::Tanh, {rows}), w}, turned(false, true));
       },
       true,
       true},
      {"Convolution",
       {6, 4, 1, 1},
       [=](auto& b, ValueId w) {
         return b.add(
             OpKind::Conv, {input(b, {2, 4, 5, 5}), w},
             {{Attr::Strides, Ints{2, 1}}, {Attr::Dilations, Ints{1, 1}}, {Attr::Pads, Ints{1, 0, 0, 1}}});
       }},
      {"ReadTwice",
       {4, 4},
       [=](auto& b, ValueId w) {
         const ValueId once = b.add(OpKind::Tanh, {b.add(OpKind::MatMul, {input(b, {3, 4}), w})});
         return b.add(OpKind::MatMul, {once, w}, turned(false, true));
       },
       true},
  };
}

Graph with_loss(GraphBuilder& b, ValueId y) {
  const ValueId squares = b.add(OpKind::Mul, {b.add(OpKind::Tanh, {y}), y});
  Ints axes;
  for (int64_t d = 0; d < b.spec(y).rank(); ++d) axes.push_back(d);
  b.output("y", y, OutputRole::Prediction);
  b.output("loss", b.add(OpKind::ReduceMean, {squares}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Loss);
  return prune(b.finish(), op_table());
}

Graph base_of(const Form& form, InitializerRole role = InitializerRole::Frozen) {
  GraphBuilder b(op_table());
  const ValueId w = b.initializer("w", {DType::F32, form.weight}, role);
  return with_loss(b, form.read(b, w));
}

// W + scale * B A as ops, from the same factors.
Graph by_hand(const Form& form, const Adapter& adapter) {
  GraphBuilder b(op_table());
  const auto factor = [&](const std::string& name, const TensorSpec& spec) {
    return b.initializer(name, spec, InitializerRole::Parameter);
  };
  const ValueId w = b.initializer("w", {DType::F32, form.weight}, InitializerRole::Frozen);
  const auto flat = [&](ValueId v) {
    const Shape& shape = b.spec(v).shape;
    return b.add(OpKind::Reshape, {v}, {{Attr::Shape, Ints{shape[0], shape[1]}}});
  };
  const ValueId a = flat(factor(adapter.a(), a_spec(adapter, form.weight)));
  const ValueId bb = flat(factor(adapter.b(), b_spec(adapter, form.weight)));
  const ValueId delta = form.in_first ? b.add(OpKind::MatMul, {a, bb}, turned(true, true))
                                      : b.add(OpKind::MatMul, {bb, a}, turned(false, false));
  const ValueId scaled = b.add(OpKind::Mul, {delta, b.scalar(DType::F32, kAlpha / kRank)});
  const ValueId shaped = b.add(OpKind::Reshape, {scaled}, {{Attr::Shape, form.weight}});
  return with_loss(b, form.read(b, b.add(OpKind::Add, {w, shaped})));
}

Inputs numbers_for(const Graph& graph) {
  Inputs inputs;
  const auto draw = [&](const std::string& name, ValueId value) {
    Rng rng(5, name.size() * 131 + static_cast<uint64_t>(name.back()));
    for (int64_t i = 0; i < graph.spec(value).element_count(); ++i)
      inputs[name].push_back(std::round(rng.normal() * 256) / 256);  // float32 says it, and steps from it
  };
  for (const ValueId input : graph.inputs()) draw(graph.value(input).name, input);
  for (const Initializer& initializer : graph.initializers()) draw(initializer.name, initializer.value);
  return inputs;
}

Adapted adapted_of(const Form& form, double dropout = 0) {
  auto adapted = adapt(base_of(form), {.targets = {"w"}, .rank = kRank, .alpha = kAlpha, .dropout = dropout},
                       /*trains=*/true, op_table());
  EXPECT_TRUE(adapted.has_value()) << form.name << ": " << adapted.error().message;
  return std::move(*adapted);
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 0;
  for (const double value : b) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], tolerance * (1 + largest)) << what << " " << i;
}

TEST(Adapt, ComputesAndLearnsAsTheSumWrittenOut) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    const Adapted adapted = adapted_of(form);
    ASSERT_EQ(adapted.adapters.size(), 1u);
    const Adapter& adapter = adapted.adapters.front();
    EXPECT_EQ(adapter.in_first, form.in_first);
    EXPECT_EQ(adapter.form == Adapter::Form::Table, form.is_table);
    const auto ours = differentiate(adapted.graph, op_table());
    const auto hand = differentiate(by_hand(form, adapter), op_table());
    ASSERT_TRUE(ours.has_value() && hand.has_value());
    const Inputs inputs = numbers_for(adapted.graph);
    expect_near(run(*ours, inputs, OutputRole::Prediction), run(*hand, inputs, OutputRole::Prediction), 1e-12,
                "outputs");
    for (const std::string& factor : {adapter.a(), adapter.b()})
      expect_near(run(*ours, inputs, OutputRole::Gradient, factor),
                  run(*hand, inputs, OutputRole::Gradient, factor), 1e-12, factor);
    EXPECT_EQ(ours->find_output(OutputRole::Gradient, "w"), nullptr);
  }
}

TEST(Adapt, GradientsAreThoseOfCentralDifferences) {
  constexpr double kStep = 0x1p-14;
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    const Adapted adapted = adapted_of(form);
    const auto differentiated = differentiate(adapted.graph, op_table());
    ASSERT_TRUE(differentiated.has_value());
    Inputs inputs = numbers_for(adapted.graph);
    for (const std::string& factor : {adapted.adapters[0].a(), adapted.adapters[0].b()}) {
      const auto gradient = run(*differentiated, inputs, OutputRole::Gradient, factor);
      for (size_t i = 0; i < gradient.size(); ++i) {
        double& number = inputs[factor][i];
        const double before = number;
        number = before + kStep;
        const double above = run(adapted.graph, inputs, OutputRole::Loss)[0];
        number = before - kStep;
        const double below = run(adapted.graph, inputs, OutputRole::Loss)[0];
        number = before;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-6) << factor << " " << i;
      }
    }
  }
}

TEST(Adapt, MergedWeightsAreTheSum) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    const Adapted adapted = adapted_of(form);
    const Adapter& adapter = adapted.adapters.front();
    Inputs inputs = numbers_for(adapted.graph);
    const auto tensor = [&](const std::string& name) {
      const TensorSpec spec = adapted.graph.spec(adapted.graph.find_initializer(name)->value);
      Tensor result = from_doubles(spec, inputs[name]);
      inputs[name] = to_doubles(result);  // what float32 can say
      return result;
    };
    const Tensor merged = merge(adapter, tensor("w"), tensor(adapter.a()), tensor(adapter.b()));
    const auto apart = run(adapted.graph, inputs, OutputRole::Prediction);
    inputs["w"] = to_doubles(merged);
    expect_near(run(base_of(form), inputs, OutputRole::Prediction), apart, 1e-6, "outputs");
  }
}

TEST(Adapt, NothingIsMadeForTheGradientOfWhatIsFrozen) {
  GraphBuilder b(op_table());
  ValueId x = b.input("x", {DType::F32, {3, 11}});
  for (const char* name : {"w0", "w1"}) {
    const int64_t out = b.spec(x).shape[1] + 6;
    const ValueId w = b.initializer(name, {DType::F32, {b.spec(x).shape[1], out}}, InitializerRole::Frozen);
    x = b.add(OpKind::Tanh, {b.add(OpKind::MatMul, {x, w})});
  }
  const auto adapted = adapt(with_loss(b, x), {.targets = {"w1"}, .rank = 2}, /*trains=*/true, op_table());
  ASSERT_TRUE(adapted.has_value());
  const auto graph = differentiate(adapted->graph, op_table());
  ASSERT_TRUE(graph.has_value());
  for (const Op& op : graph->ops())
    for (const ValueId output : op.outputs) {
      if (op.phase != Phase::Backward) continue;
      EXPECT_NE(graph->spec(output).shape, (Shape{11, 17})) << "a gradient of w0";
      EXPECT_NE(graph->spec(output).shape, (Shape{17, 23})) << "a gradient of w1";
      EXPECT_NE(graph->spec(output).shape, (Shape{3, 17})) << "a cotangent behind the first adapter";
    }
}

TEST(Adapt, DropsOnlyInTraining) {
  const Form form = forms().front();
  const auto count = [](const Graph& graph) {
    return std::count_if(graph.ops().begin(), graph.ops().end(),
                         [](const Op& op) { return op.kind == OpKind::Dropout; });
  };
  const AdapterTerms terms{.targets = {"w"}, .rank = 2, .alpha = 2, .dropout = 0.5};
  EXPECT_EQ(count(adapt(base_of(form), terms, /*trains=*/true, op_table())->graph), 1);
  EXPECT_EQ(count(adapt(base_of(form), terms, /*trains=*/false, op_table())->graph), 0);
}

TEST(Adapt, RefusesInWords) {
  const auto refusal = [](const Graph& graph, const AdapterTerms& terms) {
    const auto adapted = adapt(graph, terms, /*trains=*/true, op_table());
    return adapted ? std::string() : adapted.error().message;
  };
  const Graph base = base_of(forms().front());
  EXPECT_NE(
      refusal(base, {.targets = {"w"}, .rank = 5}).find("rank 5 is larger than the smaller side of 'w'"),
      std::string::npos);
  EXPECT_NE(refusal(base, {.targets = {"w", "v*"}, .rank = 2}).find("'v*' names nothing"), std::string::npos);
  const auto once = adapt(base, {.targets = {"w"}, .rank = 2}, true, op_table());
  ASSERT_TRUE(once.has_value());
  EXPECT_NE(refusal(once->graph, {.targets = {"w"}, .rank = 2}).find("has an adapter already"),
            std::string::npos);

  GraphBuilder b(op_table());
  const ValueId w = b.initializer("kernel", {DType::F32, {6, 4, 3, 3}}, InitializerRole::Frozen);
  const ValueId y = b.add(
      OpKind::Conv, {b.input("x", {DType::F32, {2, 4, 5, 5}}), w},
      {{Attr::Strides, Ints{1, 1}}, {Attr::Dilations, Ints{1, 1}}, {Attr::Pads, Ints{0, 0, 0, 0}}}, "conv1");
  EXPECT_NE(refusal(with_loss(b, y), {.targets = {"*"}, .rank = 2})
                .find("'kernel': Conv 'conv1' reads it as f32[6,4,3,3]"),
            std::string::npos);
}

TEST(Adapt, FindsWeightsByTheNodesThatReadThem) {
  GraphBuilder b(op_table());
  const ValueId w = b.initializer("onnx::MatMul_12", {DType::F32, {5, 4}}, InitializerRole::Frozen);
  const ValueId y =
      b.add(OpKind::MatMul, {b.input("x", {DType::F32, {3, 5}}), w}, {}, "/h.0/attn/q_proj/MatMul");
  const Graph base = with_loss(b, y);
  EXPECT_TRUE(is_target(base, "*q_proj*"));
  EXPECT_FALSE(is_target(base, "*v_proj*"));
  const auto adapted = adapt(base, {.targets = {"*q_proj*"}, .rank = 2}, true, op_table());
  ASSERT_TRUE(adapted.has_value());
  EXPECT_EQ(adapted->adapters.at(0).weight, "onnx::MatMul_12");
  EXPECT_EQ(adapted->adapters.at(0).node, "/h.0/attn/q_proj/MatMul");
}

}  // namespace
}  // namespace weft::dag
