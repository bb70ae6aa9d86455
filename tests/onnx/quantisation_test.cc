// Quantised models: what integers they compute, and that a gradient passes straight through.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dag/autodiff.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::DType;
using dag::OpKind;
using dag::Tensor;
using dag::ValueId;

constexpr int32_t kU8 = pb::TensorProto::UINT8, kI8 = pb::TensorProto::INT8, kI32 = pb::TensorProto::INT32,
                  kU16 = pb::TensorProto::UINT16;

// An initializer of one of the integer types, of shape `dims`.
void integers(ModelMaker& maker, const std::string& name, int32_t type, const std::vector<int64_t>& dims,
              const std::vector<int32_t>& values) {
  auto& tensor = *maker.graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(type);
  for (const int64_t dim : dims) tensor.add_dims(dim);
  for (const int32_t value : values) tensor.add_int32_data(value);
}
void floats(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims,
            const std::vector<float>& values) {
  auto& tensor = *maker.graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(pb::TensorProto::FLOAT);
  for (const int64_t dim : dims) tensor.add_dims(dim);
  for (const float value : values) tensor.add_float_data(value);
}

ImportedModel must_import(const ModelMaker& maker) {
  auto imported = import_bytes(maker.bytes());
  if (!imported) throw std::runtime_error(imported.error().message);
  return std::move(*imported);
}

std::vector<double> result(const ModelMaker& maker, const Tensor& x) {
  const ImportedModel model = must_import(maker);
  const auto outputs = run_graph(model.graph, model.weights, {{"x", x}});
  if (!outputs) throw std::runtime_error(outputs.error().message);
  return to_doubles(outputs->at("y"));
}

dag::Tensor row(const std::vector<float>& values) {
  return dag::make_tensor({1, static_cast<int64_t>(values.size())}, std::span<const float>(values));
}

ModelMaker quantising(int32_t type, int32_t zero) {
  ModelMaker maker;
  maker.input("x", {1, 6}).output("y", type);
  floats(maker, "scale", {}, {0.5f});
  integers(maker, "zero", type, {}, {zero});
  maker.node("QuantizeLinear", {"x", "scale", "zero"}, {"y"});
  return maker;
}

TEST(Quantisation, RoundsHalvesToEvenAndSaturates) {
  const dag::Tensor x = row({0.25f, 0.75f, -0.25f, 1.2f, 1e6f, -1e6f});
  EXPECT_EQ(result(quantising(kU8, 128), x), (std::vector<double>{128, 130, 128, 130, 255, 0}));
  EXPECT_EQ(result(quantising(kI8, -3), x), (std::vector<double>{-3, -1, -3, -1, 127, -128}));
  EXPECT_EQ(result(quantising(kU16, 7), x), (std::vector<double>{7, 9, 7, 9, 65535, 0}));
}

TEST(Quantisation, ScalesMayBeOfAnAxisOrOfBlocks) {
  ModelMaker maker(17);
  maker.input("x", {2, 3}).output("y");
  floats(maker, "scale", {3}, {1, 2, 4});
  integers(maker, "zero", kI8, {3}, {0, 1, -1});
  maker.node("QuantizeLinear", {"x", "scale", "zero"}, {"q"});
  maker.node("DequantizeLinear", {"q", "scale", "zero"}, {"y"});
  const std::vector<float> values{1.4f, 2.9f, 5.f, -200, 300, 601};
  EXPECT_EQ(result(maker, dag::make_tensor({2, 3}, std::span(values))),
            (std::vector<double>{1, 2, 4, -128, 252, 512}));

  ModelMaker blocks(17);  // the attribute is read whatever the opset says
  blocks.input("x", {1, 5}).output("y");
  floats(blocks, "scale", {1, 3}, {1, 2, 4});
  for (const char* op : {"QuantizeLinear", "DequantizeLinear"}) {
    const bool first = op[0] == 'Q';
    auto& node = blocks.node(op, {first ? "x" : "q", "scale"}, {first ? "q" : "y"});
    attribute(node, "axis", int64_t{1});
    attribute(node, "block_size", int64_t{2});
  }
  EXPECT_EQ(result(blocks, row({1.4f, 2.6f, 3.2f, 5.2f, 6.1f})), (std::vector<double>{1, 3, 4, 6, 8}));
}

TEST(Quantisation, WhatDoesNotFitIsRefusedByName) {
  ModelMaker maker;
  maker.input("x", {2, 3}).output("y", kI8);
  floats(maker, "scale", {2}, {1, 2});
  integers(maker, "zero", kI8, {2}, {0, 1});
  maker.node("QuantizeLinear", {"x", "scale", "zero"}, {"y"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(imported.error().message.find("QuantizeLinear_1"), std::string::npos) << imported.error().message;
  EXPECT_NE(imported.error().message.find("axis 1"), std::string::npos) << imported.error().message;

  const auto wide = import_bytes(quantising(kI32, 0).bytes());
  ASSERT_FALSE(wide.has_value());
  EXPECT_EQ(wide.error().code, ErrorCode::Unsupported);
}

// y = x fake-quantised weights, as quantisation-aware training writes it.
ModelMaker fake_quantised() {
  ModelMaker maker;
  maker.input("x", {1, 2}).output("y");
  floats(maker, "w", {2, 2}, {0.3f, 100.f, -0.8f, -2.6f});
  floats(maker, "scale", {}, {0.5f});
  integers(maker, "zero", kI8, {}, {1});
  integers(maker, "low", kI8, {}, {-3});
  integers(maker, "high", kI8, {}, {127});
  maker.node("QuantizeLinear", {"w", "scale", "zero"}, {"q"});
  maker.node("Clip", {"q", "low", "high"}, {"c"});
  maker.node("DequantizeLinear", {"c", "scale", "zero"}, {"d"});
  maker.node("MatMul", {"x", "d"}, {"y"});
  return maker;
}

TEST(Quantisation, GradientsPassStraightThroughAndStopAtTheEnds) {
  ImportedModel model = must_import(fake_quantised());
  const auto* weight = model.graph.find_initializer("w");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->role, dag::InitializerRole::Parameter);
  EXPECT_EQ(model.graph.find_initializer("scale")->role, dag::InitializerRole::Buffer);  // nothing trains it

  dag::GraphCopy copy(model.graph, dag::op_table());
  for (uint32_t i = 0; i < model.graph.ops().size(); ++i) copy.copy(dag::OpId{i});
  const ValueId y = copy.mapped(model.graph.outputs()[0].value);
  const ValueId loss = copy.builder().add(
      OpKind::ReduceSum, {y}, {{dag::Attr::Axes, dag::Ints{0, 1}}, {dag::Attr::KeepDims, int64_t{0}}});
  copy.builder().output("loss", loss, dag::OutputRole::Loss);
  const auto trained = dag::differentiate(copy.finish(), dag::op_table());
  ASSERT_TRUE(trained.has_value()) << trained.error().message;
  EXPECT_EQ(count_kind(*trained, OpKind::RoundThrough), 1);
  const auto values = run_graph(*trained, model.weights, {{"x", row({2, 3})}});
  ASSERT_TRUE(values.has_value()) << values.error().message;
  // 100 is beyond 127, and -2.6 below the -3 that Clip leaves: neither moves.
  EXPECT_EQ(to_doubles(values->at("w")), (std::vector<double>{2, 0, 3, 0}));
}

TEST(Quantisation, IntegersThatAnotherOpReadsAreIntegers) {
  ModelMaker maker;
  maker.input("x", {1, 3}).output("y", kI32);
  floats(maker, "scale", {}, {1});
  integers(maker, "zero", kI8, {}, {0});
  integers(maker, "w", kI8, {3, 1}, {127, 127, 127});
  maker.node("QuantizeLinear", {"x", "scale", "zero"}, {"q"});
  maker.node("MatMulInteger", {"q", "w"}, {"y"});
  const ImportedModel model = must_import(maker);
  EXPECT_EQ(count_kind(model.graph, OpKind::IntegerMatMul), 1);
  EXPECT_EQ(result(maker, row({-300, 5, 7})), (std::vector<double>{(-128 + 12) * 127}));
}

// 1,000 terms of up to 255 * 255: a float32 does not hold the sum.
TEST(Quantisation, LongProductsOfIntegersAreExact) {
  constexpr int64_t kTerms = 1001;
  ModelMaker maker;
  maker.input("x", {1, kTerms}, kU8).output("y", kI32);
  std::vector<int32_t> w(kTerms, 255), x(kTerms, 255);
  x.back() = 1;
  w.back() = 1;
  integers(maker, "w", kU8, {kTerms, 1}, w);
  maker.node("MatMulInteger", {"x", "w"}, {"y"});
  const std::vector<int64_t> wide(x.begin(), x.end());
  EXPECT_EQ(result(maker, dag::from_int64s({DType::U8, {1, kTerms}}, wide)),
            (std::vector<double>{1000.0 * 255 * 255 + 1}));
}

// A convolution by three loops, with the zero points taken off first.
std::vector<int64_t> convolved(const std::vector<int64_t>& x, int64_t channels, int64_t side, int64_t zero,
                               const std::vector<int32_t>& w, int64_t filters, int64_t groups,
                               const std::vector<int32_t>& w_zeros) {
  std::vector<int64_t> y;
  const int64_t of_group = channels / groups;
  for (int64_t m = 0; m < filters; ++m)
    for (int64_t row = 0; row < side; ++row)
      for (int64_t column = 0; column < side; ++column) {
        int64_t sum = 0;
        for (int64_t c = 0; c < of_group; ++c)
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t r = row + k / 3 - 1, s = column + k % 3 - 1;
            if (r < 0 || r >= side || s < 0 || s >= side) continue;
            const int64_t channel = m / (filters / groups) * of_group + c;
            sum += (x[static_cast<size_t>((channel * side + r) * side + s)] - zero) *
                   (w[static_cast<size_t>((m * of_group + c) * 9 + k)] - w_zeros[static_cast<size_t>(m)]);
          }
        y.push_back(sum);
      }
  return y;
}
std::vector<int32_t> drawn(size_t count, int32_t low, int32_t high, uint32_t seed) {
  std::vector<int32_t> values(count);
  for (int32_t& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = low + static_cast<int32_t>(seed >> 8) % (high - low + 1);
  }
  return values;
}

struct Convolution {
  int64_t channels, filters, groups;
};
constexpr int64_t kSide = 6;

// 70 channels: sums beyond what a float32 holds. Groups of one channel: products of floats.
constexpr Convolution kConvolutions[] = {{70, 5, 1}, {12, 6, 2}, {4, 4, 4}};

struct QuantisedImages {
  std::vector<int32_t> w, w_zeros;
  std::vector<int64_t> x, y;
};
QuantisedImages images_of(const Convolution& c) {
  QuantisedImages made;
  made.w = drawn(static_cast<size_t>(c.filters * c.channels / c.groups * 9), -128, 127, 1);
  made.w_zeros = drawn(static_cast<size_t>(c.filters), -5, 5, 2);
  const auto x = drawn(static_cast<size_t>(c.channels * kSide * kSide), 0, 255, 3);
  made.x.assign(x.begin(), x.end());
  made.y = convolved(made.x, c.channels, kSide, 131, made.w, c.filters, c.groups, made.w_zeros);
  return made;
}
void convolve(ModelMaker& maker, const char* op, const Convolution& c,
              const std::vector<std::string>& operands) {
  auto& node = maker.node(op, operands, {"y"});
  attribute(node, "pads", std::vector<int64_t>{1, 1, 1, 1});
  attribute(node, "group", c.groups);
}

TEST(Quantisation, ConvolutionsOfIntegersAreExact) {
  for (const Convolution& c : kConvolutions) {
    const QuantisedImages made = images_of(c);
    ModelMaker maker;
    maker.input("x", {1, c.channels, kSide, kSide}, kU8).output("y", kI32);
    integers(maker, "x_zero", kU8, {}, {131});
    integers(maker, "w", kI8, {c.filters, c.channels / c.groups, 3, 3}, made.w);
    integers(maker, "w_zero", kI8, {c.filters}, made.w_zeros);
    convolve(maker, "ConvInteger", c, {"x", "w", "x_zero", "w_zero"});
    EXPECT_EQ(result(maker, dag::from_int64s({DType::U8, {1, c.channels, kSide, kSide}}, made.x)),
              std::vector<double>(made.y.begin(), made.y.end()));
    const auto imported = must_import(maker);
    for (const auto& value : imported.graph.values()) EXPECT_NE(value.spec.dtype, DType::F64);
  }
}

TEST(Quantisation, SumsAreRequantisedInFloat32) {
  for (const Convolution& c : kConvolutions) {
    const QuantisedImages made = images_of(c);
    const auto bias = drawn(static_cast<size_t>(c.filters), -900, 900, 4);
    std::vector<float> scales;
    for (int64_t m = 0; m < c.filters; ++m) scales.push_back(0.001f * static_cast<float>(m + 1));
    ModelMaker maker;
    maker.input("x", {1, c.channels, kSide, kSide}, kU8).output("y", kU8);
    floats(maker, "x_scale", {}, {0.02f});
    floats(maker, "w_scale", {c.filters}, scales);
    floats(maker, "y_scale", {}, {0.07f});
    integers(maker, "x_zero", kU8, {}, {131});
    integers(maker, "y_zero", kU8, {}, {120});
    integers(maker, "w", kI8, {c.filters, c.channels / c.groups, 3, 3}, made.w);
    integers(maker, "w_zero", kI8, {c.filters}, made.w_zeros);
    integers(maker, "bias", kI32, {c.filters}, bias);
    convolve(maker, "QLinearConv", c,
             {"x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"});
    std::vector<double> expected;
    for (size_t i = 0; i < made.y.size(); ++i) {
      const size_t m = i / (kSide * kSide);
      const auto sum = static_cast<float>(made.y[i] + bias[m]);
      const float factor = 0.02f * scales[m] / 0.07f;
      expected.push_back(std::clamp(static_cast<double>(std::nearbyint(sum * factor)) + 120, 0.0, 255.0));
    }
    EXPECT_EQ(result(maker, dag::from_int64s({DType::U8, {1, c.channels, kSide, kSide}}, made.x)), expected);
    const auto imported = must_import(maker);
    for (const auto& value : imported.graph.values()) EXPECT_NE(value.spec.dtype, DType::F64);
  }
}

TEST(Quantisation, ProductsOfWiderIntegersAreRefusedByName) {
  ModelMaker maker;
  maker.input("x", {1, 3}, pb::TensorProto::INT16).output("y", kI32);
  integers(maker, "w", kI8, {3, 1}, {1, 2, 3});
  maker.node("MatMulInteger", {"x", "w"}, {"y"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("MatMulInteger"), std::string::npos);
}

}  // namespace
}  // namespace weft::onnx::testing
