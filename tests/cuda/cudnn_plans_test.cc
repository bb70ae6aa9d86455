// Which engines cuDNN would compute with, on five cards that need not be here: their properties are files
// (tests/cuda/device_properties). Nothing is run; what is checked is that there is a plan, of the kind that
// we take, for every convolution of three networks in training and for shapes with something odd about them,
// on every card. WEFT_LIST=1 prints the choices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "peer/backend/cuda/cudnn_convolution.h"

namespace weft::peer::cuda {
namespace {

using Direction = ConvolutionSpec::Direction;
using Ints = std::vector<int64_t>;
constexpr Direction kDirections[] = {Direction::Forward, Direction::GradInput, Direction::GradWeight};
constexpr const char* kCards[] = {"sm_75", "sm_86", "sm_89", "sm_90", "sm_120"};

std::string properties_of(const std::string& card) {
  std::ifstream in(std::string(WEFT_SOURCE_DIR) + "/tests/cuda/device_properties/" + card + ".json");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const CudnnTarget& target(const std::string& card) {
  static std::map<std::string, CudnnTarget> targets;
  auto at = targets.find(card);
  if (at == targets.end()) {
    auto made = CudnnTarget::of_properties(properties_of(card));
    EXPECT_TRUE(made) << card << ": " << (made ? "" : made.error().message);
    if (!made) std::abort();
    at = targets.emplace(card, std::move(*made)).first;
  }
  return at->second;
}

Result<ConvolutionPlan> plan(const std::string& card, const ConvolutionSpec& spec,
                             const ConvolutionOptions& options = {}) {
  return make_convolution_plan(target(card), spec, options);
}

// y follows.
ConvolutionSpec make_spec(Direction direction, Ints x, Ints w, Ints strides, Ints pads_begin, Ints pads_end,
                          Ints dilations, int64_t groups) {
  ConvolutionSpec spec{.direction = direction,
                       .x = std::move(x),
                       .w = std::move(w),
                       .y = {},
                       .strides = std::move(strides),
                       .pads_begin = std::move(pads_begin),
                       .pads_end = std::move(pads_end),
                       .dilations = std::move(dilations),
                       .groups = groups};
  spec.y = {spec.x[0], spec.w[0]};
  for (size_t i = 0; i < spec.strides.size(); ++i)
    spec.y.push_back((spec.x[i + 2] + spec.pads_begin[i] + spec.pads_end[i] -
                      spec.dilations[i] * (spec.w[i + 2] - 1) - 1) /
                         spec.strides[i] +
                     1);
  return spec;
}

// A square convolution of an image network: pads keep the size but for the stride.
struct Layer {
  int64_t channels_in, channels_out, size, kernel, stride;
  int64_t groups = 1;
  auto operator<=>(const Layer&) const = default;

  ConvolutionSpec spec(Direction direction) const {
    const int64_t pad = kernel / 2;
    return make_spec(direction, {8, channels_in, size, size},
                     {channels_out, channels_in / groups, kernel, kernel}, {stride, stride}, {pad, pad},
                     {pad, pad}, {1, 1}, groups);
  }
};

const std::vector<Layer> kResNet18 = {{3, 64, 224, 7, 2},   {64, 64, 56, 3, 1},   {64, 128, 56, 3, 2},
                                      {64, 128, 56, 1, 2},  {128, 128, 28, 3, 1}, {128, 256, 28, 3, 2},
                                      {128, 256, 28, 1, 2}, {256, 256, 14, 3, 1}, {256, 512, 14, 3, 2},
                                      {256, 512, 14, 1, 2}, {512, 512, 7, 3, 1}};
// Both with the stride in the 3x3 and, the last three, in the first 1x1 of a bottleneck.
const std::vector<Layer> kResNet50 = {
    {3, 64, 224, 7, 2},     {64, 64, 56, 1, 1},    {64, 64, 56, 3, 1},    {64, 256, 56, 1, 1},
    {256, 64, 56, 1, 1},    {256, 128, 56, 1, 1},  {128, 128, 56, 3, 2},  {128, 512, 28, 1, 1},
    {256, 512, 56, 1, 2},   {512, 128, 28, 1, 1},  {128, 128, 28, 3, 1},  {512, 256, 28, 1, 1},
    {256, 256, 28, 3, 2},   {256, 1024, 14, 1, 1}, {512, 1024, 28, 1, 2}, {1024, 256, 14, 1, 1},
    {256, 256, 14, 3, 1},   {1024, 512, 14, 1, 1}, {512, 512, 14, 3, 2},  {512, 2048, 7, 1, 1},
    {1024, 2048, 14, 1, 2}, {2048, 512, 7, 1, 1},  {512, 512, 7, 3, 1},   {256, 128, 56, 1, 2},
    {512, 256, 28, 1, 2},   {1024, 512, 14, 1, 2}};
const std::vector<Layer> kMobileNetV2 = {
    {3, 32, 224, 3, 2},        {32, 32, 112, 3, 1, 32},   {32, 16, 112, 1, 1},
    {16, 96, 112, 1, 1},       {96, 96, 112, 3, 2, 96},   {96, 24, 56, 1, 1},
    {24, 144, 56, 1, 1},       {144, 144, 56, 3, 1, 144}, {144, 24, 56, 1, 1},
    {144, 144, 56, 3, 2, 144}, {144, 32, 28, 1, 1},       {32, 192, 28, 1, 1},
    {192, 192, 28, 3, 1, 192}, {192, 32, 28, 1, 1},       {192, 192, 28, 3, 2, 192},
    {192, 64, 14, 1, 1},       {64, 384, 14, 1, 1},       {384, 384, 14, 3, 1, 384},
    {384, 64, 14, 1, 1},       {384, 96, 14, 1, 1},       {96, 576, 14, 1, 1},
    {576, 576, 14, 3, 1, 576}, {576, 96, 14, 1, 1},       {576, 576, 14, 3, 2, 576},
    {576, 160, 7, 1, 1},       {160, 960, 7, 1, 1},       {960, 960, 7, 3, 1, 960},
    {960, 160, 7, 1, 1},       {960, 320, 7, 1, 1},       {320, 1280, 7, 1, 1}};
const Layer kPlain{64, 64, 56, 3, 1}, kStrided{256, 512, 14, 3, 2}, kDepthwise{32, 32, 112, 3, 1, 32};

std::vector<Layer> all_layers() {
  std::vector<Layer> layers = kResNet18;
  layers.insert(layers.end(), kResNet50.begin(), kResNet50.end());
  layers.insert(layers.end(), kMobileNetV2.begin(), kMobileNetV2.end());
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

void expect_float32_plan(const std::string& card, const ConvolutionSpec& spec) {
  const ConvolutionOptions options;
  const auto made = plan(card, spec, options);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_FALSE(made->uses_tensor_cores()) << card << ' ' << made->implementation();
  EXPECT_LE(made->workspace_bytes(), options.workspace_bytes_max);
  EXPECT_EQ(made->memory_type(), CUDNN_DATA_FLOAT);
  EXPECT_NE(made->implementation().find(" engine "), std::string::npos);
  if (std::getenv("WEFT_LIST") != nullptr)
    std::printf("%s x %s w %s: %s, workspace %ld\n", card.c_str(), ::testing::PrintToString(spec.x).c_str(),
                ::testing::PrintToString(spec.w).c_str(), made->implementation().c_str(),
                static_cast<long>(made->workspace_bytes()));
}

TEST(CudnnPlans, PropertiesMakeTargets) {
  EXPECT_EQ(target("sm_75").to_string(), "sm_75 (NVIDIA GeForce RTX 2080 Ti)");
  EXPECT_EQ(target("sm_120").compute_capability(), 120);
  const auto again = CudnnTarget::of_properties(target("sm_90").properties());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->name(), "NVIDIA H100 80GB HBM3");
}

TEST(CudnnPlans, PropertiesWithoutAKeyAreRefusedByIt) {
  std::string json = properties_of("sm_86");
  json.replace(json.find("maxGridSize"), 11, "maxGridSiz_");
  const auto refused = CudnnTarget::of_properties(json);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("maxGridSize"), std::string::npos) << refused.error().message;
}

TEST(CudnnPlans, NetworksTrainInFloat32OnEveryCard) {
  for (const Layer& layer : all_layers())
    for (const char* card : kCards)
      for (const Direction direction : kDirections)  // images have no gradient
        if (direction != Direction::GradInput || layer.channels_in != 3)
          expect_float32_plan(card, layer.spec(direction));
}

struct OddCase {
  const char* name;
  Ints x, w, strides, pads_begin, pads_end, dilations;
  int64_t groups;
};
const std::vector<OddCase> kOdd = {
    {"3x3", {2, 3, 5, 4}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1},
    {"1x1", {2, 3, 3, 3}, {2, 3, 1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}, 1},
    {"strided", {1, 2, 6, 7}, {3, 2, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 1},
    {"stride leaves a rest", {1, 1, 6}, {2, 1, 3}, {2}, {0}, {0}, {1}, 1},
    {"dilated", {1, 2, 7, 6}, {2, 2, 3, 2}, {1, 1}, {1, 1}, {1, 1}, {2, 3}, 1},
    {"grouped", {2, 4, 4, 4}, {6, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 2},
    {"depthwise", {1, 3, 4, 5}, {3, 1, 2, 2}, {1, 1}, {0, 0}, {0, 0}, {1, 1}, 3},
    {"depthwise, two each", {2, 6, 9, 9}, {12, 1, 5, 5}, {2, 2}, {2, 2}, {2, 2}, {1, 1}, 6},
    {"1d, uneven pads without effect", {2, 3, 8}, {4, 3, 3}, {2}, {1}, {0}, {1}, 1},
    {"1d of speech", {4, 80, 3000}, {384, 80, 3}, {1}, {1}, {1}, {1}, 1},
    {"1d of speech, strided", {4, 384, 3000}, {384, 384, 3}, {2}, {1}, {1}, {1}, 1},
    {"1d depthwise, causal by slicing", {4, 64, 500}, {64, 1, 4}, {1}, {3}, {3}, {1}, 64},
    {"3d", {1, 2, 3, 4, 3}, {2, 2, 2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1}, 1},
    {"3d of video", {2, 3, 8, 56, 56}, {32, 3, 3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1},
    {"3d grouped", {2, 8, 4, 14, 14}, {16, 4, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 2},
    {"groups of four", {8, 128, 56, 56}, {128, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 32},
    {"dilated, wide", {8, 256, 28, 28}, {256, 256, 3, 3}, {1, 1}, {4, 4}, {4, 4}, {4, 4}, 1},
    {"1x7", {8, 128, 17, 17}, {128, 128, 1, 7}, {1, 1}, {0, 3}, {0, 3}, {1, 1}, 1},
    {"patches", {8, 3, 224, 224}, {384, 3, 16, 16}, {16, 16}, {0, 0}, {0, 0}, {1, 1}, 1},
    {"strided 1x1 with a rest", {3, 5, 8, 7}, {7, 5, 1, 1}, {3, 2}, {0, 0}, {0, 0}, {1, 1}, 1},
    {"the whole image", {8, 16, 5, 5}, {120, 16, 5, 5}, {1, 1}, {0, 0}, {0, 0}, {1, 1}, 1},
    {"more pads than kernel", {2, 3, 4, 4}, {2, 3, 2, 2}, {1, 1}, {3, 3}, {3, 3}, {1, 1}, 1},
};

ConvolutionSpec odd_spec(const OddCase& c, Direction direction) {
  return make_spec(direction, c.x, c.w, c.strides, c.pads_begin, c.pads_end, c.dilations, c.groups);
}

TEST(CudnnPlans, OddShapesHaveAPlanOnEveryCard) {
  for (const OddCase& odd : kOdd)
    for (const char* card : kCards)
      for (const Direction direction : kDirections) {
        SCOPED_TRACE(odd.name);
        expect_float32_plan(card, odd_spec(odd, direction));
      }
}

TEST(CudnnPlans, UnevenPadsAreRefusedByName) {
  const OddCase uneven{"", {1, 2, 4, 3}, {2, 2, 2, 3}, {1, 1}, {0, 2}, {2, 1}, {1, 1}, 1};
  for (const char* card : kCards)
    for (const Direction direction : kDirections) {
      const auto made = plan(card, odd_spec(uneven, direction));
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().code, ErrorCode::Unsupported);
      EXPECT_NE(made.error().message.find("pads [0,2][2,1]"), std::string::npos) << made.error().message;
    }
}

TEST(CudnnPlans, ABiasIsAddedInTheSamePlan) {
  for (const Layer& layer : {kPlain, kDepthwise})
    for (const char* card : kCards) {
      const auto made = plan(card, layer.spec(Direction::Forward), {.bias = true});
      ASSERT_TRUE(made) << made.error().message;
      EXPECT_EQ(made->adds_bias(), made->implementation().find("conv bias") != std::string::npos);
      EXPECT_FALSE(made->uses_tensor_cores());
      EXPECT_TRUE(made->adds_bias() || layer.groups > 1) << card;
    }
}

TEST(CudnnPlans, TheSameQuestionHasTheSameAnswer) {
  for (const char* card : kCards)
    for (const Direction direction : kDirections) {
      const ConvolutionSpec spec = kStrided.spec(direction);
      const auto first = plan(card, spec), second = plan(card, spec);
      ASSERT_TRUE(first && second);
      EXPECT_EQ(first->implementation(), second->implementation());
      EXPECT_EQ(first->workspace_bytes(), second->workspace_bytes());
    }
}

TEST(CudnnPlans, WorkspaceHasALimit) {
  for (const char* card : kCards)
    for (const Direction direction : kDirections) {
      const auto made = plan(card, kPlain.spec(direction), {.workspace_bytes_max = 0});
      if (made) {
        EXPECT_EQ(made->workspace_bytes(), 0);
      } else {
        EXPECT_EQ(made.error().code, ErrorCode::ResourceExhausted) << made.error().message;
      }
    }
}

TEST(CudnnPlans, Tf32AndBf16TakeTensorCoresWhereTheCardHasThem) {
  if (std::getenv("NVIDIA_TF32_OVERRIDE") != nullptr) GTEST_SKIP() << "NVIDIA_TF32_OVERRIDE is set";
  for (const Arithmetic arithmetic : {Arithmetic::TF32, Arithmetic::BF16})
    for (const char* card : {"sm_86", "sm_89", "sm_90", "sm_120"})
      for (const Direction direction : kDirections) {
        ConvolutionSpec spec = kPlain.spec(direction);
        spec.arithmetic = arithmetic;
        const auto made = plan(card, spec);
        ASSERT_TRUE(made) << made.error().message;
        EXPECT_TRUE(made->uses_tensor_cores()) << card << ' ' << made->implementation();
        EXPECT_EQ(made->memory_type(),
                  arithmetic == Arithmetic::BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT);
      }
}

TEST(CudnnPlans, WhatACardLacksIsRefusedByName) {
  for (const Arithmetic arithmetic : {Arithmetic::TF32, Arithmetic::BF16}) {
    ConvolutionSpec spec = kPlain.spec(Direction::Forward);
    spec.arithmetic = arithmetic;
    const auto made = plan("sm_75", spec);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::Unsupported);
    EXPECT_NE(
        made.error().message.find("convolutions are not available on sm_75 (NVIDIA GeForce RTX 2080 Ti)"),
        std::string::npos)
        << made.error().message;
  }
}

TEST(CudnnPlans, ShapesThatContradictEachOtherAreRefused) {
  const auto refusal = [](auto change) {
    ConvolutionSpec spec = kPlain.spec(Direction::Forward);
    change(spec);
    const auto made = plan("sm_90", spec);
    return made ? "none" : std::string(to_string(made.error().code));
  };
  const std::string invalid(to_string(ErrorCode::InvalidArgument));
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.y[2] += 1; }), invalid);
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.groups = 3; }), invalid);
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.strides[0] = 0; }), invalid);
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.x.push_back(4); }), invalid);
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.y[0] = 7; }), invalid);
  EXPECT_EQ(refusal([](ConvolutionSpec& s) { s.pads_begin = {-1, 1}; }), invalid);
}

}  // namespace
}  // namespace weft::peer::cuda
