// Pools of rarer forms, against numbers that PyTorch 1.13 gives (in double) and that ONNX's operator
// documentation prints.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/onnx/numbers.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;

Tensor run_pool(const std::string& op, const Tensor& x, const Setting& settings) {
  ModelMaker maker;
  maker.input("x", x.shape()).output("y");
  settings(maker.node(op, {"x"}, {"y"}));
  return run(maker, {{"x", x}});
}
// Kernel, strides and pads of one dim, and more.
Setting window(int64_t kernel, int64_t stride, int64_t pad, const std::string& name = {}, int64_t value = 0) {
  return [=](pb::NodeProto& node) {
    attribute(node, "kernel_shape", std::vector<int64_t>{kernel});
    attribute(node, "strides", std::vector<int64_t>{stride});
    attribute(node, "pads", std::vector<int64_t>{pad, pad});
    if (name == "dilations")
      attribute(node, name, std::vector<int64_t>{value});
    else if (!name.empty())
      attribute(node, name, value);
  };
}

TEST(LpPool, GivesTheNumbersOfPyTorch) {
  const auto square = [](int64_t stride, int64_t p) {
    return [=](pb::NodeProto& node) {
      attribute(node, "kernel_shape", std::vector<int64_t>{2, 2});
      attribute(node, "strides", std::vector<int64_t>{stride, stride});
      attribute(node, "p", p);
    };
  };
  const Tensor x = mixed({1, 1, 4, 4});
  expect_near(run_pool("LpPool", x, square(2, 2)), {1, 1, 2, 2}, {6.244998, 6.708204, 5.744563, 7.211103});
  expect_near(run_pool("LpPool", x, square(1, 3)), {1, 1, 3, 3},
              {5.440122, 4.747459, 5.818648, 4.918685, 4.918685, 5.748897, 4.747459, 5.440122, 6.31636});
  expect_near(run_pool("LpPool", mixed({1, 1, 7}), window(3, 2, 0)), {1, 1, 3},
              {5.744563, 5.477226, 5.09902});
  expect_near(run_pool("GlobalLpPool", counting({1, 2, 2}), [](pb::NodeProto&) {}), {1, 2, 1},
              {std::sqrt(5.0), 5});
}

TEST(LpPool, CountsWholeWindows) {
  const auto with_p = [](const Setting& setting) { return also(setting, "p", 1); };
  const Tensor x = counting({1, 1, 5});
  expect_near(run_pool("LpPool", x, with_p(window(2, 2, 0, "ceil_mode", 1))), {1, 1, 3}, {3, 7, 5});
  expect_near(run_pool("LpPool", x, with_p(window(3, 2, 1))), {1, 1, 3}, {3, 9, 9});
  expect_near(run_pool("LpPool", x, with_p(window(2, 1, 0, "dilations", 2))), {1, 1, 3}, {4, 6, 8});
}

TEST(AveragePool, OfWindowsWithGaps) {
  const Tensor x = counting({1, 1, 5});
  const Setting gaps = window(2, 1, 1, "dilations", 2);
  expect_near(run_pool("AveragePool", x, gaps), {1, 1, 5}, {2, 2, 3, 4, 4});
  expect_near(run_pool("AveragePool", x, also(gaps, "count_include_pad", 1)), {1, 1, 5}, {1, 2, 3, 4, 2});
}

TEST(MaxPool, IndicesCountFromTheFirstDimWhenAsked) {
  ModelMaker maker;
  maker.input("x", {1, 1, 2, 2, 2}).output("y", pb::TensorProto::INT64);
  auto& node = maker.node("MaxPool", {"x"}, {"largest", "y"});
  attribute(node, "kernel_shape", std::vector<int64_t>{1, 1, 1});
  attribute(node, "storage_order", int64_t{1});
  expect_near(run(maker, {{"x", counting({1, 1, 2, 2, 2})}}), {1, 1, 2, 2, 2}, {0, 4, 2, 6, 1, 5, 3, 7});
}

TEST(MaxUnpool, PutsOverlappingWindowsBack) {
  ModelMaker maker;
  maker.input("x", {1, 2, 2, 3}).output("y");
  pb::TensorProto& indices = maker.ints("indices", {6, 3, 3, 17, 17, 14, 25, 28, 28, 36, 36, 39});
  indices.clear_dims();
  for (const int64_t dim : {1, 2, 2, 3}) indices.add_dims(dim);
  auto& node = maker.node("MaxUnpool", {"x", "indices"}, {"y"});
  attribute(node, "kernel_shape", std::vector<int64_t>{2, 3});
  attribute(node, "strides", std::vector<int64_t>{2, 1});
  const Tensor x =
      dag::from_doubles({dag::DType::F32, {1, 2, 2, 3}}, Numbers{4, 5, 5, 4, 4, 5, 5, 4, 4, 5, 5, 4});
  expect_near(run(maker, {{"x", x}}), {1, 2, 4, 5},
              {0, 0, 0, 5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 4, 0, 0,
               0, 0, 0, 0, 0, 5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 4});
}

}  // namespace
}  // namespace weft::onnx::testing
