// Nodes that draw random numbers: what is drawn, and from what.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "dag/autodiff.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::DType;
using dag::OpKind;

std::vector<double> run(const ModelMaker& maker, const std::map<std::string, dag::Tensor>& inputs = {},
                        const std::string& output = "y") {
  const auto model = import_bytes(maker.bytes());
  if (!model) throw std::runtime_error(model.error().message);
  const auto outputs = run_graph(model->graph, model->weights, inputs);
  if (!outputs) throw std::runtime_error(outputs.error().message);
  return to_doubles(outputs->at(output));
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
double deviation(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += (value - mean(values)) * (value - mean(values));
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(Random, UniformNumbersLieBetweenLowAndHigh) {
  ModelMaker maker;
  maker.output("y");
  auto& node = maker.node("RandomUniform", {}, {"y"});
  attribute(node, "shape", std::vector<int64_t>{100, 100});
  attribute(node, "low", -2.0f);
  attribute(node, "high", 4.0f);
  const auto values = run(maker);
  ASSERT_EQ(values.size(), 10000u);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -2);
  EXPECT_LE(*std::max_element(values.begin(), values.end()), 4);
  EXPECT_NEAR(mean(values), 1, 0.06);  // 3.5 deviations
  EXPECT_NEAR(deviation(values), 6 / std::sqrt(12), 0.03);
}

TEST(Random, NormalNumbersHaveMeanAndScale) {
  ModelMaker maker;
  maker.input("x", {100, 100}).output("y");
  auto& node = maker.node("RandomNormalLike", {"x"}, {"y"});
  attribute(node, "mean", 3.0f);
  attribute(node, "scale", 2.0f);
  const auto values = run(maker, {{"x", dag::Tensor({DType::F32, {100, 100}})}});
  EXPECT_NEAR(mean(values), 3, 0.07);
  EXPECT_NEAR(deviation(values), 2, 0.05);
  const auto beyond =
      std::count_if(values.begin(), values.end(), [](double v) { return std::abs(v - 3) > 4; });
  EXPECT_NEAR(static_cast<double>(beyond), 455, 80);  // 4.55 % beyond two deviations
}

TEST(Random, EveryNodeDrawsItsOwnAndNothingIsFolded) {
  ModelMaker maker;
  maker.output("a").output("b");
  for (const char* name : {"a", "b"})
    attribute(maker.node("RandomUniform", {}, {name}), "shape", std::vector<int64_t>{50});
  const auto model = import_bytes(maker.bytes());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(count_kind(model->graph, OpKind::RandomUniform), 2);
  EXPECT_NE(run(maker, {}, "a"), run(maker, {}, "b"));
  EXPECT_EQ(run(maker, {}, "a"), run(maker, {}, "a"));
}

TEST(Random, BernoulliIsOneAsOftenAsItSays) {
  ModelMaker maker;
  maker.input("x", {3, 4000}).output("y", pb::TensorProto::BOOL);
  attribute(maker.node("Bernoulli", {"x"}, {"y"}), "dtype", int64_t{pb::TensorProto::BOOL});
  std::vector<float> p(12000, 0.0f);
  std::fill(p.begin() + 4000, p.begin() + 8000, 0.3f);
  std::fill(p.begin() + 8000, p.end(), 1.0f);
  const auto values = run(maker, {{"x", dag::make_tensor({3, 4000}, std::span<const float>(p))}});
  const auto part = [&](int64_t row) {
    return mean({values.begin() + 4000 * row, values.begin() + 4000 * (row + 1)});
  };
  EXPECT_EQ(part(0), 0);
  EXPECT_NEAR(part(1), 0.3, 0.03);
  EXPECT_EQ(part(2), 1);
}

TEST(Random, MultinomialDrawsClassesAsTheirLogarithmsSay) {
  ModelMaker maker;
  maker.input("x", {2, 3}).output("y", pb::TensorProto::INT64);
  auto& node = maker.node("Multinomial", {"x"}, {"y"});
  attribute(node, "dtype", int64_t{pb::TensorProto::INT64});
  attribute(node, "sample_size", int64_t{3000});
  const std::vector<float> x{std::log(0.5f), std::log(0.2f), std::log(0.3f), -1e9f, 0, -1e9f};
  const auto values = run(maker, {{"x", dag::make_tensor({2, 3}, std::span(x))}});
  ASSERT_EQ(values.size(), 6000u);
  const auto share = [&](double which) {
    return static_cast<double>(std::count(values.begin(), values.begin() + 3000, which)) / 3000;
  };
  EXPECT_NEAR(share(0), 0.5, 0.035);
  EXPECT_NEAR(share(1), 0.2, 0.03);
  EXPECT_EQ(std::count(values.begin() + 3000, values.end(), 1.0), 3000);
}

TEST(Random, TheMaskOfADropoutIsWhatItKeeps) {
  ModelMaker maker(17);
  maker.input("x", {2, 500}).output("y").output("mask", pb::TensorProto::BOOL);
  maker.weight("ratio", {}, 0.4f);
  auto& train = *maker.graph().add_initializer();
  train.set_name("train");
  train.set_data_type(pb::TensorProto::BOOL);
  train.add_int32_data(1);
  maker.node("Dropout", {"x", "ratio", "train"}, {"y", "mask"});
  std::vector<float> ones(1000, 1.0f);
  const std::map<std::string, dag::Tensor> inputs{
      {"x", dag::make_tensor({2, 500}, std::span<const float>(ones))}};
  const auto y = run(maker, inputs), mask = run(maker, inputs, "mask");
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i] != 0, mask[i] != 0) << i;
  EXPECT_NEAR(mean(mask), 0.6, 0.06);
}

TEST(Random, WhatCannotBeDrawnIsRefusedByName) {
  ModelMaker maker;
  maker.input("x", {4}, pb::TensorProto::INT64).output("y", pb::TensorProto::INT64);
  maker.node("RandomUniformLike", {"x"}, {"y"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(imported.error().message.find("RandomUniformLike_1"), std::string::npos)
      << imported.error().message;

  ModelMaker endless;
  endless.output("y");
  attribute(endless.node("RandomNormal", {}, {"y"}), "shape", std::vector<int64_t>{1 << 20, 1 << 20});
  EXPECT_FALSE(import_bytes(endless.bytes()).has_value());
  ModelMaker negative;
  negative.output("y");
  attribute(negative.node("RandomNormal", {}, {"y"}), "shape", std::vector<int64_t>{-1});
  EXPECT_FALSE(import_bytes(negative.bytes()).has_value());
}

}  // namespace
}  // namespace weft::onnx::testing
