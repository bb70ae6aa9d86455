// Operators of the domain com.microsoft. Numbers are PyTorch's, in double.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using Node = pb::NodeProto;
using Values = std::vector<double>;

Result<std::vector<dag::Tensor>> run_ms(const std::string& op, const Operands& operands,
                                        const std::function<void(Node&)>& attributes = {}, int results = 1,
                                        const std::set<size_t>& known = {}) {
  return run_op(17, "com.microsoft", op, operands, attributes, results, known);
}
void expect_refused(const Result<std::vector<dag::Tensor>>& results, const std::string& word) {
  ASSERT_FALSE(results.has_value());
  EXPECT_EQ(results.error().code, ErrorCode::Unsupported);
  EXPECT_NE(results.error().message.find(word), std::string::npos) << results.error().message;
}
dag::Tensor constant(const dag::Shape& shape, double value) {
  const dag::TensorSpec spec{dag::DType::F32, shape};
  return from_list(spec, Values(static_cast<size_t>(spec.element_count()), value));
}

TEST(Microsoft, Gelus) {
  const dag::Tensor x = wave({8}, 0, 3);
  expect_start(run_ms("Gelu", {x}), {0, 1.881168198, 2.951747567, 2.57718757, 0.846725779, -0.153979356});
  expect_start(run_ms("FastGelu", {x}),
               {0, 1.881208269, 2.952174894, 2.577650933, 0.846571281, -0.154150161});
  expect_start(run_ms("BiasGelu", {constant({8}, 0), x}), {0, 1.881168198, 2.951747567, 2.57718757});
  expect_start(run_ms("QuickGelu", {x}, [](Node& n) { attribute(n, "alpha", 2.0f); }),
               {0, 1.892982757, 2.948374197});
}

TEST(Microsoft, SkipLayerNormalizations) {
  const auto results =
      run_ms("SkipLayerNormalization",
             {wave({2, 3, 4}), wave({2, 3, 4}, 3), wave({4}, 1), wave({4}, 2), wave({4}, 4)}, {}, 4);
  expect_start(results, {0.928949537, -0.67663751, -0.590375342, -0.752344608, 0.612870297, -0.608266002},
               1e-5);
  EXPECT_NEAR(to_doubles((*results)[3])[0], std::sin(0) + std::sin(3.0) + std::sin(4.0), 1e-6) << "the sum";
  expect_start(
      run_ms("SkipSimplifiedLayerNormalization", {wave({2, 3, 4}), constant({2, 3, 4}, 0), wave({4}, 1)},
             [](Node& n) { attribute(n, "epsilon", 1e-5f); }),
      {0, 0.875196259, 0.911893377, 0.049171726, 0.402672942});
  expect_start(run_ms("SimplifiedLayerNormalization", {wave({2, 3, 4}), wave({4}, 1)}),
               {0, 0.875196259, 0.911893377, 0.049171726, 0.402672942});
}

TEST(Microsoft, EmbedLayerNormalization) {
  const dag::Tensor ids = from_list({dag::DType::I32, {1, 2}}, {4, 1});
  const dag::Tensor words = wave({5, 4}), places = wave({3, 4}, 1);
  const auto results =
      run_ms("EmbedLayerNormalization",
             {ids, std::nullopt, words, places, std::nullopt, constant({4}, 1), constant({4}, 0)}, {}, 1);
  ASSERT_TRUE(results.has_value()) << results.error().message;
  Values row;
  for (size_t d = 0; d < 4; ++d) row.push_back(to_doubles(words)[16 + d] + to_doubles(places)[d]);
  const double mean = (row[0] + row[1] + row[2] + row[3]) / 4;
  double variance = 0;
  for (const double value : row) variance += (value - mean) * (value - mean) / 4;
  for (double& value : row) value = (value - mean) / std::sqrt(variance);
  expect_start(results, row, 1e-5);
}

TEST(Microsoft, FusedProducts) {
  const dag::Tensor a = from_list({dag::DType::F32, {2, 2}}, {1, 2, 3, 4});
  const dag::Tensor b = from_list({dag::DType::F32, {2, 2}}, {1, 0, -1, 2});
  expect_start(run_ms("FusedMatMul", {a, b},
                      [](Node& n) {
                        attribute(n, "transA", int64_t{1});
                        attribute(n, "transB", int64_t{1});
                        attribute(n, "alpha", 0.5f);
                      }),
               {0.5, 2.5, 1, 3}, 0);
  expect_start(run_ms("FusedGemm", {a, b}, [](Node& n) { attribute(n, "activation", std::string("Relu")); }),
               {0, 4, 0, 8}, 0);
  expect_start(run_ms("FusedConv",
                      {a.reshaped({1, 1, 2, 2}), constant({1, 1, 1, 1}, -1), constant({1}, 0),
                       constant({1, 1, 2, 2}, 2)},
                      [](Node& n) {
                        attribute(n, "kernel_shape", std::vector<int64_t>{1, 1});
                        attribute(n, "activation", std::string("Relu"));
                      }),
               {1, 0, 0, 0}, 0);
  expect_refused(run_ms("FusedMatMul", {a, b}, [](Node& n) { attribute(n, "transBatchA", int64_t{1}); }),
                 "transBatchA");
  expect_refused(
      run_ms("FusedGemm", {a, b}, [](Node& n) { attribute(n, "activation", std::string("Wobble")); }),
      "Wobble");
}

const Values kCausalAttention{0.388602177,  0.251588076,  -0.003751828,
                              -0.257327189, -0.389877552, -0.33906241};

dag::Tensor packed_weights() { return wave({8, 24}, 1, 0.5); }
dag::Tensor packed_bias() { return wave({24}, 2, 0.1); }
void two_causal_heads(Node& n) {
  attribute(n, "num_heads", int64_t{2});
  attribute(n, "unidirectional", int64_t{1});
}

TEST(Microsoft, AttentionOfPackedWeights) {
  expect_start(run_ms("Attention", {wave({2, 3, 8}), packed_weights(), packed_bias()}, two_causal_heads),
               kCausalAttention);
  expect_refused(run_ms("Attention", {wave({2, 3, 8}), packed_weights(), packed_bias()},
                        [](Node& n) {
                          two_causal_heads(n);
                          attribute(n, "do_rotary", int64_t{1});
                        }),
                 "do_rotary");
}

TEST(Microsoft, MultiHeadAttentionOfProductsAndBias) {
  // q, k, v are what the packed weights make of the input.
  const Values x = to_doubles(wave({2, 3, 8})), w = to_doubles(packed_weights());
  std::vector<dag::Tensor> parts;
  for (size_t part = 0; part < 3; ++part) {
    Values product;
    for (size_t row = 0; row < 6; ++row)
      for (size_t column = 0; column < 8; ++column) {
        double sum = 0;
        for (size_t i = 0; i < 8; ++i) sum += x[row * 8 + i] * w[i * 24 + part * 8 + column];
        product.push_back(sum);
      }
    parts.push_back(from_list({dag::DType::F32, {2, 3, 8}}, product));
  }
  expect_start(run_ms("MultiHeadAttention", {parts[0], parts[1], parts[2], packed_bias()}, two_causal_heads),
               kCausalAttention);
  // Masking all keys but the first leaves its value, for every query.
  const dag::Tensor mask = from_list({dag::DType::I32, {2, 3}}, {1, 0, 0, 1, 0, 0});
  const auto masked = run_ms("MultiHeadAttention", {parts[0], parts[1], parts[2], std::nullopt, mask},
                             [](Node& n) { attribute(n, "num_heads", int64_t{2}); });
  expect_start(masked, {to_doubles(parts[2])[0], to_doubles(parts[2])[1]});
}

TEST(Microsoft, GroupQueryAttentionTurnsItsOwnHeads) {
  const dag::Tensor lengths = from_list({dag::DType::I32, {1}}, {2});
  const dag::Tensor total = from_list({dag::DType::I32, {1}}, {3});
  const auto shape = [](Node& n) {
    attribute(n, "num_heads", int64_t{4});
    attribute(n, "kv_num_heads", int64_t{2});
    attribute(n, "do_rotary", int64_t{1});
  };
  const Operands operands{wave({1, 3, 16}),
                          wave({1, 3, 8}, 1),
                          wave({1, 3, 8}, 2),
                          std::nullopt,
                          std::nullopt,
                          lengths,
                          total,
                          cosines(),
                          sines()};
  const auto results = run_ms("GroupQueryAttention", operands, shape, 3);
  expect_start(results, {0.909297427, 0.42737988, -0.255541102, -0.818277111, 0.909297427, 0.42737988});
  const Values y = to_doubles((*results)[0]);
  const Values last{0.846346068, 0.655867218, 0.156923767, -0.415823384, 0.781825946, 0.865761939};
  for (size_t i = 0; i < last.size(); ++i) EXPECT_NEAR(y[32 + i], last[i], 2e-6);
  EXPECT_EQ((*results)[1].shape(), (dag::Shape{1, 2, 3, 4}));
  expect_refused(run_ms("GroupQueryAttention", operands,
                        [&](Node& n) {
                          shape(n);
                          attribute(n, "local_window_size", int64_t{2});
                        }),
                 "local_window_size");
}

TEST(Microsoft, RotaryEmbedding) {
  const dag::Tensor positions = from_list({dag::DType::I64, {1, 3}}, {0, 1, 2});
  const auto heads = [](Node& n) { attribute(n, "num_heads", int64_t{4}); };
  const auto results = run_ms("RotaryEmbedding", {wave({1, 3, 16}), positions, cosines(), sines()}, heads);
  ASSERT_TRUE(results.has_value()) << results.error().message;
  EXPECT_NEAR(to_doubles((*results)[0])[16], -0.557344804, 2e-6);
  const dag::Tensor start = from_list({dag::DType::I64, {1}}, {0});
  expect_start(run_ms("RotaryEmbedding", {wave({1, 3, 16}), start, cosines(), sines()}, heads, 1, {1}),
               to_doubles((*results)[0]), 0);
}

TEST(Microsoft, WhatIsNotKnownIsListed) {
  expect_refused(run_ms("MatMulBnb4", {wave({2, 2})}), "com.microsoft.MatMulBnb4");
}

}  // namespace
}  // namespace weft::onnx::testing
