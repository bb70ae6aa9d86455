// Operators that read between pixels, and pools of rarer forms: against numbers that PyTorch 1.13 gives (in
// double) and that ONNX's operator documentation prints.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using Numbers = std::vector<double>;
using Setting = std::function<void(pb::NodeProto&)>;

int64_t count_of(const Shape& shape) { return dag::TensorSpec{dag::DType::F32, shape}.element_count(); }

// -5, 2, -2, 5, 1, ...: what the expected numbers below were made from.
Tensor mixed(const Shape& shape) {
  Numbers values;
  for (int64_t i = 0; i < count_of(shape); ++i) values.push_back(static_cast<double>(i * 7 % 11 - 5));
  return dag::from_doubles({dag::DType::F32, shape}, values);
}
// 1, 2, 3, ...
Tensor counting(const Shape& shape) {
  Numbers values(static_cast<size_t>(count_of(shape)));
  std::iota(values.begin(), values.end(), 1);
  return dag::from_doubles({dag::DType::F32, shape}, values);
}

pb::TensorProto& floats(ModelMaker& maker, const std::string& name, const Numbers& values) {
  pb::TensorProto& tensor = maker.weight(name, {static_cast<int64_t>(values.size())});
  tensor.clear_float_data();
  tensor.clear_raw_data();
  for (const double value : values) tensor.add_float_data(static_cast<float>(value));
  return tensor;
}

Result<ImportedModel> import_as_it_is(ModelMaker& maker) {
  ImportOptions options = training_options();
  options.training = false;
  return import_bytes(maker.bytes(), options);
}

// The value of the model's output y for an input x.
Tensor run(ModelMaker& maker, const std::map<std::string, Tensor>& inputs) {
  auto model = import_as_it_is(maker);
  if (!model) {
    ADD_FAILURE() << model.error().message;
    return {};
  }
  auto values = run_graph(model->graph, model->weights, inputs);
  if (!values) {
    ADD_FAILURE() << values.error().message;
    return {};
  }
  return values->at("y");
}

void expect_near(const Tensor& y, const Shape& shape, const Numbers& expected) {
  ASSERT_EQ(y.shape(), shape);
  const auto values = to_doubles(y);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], 4e-6 * (1 + std::abs(expected[i]))) << "element " << i;
}

// ---- Resize ----

struct ResizeCase {
  const char* name;
  Tensor x;
  Numbers scales;
  std::vector<int64_t> sizes;
  Setting settings;
  Shape shape;
  Numbers expected;
};

ModelMaker resize_model(const ResizeCase& c) {
  ModelMaker maker;
  maker.input("x", c.x.shape()).output("y");
  if (c.sizes.empty()) {
    floats(maker, "scales", c.scales);
    c.settings(maker.node("Resize", {"x", "", "scales"}, {"y"}));
  } else {
    maker.ints("sizes", c.sizes);
    c.settings(maker.node("Resize", {"x", "", "", "sizes"}, {"y"}));
  }
  return maker;
}

Setting mode(std::string name, std::string coordinates, std::string nearest = "floor") {
  return [=](pb::NodeProto& node) {
    attribute(node, "mode", name);
    attribute(node, "coordinate_transformation_mode", coordinates);
    if (name == "nearest") attribute(node, "nearest_mode", nearest);
  };
}
Setting also(Setting setting, const std::string& name, int64_t value) {
  return [=](pb::NodeProto& node) {
    setting(node);
    attribute(node, name, value);
  };
}
Setting over(Setting setting, std::vector<int64_t> axes, const std::string& policy = "stretch") {
  return [=](pb::NodeProto& node) {
    setting(node);
    attribute(node, "axes", axes);
    attribute(node, "keep_aspect_ratio_policy", policy);
  };
}

std::vector<ResizeCase> resize_cases() {
  const Setting halves = mode("linear", "half_pixel"), cubic = mode("cubic", "half_pixel");
  const Setting nearest = mode("nearest", "half_pixel", "round_prefer_floor");
  const Setting sharp = [=](pb::NodeProto& node) {
    also(also(cubic, "antialias", 1), "exclude_outside", 1)(node);
    attribute(node, "cubic_coeff_a", -0.5f);
  };
  const Shape small{1, 1, 3, 4}, tall{1, 1, 5, 6}, square{1, 1, 4, 4};
  return {
      // PyTorch's interpolate.
      {"bilinear",
       mixed(small),
       {},
       {1, 1, 5, 3},
       halves,
       {1, 1, 5, 3},
       {-3.833333, 0, 3.833333, -2.166667, 0.2, 2.566667, 0.3333333, 0.5, 0.6666667, -1.566667, 0.8,
        -2.333333, -2.833333, 1, -4.333333}},
      {"bilinear corners",
       mixed(small),
       {},
       {1, 1, 2, 6},
       mode("linear", "align_corners"),
       {1, 1, 2, 6},
       {-5, -0.8, 1.2, -1.2, 0.8, 5, -4, 0.2, 2.2, -0.2, -2.6, -5}},
      {"linear 1d",
       mixed({1, 2, 5}),
       {},
       {1, 2, 8},
       halves,
       {1, 2, 8},
       {-5, -1.9375, 1.75, -0.75, 0.1875, 4.5625, 2.75, 1, -3, 0.0625, 3.75, 1.25, -1.25, -3.75, -0.0625, 3}},
      {"trilinear",
       mixed({1, 1, 2, 2, 3}),
       {},
       {1, 1, 3, 2, 4},
       halves,
       {1, 1, 3, 2, 4},
       {-5, -0.625, 0.5,  -2, 5, 2.5, -0.5, -3, -0.5, 0.4375, -0.5, -3,
        4,  1.5,    -1.5, -4, 4, 1.5, -1.5, -4, 3,    0.5,    -2.5, -5}},
      {"bicubic",
       mixed(small),
       {},
       {1, 1, 4, 3},
       cubic,
       {1, 1, 4, 3},
       {-4.229567, -0.03588867, 4.15779, -0.8651117, 0.1515961, 2.429951, -0.3948969, 1.10672, -1.529867,
        -3.15779, 2.141159, -4.867965}},
      {"bicubic corners",
       mixed(small),
       {},
       {1, 1, 2, 6},
       mode("cubic", "align_corners"),
       {1, 1, 2, 6},
       {-5, -0.284, 1.8, -1.8, 0.284, 5, -4, 0.716, 3.064, 0.256, -2.984, -5}},
      {"nearest",
       mixed(small),
       {},
       {1, 1, 5, 3},
       mode("nearest", "asymmetric", "floor"),
       {1, 1, 5, 3},
       {-5, 2, -2, -5, 2, -2, 1, -3, 4, 1, -3, 4, -4, 3, -1}},
      {"nearest exact",
       mixed(small),
       {},
       {1, 1, 5, 3},
       mode("nearest", "half_pixel", "round_prefer_ceil"),
       {1, 1, 5, 3},
       {-5, -2, 5, -5, -2, 5, 1, 4, 0, -4, -1, -5, -4, -1, -5}},
      {"bilinear antialiased",
       mixed(tall),
       {},
       {1, 1, 2, 4},
       also(also(halves, "antialias", 1), "exclude_outside", 1),
       {1, 1, 2, 4},
       {0.3125, -0.2222222, 1.222222, -1.625, -0.1875, 1.111111, -0.7777778, 0.375}},
      {"bicubic antialiased",
       mixed(tall),
       {},
       {1, 1, 2, 4},
       sharp,
       {1, 1, 2, 4},
       {0.3023304, -0.3931507, 1.631306, -1.918359, -0.2466916, 1.469415, -1.152528, 0.5908198}},
      // ONNX's documentation.
      {"linear antialiased, edges repeated",
       counting(square),
       {1, 1, 0.6, 0.6},
       {},
       also(halves, "antialias", 1),
       {1, 1, 2, 2},
       {2.875, 4.5, 9.375, 11}},
      {"cubic antialiased, edges repeated",
       counting(square),
       {1, 1, 0.6, 0.6},
       {},
       also(cubic, "antialias", 1),
       {1, 1, 2, 2},
       {2.5180721, 4.2858863, 9.589329, 11.357142}},
      {"linear antialiased to sizes",
       counting(square),
       {},
       {1, 1, 3, 3},
       also(halves, "antialias", 1),
       {1, 1, 3, 3},
       {2.3636363, 3.590909, 4.818182, 7.2727275, 8.5, 9.727273, 12.181818, 13.409091, 14.636364}},
      {"cubic antialiased to sizes",
       counting(square),
       {},
       {1, 1, 3, 3},
       also(cubic, "antialias", 1),
       {1, 1, 3, 3},
       {1.7750092, 3.1200073, 4.4650054, 7.1550016, 8.5, 9.844998, 12.534994, 13.8799925, 15.224991}},
      {"not larger",
       counting({1, 1, 2, 2}),
       {},
       {7, 8},
       over(nearest, {2, 3}, "not_larger"),
       {1, 1, 7, 7},
       {1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1,
        2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 3, 3, 3, 3, 4, 4, 4, 3, 3, 3, 3, 4, 4, 4}},
      {"not larger, shrunk",
       counting({1, 1, 2, 4}),
       {},
       {1, 3},
       over(nearest, {2, 3}, "not_larger"),
       {1, 1, 1, 2},
       {1, 3}},
      {"not smaller, shrunk",
       counting({1, 1, 2, 4}),
       {},
       {1, 3},
       over(nearest, {-2, -1}, "not_smaller"),
       {1, 1, 2, 3},
       {1, 2, 4, 5, 6, 8}},
      {"half_pixel_symmetric",
       counting({1, 1, 2, 2}),
       {1, 1, 2.3, 2.94},
       {},
       mode("linear", "half_pixel_symmetric"),
       {1, 1, 4, 5},
       {1,          1.15986395, 1.5,        1.84013605, 2,          1.56521738, 1.72508133,
        2.06521738, 2.40535343, 2.56521738, 2.43478262, 2.59464657, 2.93478262, 3.27491867,
        3.43478262, 3,          3.15986395, 3.5,        3.84013605, 4}},
      {"half_pixel_symmetric, shrunk",
       counting({1, 1, 1, 4}),
       {1, 1, 1, 0.6},
       {},
       mode("linear", "half_pixel_symmetric"),
       {1, 1, 1, 2},
       {1.6666667, 3.3333333}},
  };
}

TEST(Resize, GivesTheNumbersOfPyTorchAndOnnx) {
  for (const ResizeCase& c : resize_cases()) {
    SCOPED_TRACE(c.name);
    ModelMaker maker = resize_model(c);
    expect_near(run(maker, {{"x", c.x}}), c.shape, c.expected);
  }
}

TEST(Resize, OfARegionExtrapolates) {
  for (const bool swapped : {false, true}) {
    ModelMaker maker;
    maker.input("x", {1, 1, 4, 4}).output("y");
    floats(maker, "roi", swapped ? Numbers{0.6, 0.4, 0.8, 0.6} : Numbers{0.4, 0.6, 0.6, 0.8});
    maker.ints("sizes", {3, 3});
    auto& node = maker.node("Resize", {"x", "roi", "", "sizes"}, {"y"});
    over(mode("linear", "tf_crop_and_resize"),
         swapped ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{2, 3})(node);
    expect_near(run(maker, {{"x", counting({1, 1, 4, 4})}}), {1, 1, 3, 3},
                {7.6, 7.9, 8.2, 8.8, 9.1, 9.4, 10, 10.3, 10.6});
  }
  ModelMaker maker;
  maker.input("x", {1, 1, 4, 4}).output("y");
  floats(maker, "roi", {0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7});
  maker.ints("sizes", {1, 1, 3, 3});
  auto& node = maker.node("Resize", {"x", "roi", "", "sizes"}, {"y"});
  mode("linear", "tf_crop_and_resize")(node);
  attribute(node, "extrapolation_value", 10.0f);
  expect_near(run(maker, {{"x", counting({1, 1, 4, 4})}}), {1, 1, 3, 3},
              {7.6, 10, 10, 12.4, 10, 10, 10, 10, 10});
}

TEST(Resize, OfEqualSizeIsNothing) {
  ModelMaker maker =
      resize_model({"", mixed({1, 2, 3, 4}), {1, 1, 1, 1}, {}, mode("linear", "half_pixel"), {}, {}});
  const auto model = import_as_it_is(maker);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(count_kind(model->graph, OpKind::Resample), 0);
}

TEST(Resize, RefusesWhatHasNoMeaning) {
  const Tensor x = mixed({1, 1, 3, 4});
  const Setting linear = mode("linear", "half_pixel");
  const ResizeCase bad[] = {{"no size", x, {}, {1, 1, 0, 3}, linear, {}, {}},
                            {"huge", x, {}, {1, 1, int64_t{1} << 60, 3}, linear, {}, {}},
                            {"large", x, {}, {1, 1, int64_t{1} << 30, 3}, linear, {}, {}},
                            {"too few", x, {2, 2}, {}, linear, {}, {}},
                            {"negative", x, {1, 1, -2, 1}, {}, linear, {}, {}},
                            {"nothing left", x, {1, 1, 0.1, 1}, {}, linear, {}, {}},
                            {"unknown mode", x, {1, 1, 2, 2}, {}, mode("lanczos", "half_pixel"), {}, {}},
                            {"unknown coordinates", x, {1, 1, 2, 2}, {}, mode("linear", "somewhere"), {}, {}},
                            {"an axis twice", x, {2, 2}, {}, over(linear, {2, 2}), {}, {}},
                            {"no such axis", x, {2, 2}, {}, over(linear, {2, 9}), {}, {}},
                            {"no region", x, {1, 1, 2, 2}, {}, mode("linear", "tf_crop_and_resize"), {}, {}},
                            {"antialiased nearest",
                             x,
                             {1, 1, 2, 2},
                             {},
                             also(mode("nearest", "half_pixel"), "antialias", 1),
                             {},
                             {}}};
  for (const ResizeCase& c : bad) {
    SCOPED_TRACE(c.name);
    ModelMaker maker = resize_model(c);
    EXPECT_FALSE(import_as_it_is(maker).has_value());
  }
}

TEST(Upsample, OfOldOperatorSets) {
  const Numbers twice{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4};
  ModelMaker attributes(7);
  attributes.input("x", {1, 1, 2, 2}).output("y");
  auto& node = attributes.node("Upsample", {"x"}, {"y"});
  auto& scales = *node.add_attribute();
  scales.set_name("scales");
  scales.set_type(pb::AttributeProto::FLOATS);
  for (const float scale : {1.0f, 1.0f, 2.0f, 2.0f}) scales.add_floats(scale);
  expect_near(run(attributes, {{"x", counting({1, 1, 2, 2})}}), {1, 1, 4, 4}, twice);
  for (const auto& [opset, op] : {std::pair{9, "Upsample"}, {10, "Resize"}}) {
    ModelMaker maker(opset);
    maker.input("x", {1, 1, 2, 2}).output("y");
    floats(maker, "scales", {1, 1, 2, 2});
    maker.node(op, {"x", "scales"}, {"y"});
    expect_near(run(maker, {{"x", counting({1, 1, 2, 2})}}), {1, 1, 4, 4}, twice);
  }
}

// ---- sampling ----

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

// ---- pools ----

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
