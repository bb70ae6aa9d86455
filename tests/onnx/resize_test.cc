// Resize, and Upsample before it, against numbers that PyTorch 1.13 gives (in double) and that ONNX's
// operator documentation prints.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/onnx/numbers.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;

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

}  // namespace
}  // namespace weft::onnx::testing
