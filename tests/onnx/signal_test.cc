// Fourier transforms against the sums that define them, and their inverses.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <stdexcept>

#include "base/rng.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::DType;

dag::Tensor noise(const dag::Shape& shape, uint64_t seed) {
  Rng rng(seed, /*stream=*/5);
  std::vector<double> values(static_cast<size_t>(dag::TensorSpec{DType::F32, shape}.element_count()));
  for (double& value : values) value = rng.normal();
  return dag::from_doubles({DType::F32, shape}, values);
}

dag::Tensor run(const ModelMaker& maker, const dag::Tensor& x) {
  const auto model = import_bytes(maker.bytes());
  if (!model) throw std::runtime_error(model.error().message);
  const auto outputs = run_graph(model->graph, model->weights, {{"x", x}});
  if (!outputs) throw std::runtime_error(outputs.error().message);
  return outputs->at("y");
}

struct Dft {
  int64_t length = 0;  // 0: as long as x
  bool inverse = false, onesided = false;
};
// Of x [batch, places, parts] along dim 1.
ModelMaker dft_model(const dag::Shape& shape, const Dft& form) {
  ModelMaker maker;
  maker.input("x", shape).output("y");
  std::vector<std::string> operands{"x"};
  if (form.length > 0) {
    maker.ints("length", {form.length});
    operands.push_back("length");
  }
  auto& node = maker.node("DFT", operands, {"y"});
  attribute(node, "axis", int64_t{1});
  attribute(node, "inverse", int64_t{form.inverse});
  attribute(node, "onesided", int64_t{form.onesided});
  return maker;
}

using Complex = std::complex<double>;
Complex at(const dag::Tensor& x, int64_t batch, int64_t place) {
  const int64_t parts = x.shape()[2];
  const auto values = to_doubles(x);
  const auto i = static_cast<size_t>((batch * x.shape()[1] + place) * parts);
  return {values[i], parts == 2 ? values[i + 1] : 0};
}
Complex by_definition(const dag::Tensor& x, int64_t batch, int64_t k, int64_t points, bool inverse) {
  Complex sum = 0;
  for (int64_t i = 0; i < std::min(points, x.shape()[1]); ++i)
    sum += at(x, batch, i) * std::polar(1.0, (inverse ? 2 : -2) * std::numbers::pi *
                                                 static_cast<double>(k * i) / static_cast<double>(points));
  return inverse ? sum / static_cast<double>(points) : sum;
}

TEST(Signal, TransformsAreTheSumsThatDefineThem) {
  for (const int64_t parts : {1, 2})
    for (const int64_t length : {0, 4, 7, 12})
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(std::to_string(parts) + " parts, length " + std::to_string(length) +
                     (inverse ? ", inverse" : ""));
        const dag::Tensor x = noise({2, 7, parts}, 1);
        const dag::Tensor y = run(dft_model({2, 7, parts}, {length, inverse, false}), x);
        const int64_t points = length == 0 ? 7 : length;
        ASSERT_EQ(y.shape(), (dag::Shape{2, points, 2}));
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t k = 0; k < points; ++k)
            EXPECT_LT(std::abs(at(y, b, k) - by_definition(x, b, k, points, inverse)), 1e-5);
      }
}

TEST(Signal, HalfASpectrumComesBackAsTheSignal) {
  for (const int64_t size : {8, 9}) {
    const dag::Tensor x = noise({3, size, 1}, 2);
    const dag::Tensor half = run(dft_model({3, size, 1}, {0, false, true}), x);
    ASSERT_EQ(half.shape(), (dag::Shape{3, size / 2 + 1, 2}));
    for (int64_t k = 0; k < half.shape()[1]; ++k)
      EXPECT_LT(std::abs(at(half, 1, k) - by_definition(x, 1, k, size, false)), 1e-5);
    const dag::Tensor back = run(dft_model(half.shape(), {size, true, true}), half);
    ASSERT_EQ(back.shape(), x.shape());
    for (int64_t i = 0; i < size; ++i) EXPECT_LT(std::abs(at(back, 2, i) - at(x, 2, i)), 1e-5);
  }
}

// One frequency that is a whole fraction of a turn: what cancels leaves nothing.
TEST(Signal, AnInverseOfFewFrequenciesHasNoResidue) {
  for (const auto& [places, frequency] :
       {std::pair{int64_t{10}, int64_t{0}}, {10, 5}, {12, 3}, {12, 9}, {8, 4}, {7, 0}}) {
    SCOPED_TRACE(std::to_string(frequency) + " of " + std::to_string(places));
    std::vector<double> spectrum(static_cast<size_t>(2 * places));
    spectrum[static_cast<size_t>(2 * frequency)] = static_cast<double>(places);
    const dag::Shape shape{1, places, 2};
    const auto y = to_doubles(
        run(dft_model(shape, {.inverse = true}), dag::from_doubles({DType::F32, shape}, spectrum)));
    const Complex turns[] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    for (int64_t i = 0; i < places; ++i) {
      const Complex want = turns[4 * frequency * i / places % 4];
      EXPECT_NEAR(y[static_cast<size_t>(2 * i)], want.real(), 1e-6);
      EXPECT_NEAR(y[static_cast<size_t>(2 * i + 1)], want.imag(), 1e-6);
      EXPECT_EQ(y[static_cast<size_t>(2 * i)] == 0, want.real() == 0);
      EXPECT_EQ(y[static_cast<size_t>(2 * i + 1)] == 0, want.imag() == 0);
    }
  }
}

TEST(Signal, FramesAreTransformedWithTheirWindow) {
  ModelMaker maker;
  maker.input("x", {2, 20, 1}).output("y");
  maker.ints("step", {3});
  maker.ints("length", {8}).clear_dims();
  maker.node("HannWindow", {"length"}, {"window"});
  maker.node("STFT", {"x", "step", "window"}, {"y"});
  const dag::Tensor x = noise({2, 20, 1}, 3);
  const dag::Tensor y = run(maker, x);
  ASSERT_EQ(y.shape(), (dag::Shape{2, 5, 5, 2}));
  const auto values = to_doubles(y);
  for (int64_t frame = 0; frame < 5; ++frame)
    for (int64_t k = 0; k < 5; ++k) {
      Complex sum = 0;
      for (int64_t i = 0; i < 8; ++i) {
        const double turn = std::numbers::pi * static_cast<double>(i) / 8;
        sum += at(x, 1, frame * 3 + i) * std::sin(turn) * std::sin(turn) *
               std::polar(1.0, -2 * turn * static_cast<double>(k));
      }
      const auto place = static_cast<size_t>(((5 + frame) * 5 + k) * 2);
      EXPECT_LT(std::abs(Complex(values[place], values[place + 1]) - sum), 1e-5) << frame << " " << k;
    }
}

TEST(Signal, WindowsOfOddSizesHaveNoZeroToDivideBy) {
  for (const char* op : {"HannWindow", "HammingWindow", "BlackmanWindow"})
    for (const int64_t size : {0, 1, 2})
      for (const int64_t periodic : {0, 1}) {
        ModelMaker maker;
        maker.input("x", {1}).output("y");
        maker.ints("size", {size}).clear_dims();
        attribute(maker.node(op, {"size"}, {"w"}), "periodic", periodic);
        maker.node("Identity", {"w"}, {"y"});
        const dag::Tensor y = run(maker, noise({1}, 4));
        ASSERT_EQ(y.shape(), (dag::Shape{size}));
        for (const double value : to_doubles(y)) EXPECT_TRUE(std::isfinite(value)) << op << size;
      }
}

TEST(Signal, WhatTheTablesCannotHoldIsRefusedByName) {
  const auto expect = [](const ModelMaker& maker, ErrorCode code, const std::string& what) {
    const auto imported = import_bytes(maker.bytes());
    ASSERT_FALSE(imported.has_value());
    EXPECT_EQ(imported.error().code, code);
    EXPECT_NE(imported.error().message.find(what), std::string::npos) << imported.error().message;
  };
  expect(dft_model({1, 1 << 20, 1}, {}), ErrorCode::Unsupported, "DFT_1");
  expect(dft_model({1, 8, 1}, {int64_t{1} << 50, false, false}), ErrorCode::InvalidArgument, "DFT_1");
  expect(dft_model({1, 8, 2}, {0, false, true}), ErrorCode::InvalidArgument, "real numbers");
  expect(dft_model({1, 8, 1}, {0, true, true}), ErrorCode::InvalidArgument, "complex numbers");
  expect(dft_model({1, 8, 3}, {}), ErrorCode::InvalidArgument, "neither real nor complex");
  ModelMaker maker;
  maker.input("x", {1, 20, 1}).output("y");
  maker.ints("step", {0});
  maker.node("STFT", {"x", "step"}, {"y"});
  expect(maker, ErrorCode::InvalidArgument, "every 0");
}

}  // namespace
}  // namespace weft::onnx::testing
