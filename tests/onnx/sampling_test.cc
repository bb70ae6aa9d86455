// Operators that read between pixels, against numbers that PyTorch 1.13 gives (in double) and that ONNX's
// operator documentation prints.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/onnx/numbers.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;

// (i * factor) mod modulus, moved and scaled: as the expected numbers' operands were.
Tensor spread(const Shape& shape, int64_t factor, int64_t modulus, int64_t minus, double by) {
  Numbers values;
  for (int64_t i = 0; i < count_of(shape); ++i)
    values.push_back(static_cast<double>(i * factor % modulus - minus) / by);
  return dag::from_doubles({dag::DType::F32, shape}, values);
}
Tensor points(const Shape& shape) { return spread(shape, 5, 13, 6, 4.7); }

ModelMaker grid_model(const Shape& x, const Shape& grid, const std::string& mode, const std::string& padding,
                      int64_t corners) {
  ModelMaker maker;
  maker.input("x", x).input("grid", grid).output("y");
  auto& node = maker.node("GridSample", {"x", "grid"}, {"y"});
  attribute(node, "mode", mode);
  attribute(node, "padding_mode", padding);
  attribute(node, "align_corners", corners);
  return maker;
}

TEST(GridSample, GivesTheNumbersOfPyTorch) {
  struct Case {
    const char *mode, *padding;
    int64_t corners;
    Numbers expected;
  };
  const Case cases[] = {
      {"bilinear", "zeros", 0, {0, 2.885921, -0.05975558, 0.4515616, 0.3723404, 1.782481}},
      {"linear", "zeros", 1, {-0.161838, 3.057492, -0.2000906, 0.411951, 0.9042553, 2.885921}},
      {"bilinear", "border", 0, {-0.9148937, 5, -0.7021277, 0.4515616, 1, 4.787234}},
      {"bilinear", "border", 1, {-0.2765958, 3.057492, -0.2765958, 0.411951, 1, 3.191489}},
      {"bilinear", "reflection", 0, {-0.9409235, 5, -0.7021277, 0.4515616, 1, 4.787234}},
      {"bilinear", "reflection", 1, {-0.9651425, 3.057492, 0.5561339, 0.411951, 0.6170213, 2.902218}},
      {"nearest", "zeros", 0, {0, 5, 0, 3, 0, 0}},
      {"nearest", "zeros", 1, {1, 5, -1, 3, 1, 5}},
      {"nearest", "border", 0, {1, 5, -1, 3, 1, 5}},
      {"nearest", "reflection", 1, {1, 5, -1, 3, 1, 5}},
      {"bicubic", "zeros", 0, {0.01796235, 4.129801, -0.05877549, 0.7795194, 0.6184745, 2.228677}},
      {"cubic", "zeros", 1, {0.4370332, 4.019608, -0.2314671, 0.5281387, 1.15662, 4.046519}},
      {"bicubic", "border", 0, {-0.2422103, 6.333583, -0.5638394, 0.9837161, 1.261051, 5.27331}},
      {"bicubic", "border", 1, {0.6830752, 3.248136, -0.1975106, 0.2817333, 1.234865, 3.772175}},
      {"bicubic", "reflection", 0, {-0.332886, 6.796683, -0.7935678, 0.9837161, 1.701109, 6.003192}},
      {"bicubic", "reflection", 1, {-1.040153, 4.105802, 0.787496, 0.8505527, 0.878366, 4.046416}},
  };
  const Shape x{1, 1, 3, 4}, grid{1, 2, 3, 2};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.mode) + " " + c.padding + (c.corners ? " corners" : ""));
    ModelMaker maker = grid_model(x, grid, c.mode, c.padding, c.corners);
    expect_near(run(maker, {{"x", mixed(x)}, {"grid", points(grid)}}), {1, 1, 2, 3}, c.expected);
  }
}

TEST(GridSample, OfThreeDims) {
  const Shape x{1, 1, 2, 3, 4}, grid{1, 1, 2, 2, 3};
  for (const auto& [mode, expected] : {std::pair{"linear", Numbers{-1.218651, -1.085106, 0.4515616, 1}},
                                       {"nearest", Numbers{-3, -3, 3, -1}}}) {
    ModelMaker maker = grid_model(x, grid, mode, "reflection", 0);
    expect_near(run(maker, {{"x", mixed(x)}, {"grid", points(grid)}}), {1, 1, 1, 2, 2}, expected);
  }
  ModelMaker maker = grid_model(x, grid, "cubic", "zeros", 0);
  EXPECT_FALSE(import_as_it_is(maker).has_value());
}

// Places half-way between elements, beyond the edges and at the corners: ONNX Runtime 1.30's numbers. PyTorch
// rounds otherwise in three dims.
TEST(GridSample, NearestIsTheEvenElementOfTwo) {
  constexpr double kPoints[] = {-1, -0.75, -0.5, -0.25, 0, 0.2, 0.25, 0.5, 0.6, 0.75, 1, 1.25};
  struct Case {
    size_t dims;
    const char* padding;
    int64_t corners;
    Numbers expected;
  };
  const Case cases[] = {
      {2, "zeros", 0, {4, -1, 0, 5, 0, 2, -1, 0, 5, -3, -2, 0}},
      {2, "zeros", 1, {4, 1, -3, 5, -5, -2, -1, 0, 5, 1, -2, -5}},
      {2, "border", 0, {4, -1, -3, 5, -5, 2, -1, -3, 5, -3, -2, -5}},
      {2, "border", 1, {4, 1, -3, 5, -5, -2, -1, -5, 5, 1, -2, -5}},
      {2, "reflection", 0, {4, -1, -3, 5, -5, 2, -1, -3, 5, -3, -2, -5}},
      {2, "reflection", 1, {4, 1, -3, 5, -5, -2, -1, -1, 5, 1, -2, -5}},
      {3, "zeros", 0, {-3, 0, 0, 4, 0, -3, -1, 0, 0, 5, -3, -1}},
      {3, "zeros", 1, {-3, -5, 5, 4, -1, -3, -1, 1, -5, 5, 4, -1}},
      {3, "border", 0, {-3, -5, 5, 4, -5, -3, -1, 1, -5, 5, -3, -1}},
      {3, "border", 1, {-3, -5, 5, 4, -1, -3, -1, 1, -5, 5, 4, -1}},
      {3, "reflection", 0, {-3, -5, 5, 4, -5, -3, -1, 1, -5, 5, -3, -1}},
      {3, "reflection", 1, {-3, -5, 5, 4, -1, -3, -1, 1, -5, 5, 4, -1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.dims) + " dims " + c.padding + (c.corners ? " corners" : ""));
    const bool flat = c.dims == 2;
    const Shape x = flat ? Shape{1, 1, 4, 6} : Shape{1, 1, 2, 3, 4};
    const Shape grid = flat ? Shape{1, 1, 12, 2} : Shape{1, 1, 1, 12, 3};
    Numbers at;
    for (size_t i = 0; i < 12; ++i)
      for (size_t d = 0; d < c.dims; ++d) at.push_back(kPoints[(5 * i + 3 * d) % 12]);
    ModelMaker maker = grid_model(x, grid, "nearest", c.padding, c.corners);
    const Tensor places = dag::from_doubles({dag::DType::F32, grid}, at);
    expect_near(run(maker, {{"x", mixed(x)}, {"grid", places}}),
                flat ? Shape{1, 1, 1, 12} : Shape{1, 1, 1, 1, 12}, c.expected);
  }
}

TEST(GridSample, RefusesAGridOfOtherDims) {
  for (const Shape& grid : {Shape{1, 2, 3, 3}, {2, 2, 3, 2}, {1, 2, 2}, {1, 1, 2, 3, 2}}) {
    ModelMaker maker = grid_model({1, 1, 3, 4}, grid, "linear", "zeros", 0);
    EXPECT_FALSE(import_as_it_is(maker).has_value());
  }
  ModelMaker maker = grid_model({1, 1, 3, 4}, {1, 2, 3, 2}, "linear", "mirror", 0);
  EXPECT_FALSE(import_as_it_is(maker).has_value());
}

TEST(AffineGrid, GivesTheNumbersOfPyTorch) {
  for (const auto& [corners, expected] :
       {std::pair{int64_t{0}, Numbers{-0.6, -0.55, 0, -0.75, 0.6, -0.95, -0.4, 0.55, 0.2, 0.35, 0.8, 0.15}},
        {int64_t{1}, Numbers{-1, -1, -0.1, -1.3, 0.8, -1.6, -0.6, 1.2, 0.3, 0.9, 1.2, 0.6}}}) {
    ModelMaker maker;
    maker.input("x", {1, 2, 3}).output("y");
    maker.ints("size", {1, 1, 2, 3});
    attribute(maker.node("AffineGrid", {"x", "size"}, {"y"}), "align_corners", corners);
    const Tensor theta =
        dag::from_doubles({dag::DType::F32, {1, 2, 3}}, Numbers{0.9, 0.2, 0.1, -0.3, 1.1, -0.2});
    expect_near(run(maker, {{"x", theta}}), {1, 2, 3, 2}, expected);
  }
}

TEST(RoiAlign, GivesTheNumbersOfTorchvision) {
  struct Case {
    const char* coordinates;
    int64_t ratio;
    Numbers expected;
  };
  const Case cases[] = {
      {"half_pixel",
       2,
       {-0.584984, 0.8232891, -0.6101523, -0.1892109, 0.5831652, -0.3534781, -0.3217109, 0.03469141, 0.00435,
        -0.363425, -0.462025, -0.445625, -0.502775, 0.51435, 1.267562, 0.047975}},
      {"half_pixel",
       0,
       {-0.6954094, 0.8493969, -0.7630151, -0.1687177, 0.6184641, -0.4392609, -0.3012177, -0.1265359,
        0.0008666667, -0.5386, -0.2250667, -0.535, -0.5828, 0.5072, 1.248267, -0.0843}},
      {"output_half_pixel",
       2,
       {-0.5182852, 0.4282543, -1.272259, 0.3107891, 1.199211, -0.220457, 0.1867109, -0.9744313, 0.322025,
        -1.347738, 0.037975, -0.3830812, -0.380625, 0.6847625, 0.9013125, 0.3598062}},
      {"output_half_pixel",
       0,
       {-0.6092958, 0.4867562, -1.055726, 0.2975948, 1.075129, -0.38165, 0.1999052, -0.7842859, 0.3457667,
        -1.1716, 0.01423333, -0.1580167, -0.3812667, 0.3017333, 0.9452667, 0.3416333}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.coordinates) + " " + std::to_string(c.ratio));
    ModelMaker maker;
    maker.input("x", {1, 2, 6, 7}).output("y");
    pb::TensorProto& rois = floats(maker, "rois", {0.3, 0.6, 4.2, 5.1, 1.1, 0.4, 6.3, 3.2});
    rois.clear_dims();
    rois.add_dims(2);
    rois.add_dims(4);
    maker.ints("images", {0, 0});
    auto& node = maker.node("RoiAlign", {"x", "rois", "images"}, {"y"});
    attribute(node, "coordinate_transformation_mode", std::string(c.coordinates));
    attribute(node, "output_height", int64_t{2});
    attribute(node, "output_width", int64_t{2});
    attribute(node, "sampling_ratio", c.ratio);
    attribute(node, "spatial_scale", 0.9f);
    expect_near(run(maker, {{"x", mixed({1, 2, 6, 7})}}), {2, 2, 2, 2}, c.expected);
  }
}

TEST(DeformConv, GivesTheNumbersOfTorchvision) {
  const Shape x{1, 4, 5, 4};
  ModelMaker maker;
  maker.input("x", x).input("w", {2, 2, 2, 2}).input("offset", {1, 16, 4, 3}).input("mask", {1, 8, 4, 3});
  maker.output("y");
  floats(maker, "b", {0.5, -1});
  auto& node = maker.node("DeformConv", {"x", "w", "offset", "b", "mask"}, {"y"});
  attribute(node, "group", int64_t{2});
  attribute(node, "offset_group", int64_t{2});
  expect_near(run(maker, {{"x", mixed(x)},
                          {"w", spread({2, 2, 2, 2}, 7, 11, 5, 4)},
                          {"offset", spread({1, 16, 4, 3}, 5, 13, 6, 7.3)},
                          {"mask", spread({1, 8, 4, 3}, 3, 7, 0, 6)}}),
              {1, 2, 4, 3},
              {0.05344968, 6.172883,  -0.2544098, 2.209326, 2.724034,   -1.102138, 1.281197,  -0.2979374,
               -3.869542,  0.5556702, 0.09040158, 1.878284, 2.11991,    -1.452399, -2.421788, 1.022542,
               -1.432062,  -2.462071, 0.03290173, 3.808047, -0.6321386, -3.07327,  -2.874249, -2.018437});
  ModelMaker strided;
  strided.input("x", x).input("w", {2, 4, 2, 2}).input("offset", {1, 8, 3, 3}).output("y");
  auto& other = strided.node("DeformConv", {"x", "w", "offset"}, {"y"});
  attribute(other, "strides", std::vector<int64_t>{2, 2});
  attribute(other, "pads", std::vector<int64_t>{1, 1, 1, 1});
  expect_near(run(strided, {{"x", mixed(x)},
                            {"w", spread({2, 4, 2, 2}, 7, 11, 5, 4)},
                            {"offset", spread({1, 8, 3, 3}, 5, 13, 6, 7.3)}}),
              {1, 2, 3, 3},
              {-1.506474, -1.00821, -3.083552, 3.155845, 3.059814, 1.58435, 4.76961, -0.2144868, 4.416776,
               -1.655892, -1.283261, -2.188262, -1.112122, 10.2348, 3.430475, 2.050009, 2.570088, 2.631263});
}

TEST(Col2Im, GivesTheNumbersOfPyTorchsFold) {
  ModelMaker maker;
  maker.input("x", {1, 8, 6}).output("y");
  maker.ints("image", {4, 4});
  maker.ints("block", {2, 2});
  attribute(maker.node("Col2Im", {"x", "image", "block"}, {"y"}), "strides", std::vector<int64_t>{1, 2});
  expect_near(run(maker, {{"x", mixed({1, 8, 6})}}), {1, 2, 4, 4},
              {-5, 4,  2, 0, 0, -4, 3,  -1, 6, 2,  -2, -6, -3, -5, 4,  2,
               -2, -4, 5, 3, 6, 2,  -2, -6, 1, -3, 4,  0,  0,  -2, -4, 5});
  ModelMaker wrong;
  wrong.input("x", {1, 8, 7}).output("y");
  wrong.ints("image", {4, 4});
  wrong.ints("block", {2, 2});
  wrong.node("Col2Im", {"x", "image", "block"}, {"y"});
  EXPECT_FALSE(import_as_it_is(wrong).has_value());
}

TEST(CenterCropPad, TakesTheOddOneAtTheEnd) {
  const auto model = [](std::vector<int64_t> shape, std::vector<int64_t> axes) {
    ModelMaker maker;
    maker.input("x", {3, 4}).output("y");
    maker.ints("shape", shape);
    attribute(maker.node("CenterCropPad", {"x", "shape"}, {"y"}), "axes", axes);
    return maker;
  };
  ModelMaker both = model({1, 7}, {0, 1}), last = model({1}, {-1}), twice = model({1, 1}, {0, 0});
  expect_near(run(both, {{"x", counting({3, 4})}}), {1, 7}, {0, 5, 6, 7, 8, 0, 0});
  expect_near(run(last, {{"x", counting({3, 4})}}), {3, 1}, {2, 6, 10});
  EXPECT_FALSE(import_as_it_is(twice).has_value());
}

TEST(Det, OfEachMatrix) {
  ModelMaker maker;
  maker.input("x", {2, 2, 2}).output("y");
  maker.node("Det", {"x"}, {"y"});
  const Tensor x = dag::from_doubles({dag::DType::F32, {2, 2, 2}}, Numbers{1, 2, 3, 4, 2, 0, 1, 3});
  expect_near(run(maker, {{"x", x}}), {2}, {-2, 6});
}

}  // namespace
}  // namespace weft::onnx::testing
