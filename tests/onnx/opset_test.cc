// Operators as the operator sets from 13 to 26 define them. Numbers are PyTorch's, in double.
#include <gtest/gtest.h>

#include <limits>

#include "dag/onnx/export.h"
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
  EXPECT_NE(imported.error().message.find("6 to 26"), std::string::npos) << imported.error().message;
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

// ---- operator set 26, and the two layers with a state that come behind it: numbers of their definitions,
// step by step, in double

TEST(Opset, CumProdRunsForwardsAndBackwards) {
  const std::vector<double> expected[2][2] = {
      {{0.841470957, 0.834457151, 0.563645097, 0.0234367363, -0.0143399521, -0.977530122, 0.863603561},
       {-0.0143399521, -0.0170415294, -0.0171847674, -0.0254414562, -0.611857891, -0.0855461428}},
      {{1, 0.841470957, 0.834457151, 0.563645097, 0.0234367363, 1, -0.977530122},
       {-0.0170415294, -0.0171847674, -0.0254414562, -0.611857891, 1, 0.0875125389}}};
  for (const int64_t exclusive : {0, 1})
    for (const int64_t reverse : {0, 1})
      expect_start(run_op(26, "", "CumProd", {wave({2, 5}, 1), int_tensor({1})},
                          [&](Node& n) {
                            attribute(n, "exclusive", exclusive);
                            attribute(n, "reverse", reverse);
                          },
                          1, {1}),
                   expected[exclusive][reverse]);
}

TEST(Opset, BitCastKeepsTheBits) {
  const dag::Tensor bits = from_list({dag::DType::I32, {3}}, {0x3F800000, 0x40490FDB, 0});
  const auto to = [](int64_t type) { return [type](Node& n) { attribute(n, "to", type); }; };
  expect_start(run_op(26, "", "BitCast", {bits}, to(pb::TensorProto::FLOAT), 1, {0}),
               {1, 3.1415927410125732, 0}, 0);
  EXPECT_FALSE(run_op(26, "", "BitCast", {bits}, to(pb::TensorProto::FLOAT16), 1, {0}).has_value());
  EXPECT_FALSE(run_op(26, "", "BitCast", {bits}, to(pb::TensorProto::FLOAT)).has_value()) << "of data";
}

TEST(Opset, CausalConvWithStateBeginsBehindItsPast) {
  const Operands operands{wave({2, 3, 5}), wave({3, 1, 4}, 1), wave({3}, 2), wave({2, 3, 3}, 3)};
  expect_start(run_op(27, "", "CausalConvWithState", operands),
               {-0.140146253, -0.453427634, 0.584672857, 2.24967326, 3.02561889, 1.38911042, 1.13712704});
  const auto results = run_op(
      27, "", "CausalConvWithState", operands,
      [](Node& n) { attribute(n, "activation", std::string("silu")); }, 2);
  expect_start(results,
               {-0.0651709045, -0.17617755, 0.375442951, 2.0351047, 2.88558773, 1.1119137, 0.86097775});
  EXPECT_EQ((*results)[1].shape(), (dag::Shape{2, 3, 3}));
  EXPECT_EQ(to_doubles((*results)[1])[0], to_doubles(*operands[0])[2]) << "the end of its input";
}

TEST(Opset, LinearAttentionFollowsEachUpdateRule) {
  struct Case {
    const char* rule;
    std::optional<dag::Tensor> past, decay, rate;
    float scale;
    std::vector<double> y, last_state;
  };
  const dag::Tensor past = wave({2, 2, 2, 3}, 3, 0.5);
  const Case cases[] = {
      {"linear",
       past,
       {},
       {},
       0,
       {0.199891834, 0.0872416443, -0.0664396706, 0.850178017, 0.182893511, -0.570408733, -0.0439196122},
       {1.18422219, 0.418976394, -0.543320645}},
      {"gated",
       past,
       wave({2, 3, 4}, 4, 0.3),
       {},
       0.5,
       {0.179988028, 0.0810814779, -0.0559589689, 0.645884416, 0.181822194, -0.367753886, -0.04422874},
       {1.32293001, 0.463791097, -0.613476126}},
      {"delta",
       {},
       {},
       wave({2, 3, 1}, 5, 0.5),
       0,
       {-0.196944031, -0.0925658811, 0.0553474552, -0.519526226, -0.244183094, 0.146003179, 0.0587262981},
       {0.172995174, -0.183802999, -0.45415576}},
      {"gated_delta",
       past,
       wave({2, 3, 2}, 4, 0.3),
       wave({2, 3, 2}, 5, 0.5),
       0,
       {-0.433965504, -0.25512876, 0.0436990231, -0.887478434, -0.710662608, -0.199611077, 0.100191393},
       {-1.00624447, -0.783058949, -0.191588545}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.rule);
    const auto results = run_op(
        27, "", "LinearAttention",
        {wave({2, 3, 8}), wave({2, 3, 4}, 1), wave({2, 3, 6}, 2), c.past, c.decay, c.rate},
        [&](Node& n) {
          attribute(n, "q_num_heads", int64_t{4});
          attribute(n, "kv_num_heads", int64_t{2});
          attribute(n, "update_rule", std::string(c.rule));
          if (c.scale != 0) attribute(n, "scale", c.scale);
        },
        2);
    expect_start(results, c.y);
    ASSERT_EQ((*results)[1].shape(), (dag::Shape{2, 2, 2, 3}));
    const auto state = to_doubles((*results)[1]);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(state[state.size() - 3 + i], c.last_state[i], 2e-6);
  }
}

// ---- weights of four bits

ModelMaker four_bit_model(int32_t type, bool raw) {
  ModelMaker maker(21);
  maker.input("x", {3}).output("y");
  auto& q = *maker.graph().add_initializer();
  q.set_name("q");
  q.set_data_type(type);
  q.add_dims(3);
  const std::string packed("\x8F\x07", 2);  // 15 or -1, 8 or -8, 7
  if (raw) {
    q.set_raw_data(packed);
  } else {
    for (const char c : packed) q.add_int32_data(static_cast<uint8_t>(c));
  }
  auto& scale = *maker.graph().add_initializer();
  scale.set_name("scale");
  scale.set_data_type(pb::TensorProto::FLOAT);
  scale.add_float_data(0.5f);
  maker.node("DequantizeLinear", {"q", "scale"}, {"w"});
  maker.node("Mul", {"x", "w"}, {"y"});
  return maker;
}

TEST(Opset, WeightsOfFourBitsAreDequantisedAndWrittenAsTheyWere) {
  constexpr int32_t kUint4 = 21, kInt4 = 22;
  const dag::Tensor ones = from_list({dag::DType::F32, {3}}, {1, 1, 1});
  for (const int32_t type : {kUint4, kInt4})
    for (const bool raw : {true, false}) {
      const ModelMaker maker = four_bit_model(type, raw);
      const auto values = run_model(maker, {{"x", ones}});
      ASSERT_TRUE(values.has_value()) << values.error().message;
      EXPECT_EQ(to_doubles(values->at("y")),
                (type == kInt4 ? std::vector<double>{-0.5, -4, 3.5} : std::vector<double>{7.5, 4, 3.5}));
      const auto model = read_bytes(maker.bytes());
      const auto written = trained_bytes(*model, {});
      ASSERT_TRUE(written.has_value()) << written.error().message;
      pb::ModelProto again;
      ASSERT_TRUE(again.ParseFromString(*written));
      EXPECT_EQ(again.graph().initializer(0).SerializeAsString(),
                maker.proto.graph().initializer(0).SerializeAsString());
    }
}

TEST(Opset, WeightsOfFourBitsBesideTheModel) {
  const auto folder = fresh_folder("four_bits");
  ModelMaker maker = four_bit_model(22, true);
  keep_outside(*maker.graph().mutable_initializer(0), "data", 1, 2);
  write_bytes(folder / "data", std::string("\0\x8F\x07", 3));
  write_bytes(folder / "model.onnx", maker.bytes());
  const auto model = read_model(folder / "model.onnx");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(to_doubles(model->weights().at("q")), (std::vector<double>{-1, -8, 7}));
  ASSERT_TRUE(write_trained(*model, {}, folder / "trained.onnx").has_value());
  const auto trained = read_model(folder / "trained.onnx");
  ASSERT_TRUE(trained.has_value()) << trained.error().message;
  EXPECT_EQ(to_doubles(trained->weights().at("q")), (std::vector<double>{-1, -8, 7}));
  std::filesystem::remove_all(folder);
}

TEST(Opset, QuantisingToFourBitsEndsAtTheirRange) {
  ModelMaker maker(21);
  maker.input("x", {3}).output("y");
  auto& zero = *maker.graph().add_initializer();
  zero.set_name("zero");
  zero.set_data_type(22);
  zero.set_raw_data(std::string(1, '\0'));
  auto& scale = *maker.graph().add_initializer();
  scale.set_name("scale");
  scale.set_data_type(pb::TensorProto::FLOAT);
  scale.add_float_data(1);
  maker.node("QuantizeLinear", {"x", "scale", "zero"}, {"q"});
  maker.node("DequantizeLinear", {"q", "scale", "zero"}, {"y"});
  const auto values = run_model(maker, {{"x", from_list({dag::DType::F32, {3}}, {-20, 3, 20})}});
  ASSERT_TRUE(values.has_value()) << values.error().message;
  EXPECT_EQ(to_doubles(values->at("y")), (std::vector<double>{-8, 3, 7}));
}

}  // namespace
}  // namespace weft::onnx::testing
