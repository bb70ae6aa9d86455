// Operators as the operator sets from 13 to 24 define them. Numbers are PyTorch's, in double.
#include <gtest/gtest.h>

#include <limits>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using Node = pb::NodeProto;

dag::Tensor int_tensor(const std::vector<int64_t>& values) {
  return dag::make_tensor(dag::Shape{static_cast<int64_t>(values.size())}, std::span<const int64_t>(values));
}

TEST(Opset, ANewerNumberIsNoReasonToRefuse) {
  for (const int64_t opset : {18, 21, 24}) {
    ModelMaker maker(opset);
    maker.input("x", {1}).output("y").node("Relu", {"x"}, {"y"});
    const auto imported = import_bytes(maker.bytes());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    EXPECT_TRUE(imported->warnings.empty());
  }
}

TEST(Opset, BeyondTheNewestKnownThereIsAWarning) {
  ModelMaker maker(27);
  maker.input("x", {1}).output("y").node("Relu", {"x"}, {"y"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  ASSERT_EQ(imported->warnings.size(), 1u);
  EXPECT_NE(imported->warnings[0].find("operator set 27"), std::string::npos) << imported->warnings[0];
}

TEST(Opset, TooOldIsNamed) {
  ModelMaker maker(5);
  maker.input("x", {1}).output("y").node("Relu", {"x"}, {"y"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("6 to 24"), std::string::npos) << imported.error().message;
}

TEST(Opset, TypesWithoutArithmeticAreNamed) {
  const std::pair<int32_t, const char*> types[] = {{17, "float8e4m3fn"}, {22, "int4"},   {23, "float4e2m1"},
                                                   {25, "uint2"},        {8, "strings"}, {14, "complex"}};
  for (const auto& [number, name] : types) {
    ModelMaker maker(23);
    maker.input("x", {1}, number).output("y", 0).node("Identity", {"x"}, {"y"});
    const auto imported = import_bytes(maker.bytes());
    ASSERT_FALSE(imported.has_value()) << name;
    EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
    EXPECT_NE(imported.error().message.find(name), std::string::npos) << imported.error().message;
  }
}

TEST(Opset, ActivationsAreThoseOfPyTorch) {
  const Operands x{wave({8}, 0, 3)};
  expect_start(run_op(18, "", "Mish", x),
               {0, 1.871814198, 2.941933519, 2.564510506, 0.870308542, -0.306032892});
  expect_start(run_op(20, "", "Gelu", x),
               {0, 1.881168198, 2.951747567, 2.57718757, 0.846725779, -0.153979356});
  expect_start(run_op(20, "", "Gelu", x, [](Node& n) { attribute(n, "approximate", std::string("tanh")); }),
               {0, 1.881208269, 2.952174894, 2.577650933, 0.846571281, -0.154150161});
  expect_start(run_op(24, "", "Swish", x, [](Node& n) { attribute(n, "alpha", 2.0f); }),
               {0, 1.892982757, 2.948374197, 2.575124499, 0.886213443, -0.114328223});
  expect_start(run_op(22, "", "HardSwish", x),
               {0, 1.588851174, 2.93484135, 2.412509666, 0.670807816, -0.341601532});
  expect_start(run_op(22, "", "Selu", x),
               {0, 2.03064048, 3.106239013, 2.720924801, 1.05591714, -1.144317902});
}

TEST(Opset, GroupNormalizationScalesByGroupThenByChannel) {
  const auto groups = [](Node& n) { attribute(n, "num_groups", int64_t{2}); };
  expect_start(run_op(21, "", "GroupNormalization", {wave({2, 4, 3}), wave({4}, 1), wave({4}, 2)}, groups),
               {0.175264063, 1.320669824, 1.927373358, 1.371037858, 0.264239982, -1.172677507, -0.912660942});
  expect_start(run_op(18, "", "GroupNormalization", {wave({2, 4, 3}), wave({2}, 1), wave({2}, 2)}, groups),
               {0.175264063, 1.320669824, 1.927373358, 1.710032513, 0.770866085, -0.448421282, -0.537354602});
  EXPECT_FALSE(
      run_op(21, "", "GroupNormalization", {wave({2, 4, 3}), wave({2}), wave({2})}, groups).has_value());
}

TEST(Opset, RmsNormalizationIsThatOfPyTorch) {
  expect_start(
      run_op(23, "", "RMSNormalization", {wave({2, 3, 4}), wave({4}, 1)}),
      {0, 0.875196259, 0.911893377, 0.049171726, 0.402672942, -0.496921263, -0.840989722, -0.058356183});
}

TEST(Opset, LayerNormalizationOfHalvesKeepsItsStatisticsInFloats) {
  dag::Tensor x = wave({2, 4}), scale = wave({4}, 1);
  const auto half = [](const dag::Tensor& t) {
    return from_list({dag::DType::F16, t.shape()}, to_doubles(t));
  };
  const auto results = run_op(17, "", "LayerNormalization", {half(x), half(scale)}, {}, 3);
  ASSERT_TRUE(results.has_value()) << results.error().message;
  EXPECT_EQ((*results)[0].dtype(), dag::DType::F16);
  EXPECT_EQ((*results)[1].dtype(), dag::DType::F32);
  const auto wide = run_op(17, "", "LayerNormalization", {x, scale});
  ASSERT_TRUE(wide.has_value());
  expect_start(results, to_doubles((*wide)[0]), 4e-3);
}

TEST(Opset, BatchNormalizationTakesStatisticsOfAnotherType) {
  const auto half = [](const dag::Tensor& t) {
    return from_list({dag::DType::F16, t.shape()}, to_doubles(t));
  };
  const dag::Tensor x = wave({2, 3, 4}), s = wave({3}, 1), b = wave({3}, 2), m = wave({3}, 3),
                    v = wave({3}, 0, 0.1);
  const dag::Tensor variance = from_list(v.spec(), {0.5, 1, 2});
  const auto mixed = run_op(15, "", "BatchNormalization", {half(x), s, b, m, variance});
  const auto plain = run_op(15, "", "BatchNormalization", {x, s, b, m, variance});
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  ASSERT_TRUE(mixed.has_value()) << mixed.error().message;
  EXPECT_EQ((*mixed)[0].dtype(), dag::DType::F16);
  expect_start(mixed, to_doubles((*plain)[0]), 1e-2);
}

TEST(Opset, SplitLeavesTheLastPartSmaller) {
  const auto results = run_op(
      18, "", "Split", {wave({7})}, [](Node& n) { attribute(n, "num_outputs", int64_t{3}); }, 3);
  ASSERT_TRUE(results.has_value()) << results.error().message;
  EXPECT_EQ((*results)[0].shape(), dag::Shape{3});
  EXPECT_EQ((*results)[2].shape(), dag::Shape{1});
  EXPECT_EQ(to_doubles((*results)[2])[0], to_doubles(wave({7}))[6]);
  EXPECT_FALSE(run_op(13, "", "Split", {wave({7})}, {}, 3).has_value()) << "before opset 18 parts are equal";
  EXPECT_FALSE(run_op(
                   18, "", "Split", {wave({5})}, [](Node& n) { attribute(n, "num_outputs", int64_t{4}); }, 4)
                   .has_value())
      << "no part is left for the last";
}

TEST(Opset, PadWrapsAroundAndTakesAxes) {
  const dag::Tensor x = from_list({dag::DType::F32, {1, 3}}, {1, 2, 3});
  const auto wrap = [](Node& n) { attribute(n, "mode", std::string("wrap")); };
  const auto padded =
      run_op(19, "", "Pad", {x, int_tensor({2, 5}), std::nullopt, int_tensor({-1})}, wrap, 1, {1, 3});
  ASSERT_TRUE(padded.has_value()) << padded.error().message;
  EXPECT_EQ((*padded)[0].shape(), (dag::Shape{1, 10}));
  expect_start(padded, {2, 3, 1, 2, 3, 1, 2, 3, 1, 2}, 0);
  expect_start(
      run_op(19, "", "Pad", {x, int_tensor({-1, 2}), std::nullopt, int_tensor({1})}, wrap, 1, {1, 3}),
      {2, 3, 1, 2}, 0);
  expect_start(run_op(18, "", "Pad", {x, int_tensor({1, 0}), std::nullopt, int_tensor({1})}, {}, 1, {1, 3}),
               {0, 1, 2, 3}, 0);
}

TEST(Opset, WrapsThatWouldFillMemoryAreRefused) {
  const auto padded =
      run_op(19, "", "Pad", {wave({1, 3}), int_tensor({0, int64_t{1} << 40}), std::nullopt, int_tensor({1})},
             [](Node& n) { attribute(n, "mode", std::string("wrap")); }, 1, {1, 3});
  EXPECT_FALSE(padded.has_value());
}

TEST(Opset, ReductionsTakeAxesAsAnOperandOrNone) {
  const dag::Tensor x = from_list({dag::DType::F32, {2, 2}}, {1, 2, 3, -4});
  expect_start(run_op(18, "", "ReduceL1", {x, int_tensor({1})}, {}, 1, {1}), {3, 7}, 0);
  expect_start(run_op(18, "", "ReduceMax", {x, int_tensor({0})}, {}, 1, {1}), {3, 2}, 0);
  const auto noop = [](Node& n) { attribute(n, "noop_with_empty_axes", int64_t{1}); };
  expect_start(run_op(18, "", "ReduceSum", {x}, noop), {1, 2, 3, -4}, 0);
  expect_start(run_op(18, "", "ReduceSumSquare", {x}, noop), {1, 4, 9, 16}, 0);
}

TEST(Opset, CastSaturatesNothingThatIsKnown) {
  const auto cast = run_op(19, "", "Cast", {wave({4})}, [](Node& n) {
    attribute(n, "to", int64_t{pb::TensorProto::BFLOAT16});
    attribute(n, "saturate", int64_t{0});
  });
  ASSERT_TRUE(cast.has_value()) << cast.error().message;
  EXPECT_EQ((*cast)[0].dtype(), dag::DType::BF16);
  const auto refused = run_op(19, "", "Cast", {wave({4})}, [](Node& n) { attribute(n, "to", int64_t{19}); });
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("float8e5m2"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace weft::onnx::testing
