// Shape rules: what they give, and what they refuse. Operands and attributes may come from a hostile model.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dag/op_table.h"
#include "tests/dag/op_cases.h"

namespace weft::dag {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kLow = std::numeric_limits<int64_t>::min();

Result<std::vector<TensorSpec>> infer(OpKind kind, const std::vector<TensorSpec>& inputs,
                                      Attributes attributes = {}) {
  GraphBuilder builder(op_table());
  std::vector<ValueId> operands;
  for (size_t i = 0; i < inputs.size(); ++i)
    operands.push_back(builder.input("x" + std::to_string(i), inputs[i]));
  WEFT_TRY(const std::vector<ValueId> outputs, builder.try_add(kind, operands, std::move(attributes)));
  std::vector<TensorSpec> specs;
  for (const ValueId output : outputs) specs.push_back(builder.spec(output));
  return specs;
}

TensorSpec f32(Shape shape) { return {DType::F32, std::move(shape)}; }
TensorSpec i64(Shape shape) { return {DType::I64, std::move(shape)}; }
TensorSpec boolean(Shape shape) { return {DType::Bool, std::move(shape)}; }

Shape shape_of(OpKind kind, const std::vector<TensorSpec>& inputs, Attributes attributes = {}) {
  const auto specs = infer(kind, inputs, std::move(attributes));
  if (!specs) ADD_FAILURE() << specs.error().message;
  return specs ? specs->front().shape : Shape{-1};
}
void refuses(OpKind kind, const std::vector<TensorSpec>& inputs, Attributes attributes = {}) {
  const std::string what = to_string(attributes);
  EXPECT_FALSE(infer(kind, inputs, std::move(attributes)).has_value()) << to_string(kind) << " took " << what;
}

Attributes conv(Ints strides, Ints dilations, Ints pads, int64_t groups) {
  return {{Attr::Strides, strides}, {Attr::Dilations, dilations}, {Attr::Pads, pads}, {Attr::Groups, groups}};
}
Attributes pool(Ints kernel, Ints strides, Ints pads, int64_t ceil) {
  return {{Attr::Kernel, kernel}, {Attr::Strides, strides}, {Attr::Pads, pads}, {Attr::CeilMode, ceil}};
}

TEST(OpTable, EveryOpHasARow) {
  for (const OpRow& row : op_table().rows()) {
    EXPECT_NE(row.infer, nullptr) << to_string(row.kind);
    EXPECT_FALSE(row.about.empty()) << to_string(row.kind);
    EXPECT_EQ(row.vjp != nullptr, row.differentiability == Differentiability::Differentiable)
        << to_string(row.kind);
    EXPECT_LE(row.inputs_min, row.inputs_max) << to_string(row.kind);
  }
}

TEST(OpShape, Broadcasting) {
  EXPECT_EQ(shape_of(OpKind::Add, {f32({2, 1, 3}), f32({4, 1})}), (Shape{2, 4, 3}));
  EXPECT_EQ(shape_of(OpKind::Where, {boolean({2, 1}), f32({3}), f32({})}), (Shape{2, 3}));
  EXPECT_EQ(shape_of(OpKind::Add, {f32({0, 3}), f32({1, 3})}), (Shape{0, 3}));
  refuses(OpKind::Add, {f32({2}), f32({3})});
}

TEST(OpShape, BroadcastBeyondTheLargestTensorIsRefused) {
  refuses(OpKind::Add, {f32({int64_t{1} << 30, 1}), f32({1, int64_t{1} << 30})});
  refuses(OpKind::Equal, {f32({int64_t{1} << 30, 1}), f32({1, int64_t{1} << 30})});
}

TEST(OpShape, DTypesAreChecked) {
  refuses(OpKind::Exp, {i64({2})});
  refuses(OpKind::Neg, {boolean({2})});
  refuses(OpKind::Add, {f32({2}), i64({2})});
  refuses(OpKind::And, {f32({2}), f32({2})});
  refuses(OpKind::Where, {f32({2}), f32({2}), f32({2})});
  refuses(OpKind::MatMul, {boolean({2, 2}), boolean({2, 2})});
  refuses(OpKind::Gather, {f32({2}), f32({2})}, {{Attr::Axis, 0}});
  EXPECT_EQ(infer(OpKind::Less, {i64({2}), i64({2})})->front().dtype, DType::Bool);
  EXPECT_EQ(infer(OpKind::ArgMax, {f32({2})}, {{Attr::Axis, 0}})->front().dtype, DType::I64);
}

TEST(OpShape, CastNamesADType) {
  EXPECT_EQ(infer(OpKind::Cast, {f32({2})}, {{Attr::DType, int64_t{8}}})->front().dtype, DType::I32);
  refuses(OpKind::Cast, {f32({2})});
  refuses(OpKind::Cast, {f32({2})}, {{Attr::DType, int64_t{99}}});
  refuses(OpKind::Cast, {f32({2})}, {{Attr::DType, int64_t{-1}}});
}

TEST(OpShape, ReshapeKeepsTheCount) {
  EXPECT_EQ(shape_of(OpKind::Reshape, {f32({2, 3})}, {{Attr::Shape, Ints{6}}}), (Shape{6}));
  refuses(OpKind::Reshape, {f32({2, 3})}, {{Attr::Shape, Ints{5}}});
  refuses(OpKind::Reshape, {f32({2, 3})}, {{Attr::Shape, Ints{-2, -3}}});
  refuses(OpKind::Reshape, {f32({0})}, {{Attr::Shape, Ints{0, kHuge}}});
  refuses(OpKind::Reshape, {f32({2, 3})}, {{Attr::Shape, Ints{kHuge, kHuge}}});
}

TEST(OpShape, TransposeWantsAPermutation) {
  refuses(OpKind::Transpose, {f32({2, 3})}, {{Attr::Perm, Ints{0, 0}}});
  refuses(OpKind::Transpose, {f32({2, 3})}, {{Attr::Perm, Ints{0}}});
  refuses(OpKind::Transpose, {f32({2, 3})}, {{Attr::Perm, Ints{0, 2}}});
  refuses(OpKind::Transpose, {f32({2, 3})}, {{Attr::Perm, Ints{-1, 0}}});
}

TEST(OpShape, ExpandOnlyStretches) {
  EXPECT_EQ(shape_of(OpKind::Expand, {f32({1, 3})}, {{Attr::Shape, Ints{2, 4, 3}}}), (Shape{2, 4, 3}));
  refuses(OpKind::Expand, {f32({2, 3})}, {{Attr::Shape, Ints{1, 3}}});
  refuses(OpKind::Expand, {f32({2, 3})}, {{Attr::Shape, Ints{3}}});
  refuses(OpKind::Expand, {f32({})}, {{Attr::Shape, Ints{kHuge}}});
}

TEST(OpShape, SlicesLieInside) {
  const auto slice = [](int64_t start, int64_t size, int64_t step) {
    return Attributes{{Attr::Starts, Ints{start}}, {Attr::Sizes, Ints{size}}, {Attr::Steps, Ints{step}}};
  };
  EXPECT_EQ(shape_of(OpKind::Slice, {f32({5})}, slice(4, 3, -2)), (Shape{3}));
  EXPECT_EQ(shape_of(OpKind::Slice, {f32({5})}, slice(0, 0, 1)), (Shape{0}));
  for (const auto& bad : {slice(4, 3, 1), slice(5, 1, 1), slice(-1, 1, 1), slice(0, 2, 0), slice(0, -1, 1),
                          slice(0, 2, kHuge), slice(0, kHuge, 1), slice(1, 3, -1), slice(kLow, 1, kLow)})
    refuses(OpKind::Slice, {f32({5})}, bad);
  refuses(OpKind::Slice, {f32({5, 5})}, slice(0, 1, 1));
  refuses(OpKind::SliceGrad, {f32({3})},
          {{Attr::Shape, Ints{3}}, {Attr::Starts, Ints{1}}, {Attr::Steps, Ints{1}}});
}

TEST(OpShape, ConcatWantsEqualShapesBesideTheAxis) {
  EXPECT_EQ(shape_of(OpKind::Concat, {f32({2, 3}), f32({2, 1})}, {{Attr::Axis, 1}}), (Shape{2, 4}));
  refuses(OpKind::Concat, {f32({2, 3}), f32({3, 1})}, {{Attr::Axis, 1}});
  refuses(OpKind::Concat, {f32({2, 3}), f32({2})}, {{Attr::Axis, 1}});
  refuses(OpKind::Concat, {f32({2, 3}), i64({2, 3})}, {{Attr::Axis, 1}});
  refuses(OpKind::Concat, {f32({2})}, {{Attr::Axis, 1}});
  refuses(OpKind::Concat, {f32({2})}, {{Attr::Axis, -1}});
  refuses(OpKind::Concat, {}, {{Attr::Axis, 0}});
}

TEST(OpShape, PadsByMode) {
  const auto pad = [](Ints pads, const char* mode) {
    return Attributes{{Attr::Pads, pads}, {Attr::Mode, mode}};
  };
  EXPECT_EQ(shape_of(OpKind::Pad, {f32({3})}, pad({2, -1}, "constant")), (Shape{4}));
  EXPECT_EQ(shape_of(OpKind::Pad, {f32({3})}, pad({2, 2}, "reflect")), (Shape{7}));
  refuses(OpKind::Pad, {f32({3})}, pad({3, 0}, "reflect"));
  refuses(OpKind::Pad, {f32({0})}, pad({1, 0}, "edge"));
  refuses(OpKind::Pad, {f32({3})}, pad({-2, -2}, "constant"));
  refuses(OpKind::Pad, {f32({3})}, pad({-4, 5}, "constant"));
  refuses(OpKind::Pad, {f32({3})}, pad({1}, "constant"));
  refuses(OpKind::Pad, {f32({3})}, pad({kHuge, kHuge}, "constant"));
  refuses(OpKind::Pad, {f32({3})}, pad({1, 1}, "wrap"));
}

TEST(OpShape, Gathering) {
  EXPECT_EQ(shape_of(OpKind::Gather, {f32({5, 3}), i64({2, 4})}, {{Attr::Axis, 1}}), (Shape{5, 2, 4}));
  EXPECT_EQ(shape_of(OpKind::Gather, {f32({5}), i64({})}, {{Attr::Axis, 0}}), (Shape{}));
  refuses(OpKind::Gather, {f32({}), i64({})}, {{Attr::Axis, 0}});
  refuses(OpKind::GatherElements, {f32({2, 3}), i64({3, 3})}, {{Attr::Axis, 1}});
  refuses(OpKind::GatherElements, {f32({2, 3}), i64({3})}, {{Attr::Axis, 1}});
  refuses(OpKind::GatherGrad, {f32({2, 3}), i64({2})}, {{Attr::Axis, 0}, {Attr::Shape, Ints{5, 4}}});
}

TEST(OpShape, Reductions) {
  EXPECT_EQ(shape_of(OpKind::ReduceSum, {f32({2, 3, 4})}, {{Attr::Axes, Ints{0, 2}}, {Attr::KeepDims, 1}}),
            (Shape{1, 3, 1}));
  EXPECT_EQ(shape_of(OpKind::ReduceSum, {f32({0, 3})}, {{Attr::Axes, Ints{0}}}), (Shape{3}));
  refuses(OpKind::ReduceMax, {f32({0, 3})}, {{Attr::Axes, Ints{0}}});
  refuses(OpKind::ArgMax, {f32({0, 3})}, {{Attr::Axis, 0}});
  refuses(OpKind::ReduceSum, {f32({2, 3})}, {{Attr::Axes, Ints{1, 0}}});
  refuses(OpKind::ReduceSum, {f32({2, 3})}, {{Attr::Axes, Ints{0, 0}}});
  refuses(OpKind::ReduceSum, {f32({2, 3})}, {{Attr::Axes, Ints{2}}});
  refuses(OpKind::ReduceSum, {f32({2, 3})}, {{Attr::Axes, Ints{0, 1, 2}}});
  refuses(OpKind::ReduceSum, {f32({2, 3})}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, 2}});
}

TEST(OpShape, MatMul) {
  EXPECT_EQ(shape_of(OpKind::MatMul, {f32({2, 1, 3, 4}), f32({5, 6, 4})}, {{Attr::TransB, 1}}),
            (Shape{2, 5, 3, 6}));
  refuses(OpKind::MatMul, {f32({3, 4}), f32({3, 4})});
  refuses(OpKind::MatMul, {f32({4}), f32({4, 2})});
  refuses(OpKind::MatMul, {f32({2, 3, 4}), f32({3, 4, 5})});
  refuses(OpKind::MatMul, {f32({3, 4}), f32({4, 5})}, {{Attr::TransA, 7}});
}

TEST(OpShape, Convolution) {
  EXPECT_EQ(
      shape_of(OpKind::Conv, {f32({2, 4, 9, 9}), f32({6, 2, 3, 3})}, conv({2, 2}, {1, 2}, {1, 1, 1, 1}, 2)),
      (Shape{2, 6, 5, 4}));
  const std::vector<TensorSpec> operands{f32({1, 4, 5}), f32({6, 2, 3})};
  refuses(OpKind::Conv, operands, conv({1}, {1}, {0, 0}, 1));
  refuses(OpKind::Conv, operands, conv({0}, {1}, {0, 0}, 2));
  refuses(OpKind::Conv, operands, conv({1}, {0}, {0, 0}, 2));
  refuses(OpKind::Conv, operands, conv({1}, {3}, {0, 0}, 2));
  refuses(OpKind::Conv, operands, conv({1}, {1}, {0}, 2));
  refuses(OpKind::Conv, operands, conv({1}, {1}, {-1, 0}, 2));
  refuses(OpKind::Conv, operands, conv({1, 1}, {1}, {0, 0}, 2));
  refuses(OpKind::Conv, operands, conv({kHuge}, {kHuge}, {kHuge, kHuge}, 2));
  refuses(OpKind::Conv, operands, conv({1}, {1}, {0, 0}, 0));
  refuses(OpKind::Conv, operands, conv({1}, {1}, {0, 0}, kHuge));
  refuses(OpKind::Conv, {f32({1, 4, 5}), f32({6, 2, 3}), f32({5})}, conv({1}, {1}, {0, 0}, 2));
  refuses(OpKind::Conv, {f32({4, 5}), f32({6, 4})}, conv({}, {}, {}, 1));
  Attributes attributes = conv({1}, {1}, {0, 0}, 2);
  attributes.set(Attr::Shape, Ints{1, 4, 6});
  refuses(OpKind::ConvGradInput, {f32({1, 6, 3}), f32({6, 2, 3})}, attributes);
}

TEST(OpShape, Pooling) {
  EXPECT_EQ(shape_of(OpKind::MaxPool, {f32({1, 2, 5})}, pool({2}, {2}, {0, 0}, 0)), (Shape{1, 2, 2}));
  EXPECT_EQ(shape_of(OpKind::MaxPool, {f32({1, 2, 5})}, pool({2}, {2}, {0, 0}, 1)), (Shape{1, 2, 3}));
  EXPECT_EQ(shape_of(OpKind::MaxPool, {f32({1, 2, 4})}, pool({2}, {3}, {1, 1}, 1)), (Shape{1, 2, 2}));
  refuses(OpKind::MaxPool, {f32({1, 2, 5})}, pool({6}, {1}, {0, 0}, 0));
  refuses(OpKind::MaxPool, {f32({1, 2, 5})}, pool({2}, {1}, {2, 0}, 0));
  refuses(OpKind::MaxPool, {f32({1, 2, 5})}, pool({0}, {1}, {0, 0}, 0));
  refuses(OpKind::AveragePool, {f32({1, 2, 5})}, pool({2}, {0}, {0, 0}, 0));
  refuses(OpKind::MaxPool, {f32({2, 5})}, pool({}, {}, {}, 0));
  refuses(OpKind::MaxPool, {f32({1, 1, 1, 1, 1, 1})}, pool({1, 1, 1, 1}, {1, 1, 1, 1}, Ints(8, 0), 0));
}

TEST(OpShape, Resampling) {
  EXPECT_EQ(shape_of(OpKind::Resample, {f32({2, 5}), i64({7, 2}), f32({7, 2})}, {{Attr::Axis, 1}}),
            (Shape{2, 7}));
  refuses(OpKind::Resample, {f32({2, 5}), i64({7, 2}), f32({7, 3})}, {{Attr::Axis, 1}});
  refuses(OpKind::Resample, {f32({2, 5}), i64({7}), f32({7})}, {{Attr::Axis, 1}});
  refuses(OpKind::Resample, {f32({2, 5}), f32({7, 2}), f32({7, 2})}, {{Attr::Axis, 1}});
  refuses(OpKind::Resample, {i64({2, 5}), i64({7, 2}), i64({7, 2})}, {{Attr::Axis, 1}});
  refuses(OpKind::Resample, {f32({2, 5}), i64({7, 2}), f32({7, 2})}, {{Attr::Axis, 2}});
  refuses(OpKind::ResampleGrad, {f32({2, 7}), i64({7, 2}), f32({7, 2})},
          {{Attr::Axis, 1}, {Attr::Shape, Ints{3, 5}}});
}

TEST(OpShape, Sampling) {
  const auto grid = [](const char* mode, const char* padding) {
    return Attributes{{Attr::Mode, std::string(mode)}, {Attr::PaddingMode, std::string(padding)}};
  };
  EXPECT_EQ(shape_of(OpKind::GridSample, {f32({2, 3, 4, 5}), f32({2, 6, 7, 2})}, grid("cubic", "zeros")),
            (Shape{2, 3, 6, 7}));
  refuses(OpKind::GridSample, {f32({2, 3, 4, 5}), f32({2, 6, 7, 3})}, grid("linear", "zeros"));
  refuses(OpKind::GridSample, {f32({2, 3, 4, 5}), f32({1, 6, 7, 2})}, grid("linear", "zeros"));
  refuses(OpKind::GridSample, {f32({2, 3, 0, 5}), f32({2, 6, 7, 2})}, grid("linear", "zeros"));
  refuses(OpKind::GridSample, {f32({2, 3, 4, 5}), f32({2, 6, 7, 2})}, grid("linear", "wrap"));
  refuses(OpKind::GridSample, {f32({2, 3, 4, 5}), f32({2, 6, 7, 2})}, grid("area", "zeros"));
  refuses(OpKind::GridSample, {f32({1, 1, 2, 4, 5}), f32({1, 2, 6, 7, 3})}, grid("cubic", "zeros"));

  const auto roi = [](Ints sizes, int64_t ratio, double scale) {
    return Attributes{{Attr::Mode, std::string("avg")},
                      {Attr::Sizes, std::move(sizes)},
                      {Attr::SamplingRatio, ratio},
                      {Attr::SpatialScale, scale}};
  };
  const std::vector<TensorSpec> operands{f32({2, 3, 8, 9}), f32({5, 4}), i64({5})};
  EXPECT_EQ(shape_of(OpKind::RoiAlign, operands, roi({2, 3}, 0, 1)), (Shape{5, 3, 2, 3}));
  refuses(OpKind::RoiAlign, operands, roi({2, 0}, 0, 1));
  refuses(OpKind::RoiAlign, operands, roi({kHuge, kHuge}, 0, 1));
  refuses(OpKind::RoiAlign, operands, roi({2, 3}, kHuge, 1));
  refuses(OpKind::RoiAlign, operands, roi({2, 3}, 0, std::nan("")));
  refuses(OpKind::RoiAlign, {f32({2, 3, 8, 9}), f32({5, 4}), i64({4})}, roi({2, 3}, 0, 1));

  Attributes deform = conv({1, 1}, {1, 1}, {0, 0, 0, 0}, 1);
  deform.set(Attr::Kernel, Ints{2, 2});
  deform.set(Attr::OffsetGroups, int64_t{2});
  EXPECT_EQ(shape_of(OpKind::DeformColumns, {f32({1, 4, 3, 4}), f32({1, 16, 2, 3})}, deform),
            (Shape{1, 16, 6}));
  refuses(OpKind::DeformColumns, {f32({1, 3, 3, 4}), f32({1, 16, 2, 3})}, deform);
  refuses(OpKind::DeformColumns, {f32({1, 4, 3, 4}), f32({1, 8, 2, 3})}, deform);
  deform.set(Attr::OffsetGroups, kHuge);
  refuses(OpKind::DeformColumns, {f32({1, 0, 3, 4}), f32({1, 16, 2, 3})}, deform);
}

TEST(OpShape, Determinants) {
  EXPECT_EQ(shape_of(OpKind::Det, {f32({3, 2, 4, 4})}), (Shape{3, 2}));
  refuses(OpKind::Det, {f32({3, 4})});
  refuses(OpKind::Det, {f32({4})});
  refuses(OpKind::Det, {i64({4, 4})});
  refuses(OpKind::Det, {f32({65, 65})});
}

TEST(OpShape, Normalisation) {
  EXPECT_EQ(
      infer(OpKind::BatchNorm, {f32({2, 3, 4}), f32({3}), f32({3})}, {{Attr::Epsilon, 1e-5}})->at(2).shape,
      (Shape{3}));
  EXPECT_EQ(infer(OpKind::LayerNorm, {f32({2, 3, 4})}, {{Attr::Axis, 1}, {Attr::Epsilon, 1e-5}})->at(1).shape,
            (Shape{2, 1, 1}));
  refuses(OpKind::BatchNorm, {f32({2, 3, 4}), f32({4}), f32({3})}, {{Attr::Epsilon, 1e-5}});
  refuses(OpKind::BatchNorm, {f32({0, 3, 4}), f32({3}), f32({3})}, {{Attr::Epsilon, 1e-5}});
  refuses(OpKind::BatchNorm, {f32({3}), f32({3}), f32({3})}, {{Attr::Epsilon, 1e-5}});
  refuses(OpKind::BatchNorm, {f32({2, 3, 4}), f32({3}), f32({3})}, {{Attr::Epsilon, std::nan("")}});
  refuses(OpKind::LayerNorm, {f32({2, 3}), f32({2})}, {{Attr::Axis, 1}});
  refuses(OpKind::LayerNorm, {f32({2, 3})}, {{Attr::Axis, 2}});
}

TEST(OpShape, CrossEntropy) {
  const auto attributes = [](const char* reduction) {
    return Attributes{{Attr::Axis, 1}, {Attr::Reduction, reduction}};
  };
  EXPECT_EQ(shape_of(OpKind::CrossEntropy, {f32({2, 5, 3}), i64({2, 3})}, attributes("mean")), (Shape{}));
  EXPECT_EQ(shape_of(OpKind::CrossEntropy, {f32({2, 5, 3}), i64({2, 3})}, attributes("none")), (Shape{2, 3}));
  refuses(OpKind::CrossEntropy, {f32({2, 5, 3}), i64({2, 5})}, attributes("mean"));
  refuses(OpKind::CrossEntropy, {f32({2, 5, 3}), f32({2, 3})}, attributes("mean"));
  refuses(OpKind::CrossEntropy, {f32({2, 5, 3}), i64({2, 3}), f32({3})}, attributes("mean"));
  refuses(OpKind::CrossEntropy, {f32({2, 5, 3}), i64({2, 3})}, attributes("median"));
  refuses(OpKind::CrossEntropy, {f32({2, 0}), i64({2})}, attributes("mean"));
}

TEST(OpShape, DropoutRatio) {
  refuses(OpKind::Dropout, {f32({2})}, {{Attr::Ratio, 1.0}});
  refuses(OpKind::Dropout, {f32({2})}, {{Attr::Ratio, -0.1}});
  refuses(OpKind::Dropout, {f32({2})}, {{Attr::Ratio, std::nan("")}});
  refuses(OpKind::Dropout, {f32({2})}, {{Attr::Ratio, 0.5}, {Attr::Key, -1}});
}

TEST(OpShape, WhatIsDrawnIsSaidByTwoNumbersAndAShape) {
  const Attributes attributes{{Attr::Shape, Ints{4, 2}}, {Attr::Key, 1}};
  EXPECT_EQ(shape_of(OpKind::RandomNormal, {f32({}), f32({})}, attributes), (Shape{4, 2}));
  refuses(OpKind::RandomNormal, {f32({1}), f32({})}, attributes);
  refuses(OpKind::RandomNormal, {f32({}), {DType::F64, {}}}, attributes);
  refuses(OpKind::RandomUniform, {i64({}), i64({})}, attributes);
  refuses(OpKind::RandomUniform, {f32({}), f32({})}, {{Attr::Shape, Ints{-1}}});
  refuses(OpKind::RandomUniform, {f32({}), f32({})}, {{Attr::Shape, Ints{kHuge, 2}}});
  refuses(OpKind::RandomUniform, {f32({}), f32({})}, {{Attr::Shape, Ints{2}}, {Attr::Key, -1}});
}

TEST(OpShape, BitsAreOfIntegersAndShiftsOfUnsignedOnes) {
  const TensorSpec u8{DType::U8, {3}};
  EXPECT_EQ(shape_of(OpKind::ShiftLeft, {u8, {DType::U8, {}}}), (Shape{3}));
  refuses(OpKind::ShiftLeft, {i64({3}), i64({3})});
  refuses(OpKind::ShiftRight, {u8, {DType::U16, {3}}});
  refuses(OpKind::BitAnd, {f32({3}), f32({3})});
  refuses(OpKind::BitXor, {boolean({3}), boolean({3})});
  refuses(OpKind::BitNot, {f32({3})});
  refuses(OpKind::RoundThrough, {i64({3})});
}

TEST(OpShape, HalvesAreRoundedToAndBytesMultiplied) {
  const auto to = [](DType dtype) { return Attributes{{Attr::DType, static_cast<int64_t>(dtype)}}; };
  EXPECT_EQ(shape_of(OpKind::RoundToHalf, {f32({3})}, to(DType::BF16)), (Shape{3}));
  refuses(OpKind::RoundToHalf, {f32({3})});
  refuses(OpKind::RoundToHalf, {f32({3})}, to(DType::F32));
  refuses(OpKind::RoundToHalf, {i64({3})}, to(DType::F16));
  const TensorSpec a{DType::U8, {2, 3}}, b{DType::I8, {3, 4}};
  EXPECT_EQ(shape_of(OpKind::IntegerMatMul, {a, b, {DType::U8, {2}}, {DType::I8, {4}}}), (Shape{2, 4}));
  refuses(OpKind::IntegerMatMul, {a, f32({3, 4})});
  refuses(OpKind::IntegerMatMul, {a, {DType::I8, {2, 4}}});
  refuses(OpKind::IntegerMatMul, {a, b, {DType::I8, {2}}});
  refuses(OpKind::IntegerMatMul, {a, b, {DType::U8, {3}}});
  const Attributes window{{Attr::Strides, Ints{1, 1}}, {Attr::Pads, Ints{0, 0, 0, 0}}};
  const TensorSpec x{DType::U8, {1, 2, 4, 4}}, w{DType::I8, {5, 2, 3, 3}};
  EXPECT_EQ(shape_of(OpKind::IntegerConv, {x, w, {DType::U8, {}}, {DType::I8, {5}}}, window),
            (Shape{1, 5, 2, 2}));
  refuses(OpKind::IntegerConv, {x, w, {DType::U8, {1}}}, window);
  refuses(OpKind::IntegerConv, {x, w, {DType::U8, {}}, {DType::I8, {2}}}, window);
}

TEST(OpShape, LeavesAndMissingOperandsAreRefused) {
  refuses(OpKind::Input, {});
  refuses(OpKind::Add, {f32({2})});
  refuses(OpKind::Neg, {});
  GraphBuilder builder(op_table());
  const ValueId x = builder.input("x", f32({2, 3}));
  EXPECT_FALSE(builder.try_add(OpKind::Add, {x, ValueId{}}).has_value());
  EXPECT_FALSE(builder.try_add(OpKind::Concat, {x, ValueId{}}, {{Attr::Axis, 0}}).has_value());
  EXPECT_FALSE(builder.try_add(OpKind::LayerNormGrad, {x, x, ValueId{}, x}, {{Attr::Axis, 1}}).has_value());
}

TEST(OpFlops, CountsOfTheHeavyOps) {
  const auto flops = [](const OpCase& op_case) {
    const OpCaseGraph made = build_op_case(op_case);
    return op_flops(made.builder.graph(), made.builder.graph().ops().back()).value;
  };
  const auto zeros = [](Shape shape) { return Tensor({DType::F32, std::move(shape)}); };
  EXPECT_EQ(flops({.name = "",
                   .kind = OpKind::MatMul,
                   .attributes = {},
                   .inputs = {zeros({7, 3, 4}), zeros({4, 5})},
                   .no_gradient = {}}),
            2 * 7 * 3 * 4 * 5);
  EXPECT_EQ(flops({.name = "",
                   .kind = OpKind::Conv,
                   .attributes = conv({1}, {1}, {1, 1}, 2),
                   .inputs = {zeros({2, 4, 9}), zeros({6, 2, 3})},
                   .no_gradient = {}}),
            2 * (2 * 6 * 9) * 2 * 3);
  EXPECT_EQ(flops({.name = "",
                   .kind = OpKind::Add,
                   .attributes = {},
                   .inputs = {zeros({3, 4}), zeros({4})},
                   .no_gradient = {}}),
            12);
}

}  // namespace
}  // namespace weft::dag
