// Attention and RotaryEmbedding of opset 23 and 24 against loops that follow their definition.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using Node = pb::NodeProto;
using Values = std::vector<double>;
constexpr double kNever = -std::numeric_limits<double>::infinity();

// Sizes and what is added to the score of head h, query i and key j of sample b.
struct Problem {
  int64_t batch = 2, heads = 4, groups = 2, queries = 3, keys = 3, size = 4;
  double scale = 0.5;
  double softcap = 0;
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> bias = [](auto...) { return 0.0; };
};

// y [B, H, S, D] of q [B, H, S, D] and k, v [B, G, T, D].
Values by_definition(const Problem& p, const Values& q, const Values& k, const Values& v) {
  Values y;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.queries; ++i) {
        const int64_t group = b * p.groups + h / (p.heads / p.groups);
        Values weights(static_cast<size_t>(p.keys));
        double total = 0;
        for (int64_t j = 0; j < p.keys; ++j) {
          double score = 0;
          for (int64_t d = 0; d < p.size; ++d)
            score += q[static_cast<size_t>(((b * p.heads + h) * p.queries + i) * p.size + d)] *
                     k[static_cast<size_t>((group * p.keys + j) * p.size + d)];
          score *= p.scale;
          if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
          total += weights[static_cast<size_t>(j)] = std::exp(score + p.bias(b, h, i, j));
        }
        for (int64_t d = 0; d < p.size; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < p.keys; ++j)
            sum += weights[static_cast<size_t>(j)] / total *
                   v[static_cast<size_t>((group * p.keys + j) * p.size + d)];
          y.push_back(sum);
        }
      }
  return y;
}

struct Data {
  dag::Tensor q, k, v;
};
Data data_of(const Problem& p) {
  return {wave({p.batch, p.heads, p.queries, p.size}), wave({p.batch, p.groups, p.keys, p.size}, 1),
          wave({p.batch, p.groups, p.keys, p.size}, 2)};
}
Values expected_of(const Problem& p) {
  const Data data = data_of(p);
  return by_definition(p, to_doubles(data.q), to_doubles(data.k), to_doubles(data.v));
}

TEST(Attention, SharedHeadsOfKeysAndValues) {
  const Problem p;
  const Data data = data_of(p);
  expect_start(run_op(23, "", "Attention", {data.q, data.k, data.v}), expected_of(p));
}

TEST(Attention, FlatOperandsNameTheirHeads) {
  const Problem p{.groups = 4};
  const auto flat = [&](double phase) { return wave({p.batch, p.queries, p.heads * p.size}, phase); };
  const auto to_heads = [&](const Values& x) {  // [B, S, H, D] to [B, H, S, D]
    Values y;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t i = 0; i < p.queries; ++i)
          for (int64_t d = 0; d < p.size; ++d)
            y.push_back(x[static_cast<size_t>(((b * p.queries + i) * p.heads + h) * p.size + d)]);
    return y;
  };
  const auto results = run_op(23, "", "Attention", {flat(0), flat(1), flat(2)}, [](Node& n) {
    attribute(n, "q_num_heads", int64_t{4});
    attribute(n, "kv_num_heads", int64_t{4});
  });
  ASSERT_TRUE(results.has_value()) << results.error().message;
  EXPECT_EQ((*results)[0].shape(), (dag::Shape{2, 3, 16}));
  const Values expected = by_definition(p, to_heads(to_doubles(flat(0))), to_heads(to_doubles(flat(1))),
                                        to_heads(to_doubles(flat(2))));
  const Values actual = to_heads(to_doubles((*results)[0]));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-6);
}

TEST(Attention, CausalScaledAndCapped) {
  Problem p{.scale = 0.25, .softcap = 0.5};
  p.bias = [](int64_t, int64_t, int64_t i, int64_t j) { return j > i ? kNever : 0; };
  const Data data = data_of(p);
  expect_start(run_op(23, "", "Attention", {data.q, data.k, data.v},
                      [](Node& n) {
                        attribute(n, "is_causal", int64_t{1});
                        attribute(n, "scale", 0.25f);
                        attribute(n, "softcap", 0.5f);
                      }),
               expected_of(p));
}

TEST(Attention, MasksOfTruthAndOfNumbersThatMayBeShort) {
  Problem p{.keys = 5};
  const Data data = data_of(p);
  const dag::Tensor numbers = wave({2, 1, 3, 5}, 5);
  const Values added = to_doubles(numbers);
  p.bias = [&](int64_t b, int64_t, int64_t i, int64_t j) {
    return added[static_cast<size_t>((b * 3 + i) * 5 + j)];
  };
  expect_start(run_op(23, "", "Attention", {data.q, data.k, data.v, numbers}), expected_of(p));

  const dag::Tensor truth = from_list({dag::DType::Bool, {3, 3}}, {1, 0, 1, 1, 1, 0, 0, 0, 1});
  const Values allowed = to_doubles(truth);
  p.bias = [&](int64_t, int64_t, int64_t i, int64_t j) {
    return j < 3 && allowed[static_cast<size_t>(i * 3 + j)] != 0 ? 0 : kNever;
  };
  expect_start(run_op(23, "", "Attention", {data.q, data.k, data.v, truth}), expected_of(p));
}

TEST(Attention, ThePastComesFirst) {
  const Problem whole{.queries = 3, .keys = 5};
  const Data data = data_of(whole);
  const Values k = to_doubles(data.k), v = to_doubles(data.v);
  const auto part = [&](const Values& all, int64_t from, int64_t count) {
    Values some;
    for (int64_t g = 0; g < 4; ++g)
      for (int64_t e = from * 4; e < (from + count) * 4; ++e)
        some.push_back(all[static_cast<size_t>(g * 20 + e)]);
    return from_list({dag::DType::F32, {2, 2, count, 4}}, some);
  };
  Problem p = whole;
  p.bias = [](int64_t, int64_t, int64_t i, int64_t j) { return j > i + 2 ? kNever : 0; };
  const auto results = run_op(
      23, "", "Attention", {data.q, part(k, 2, 3), part(v, 2, 3), std::nullopt, part(k, 0, 2), part(v, 0, 2)},
      [](Node& n) { attribute(n, "is_causal", int64_t{1}); }, 3);
  expect_start(results, by_definition(p, to_doubles(data.q), k, v));
  EXPECT_EQ(to_doubles((*results)[1]), k);
  EXPECT_EQ(to_doubles((*results)[2]), v);
}

TEST(Attention, LengthsMaskWhatStandsBehindThem) {
  Problem p{.keys = 5};
  const Data data = data_of(p);
  const dag::Tensor lengths = from_list({dag::DType::I64, {2}}, {5, 4});
  const auto length = [](int64_t b) { return b == 0 ? 5 : 4; };
  p.bias = [&](int64_t b, int64_t, int64_t, int64_t j) { return j >= length(b) ? kNever : 0; };
  const Operands operands{data.q, data.k, data.v, std::nullopt, std::nullopt, std::nullopt, lengths};
  expect_start(run_op(24, "", "Attention", operands), expected_of(p));
  p.bias = [&](int64_t b, int64_t, int64_t i, int64_t j) { return j > i + length(b) - 3 ? kNever : 0; };
  expect_start(run_op(24, "", "Attention", operands, [](Node& n) { attribute(n, "is_causal", int64_t{1}); }),
               expected_of(p));
}

TEST(Attention, ScoresAreGivenWhereTheirMeaningIsClear) {
  const Problem p{.batch = 1, .heads = 1, .groups = 1};
  const Data data = data_of(p);
  const auto mode = [](int64_t value) {
    return [value](Node& n) {
      attribute(n, "qk_matmul_output_mode", value);
      attribute(n, "is_causal", int64_t{1});
    };
  };
  const auto raw = run_op(23, "", "Attention", {data.q, data.k, data.v}, mode(0), 4);
  ASSERT_TRUE(raw.has_value()) << raw.error().message;
  EXPECT_TRUE(std::isfinite(to_doubles((*raw)[3])[1]));
  const auto softmax = run_op(23, "", "Attention", {data.q, data.k, data.v}, mode(3), 4);
  ASSERT_TRUE(softmax.has_value());
  EXPECT_EQ(to_doubles((*softmax)[3])[1], 0);
  const auto refused = run_op(23, "", "Attention", {data.q, data.k, data.v}, mode(1), 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
}

TEST(Attention, HeadsThatDoNotFitAreRefused) {
  const Problem p;
  const Data data = data_of(p);
  EXPECT_FALSE(run_op(23, "", "Attention", {data.q, data.k, wave({2, 4, 3, 4})}).has_value());
  EXPECT_FALSE(run_op(23, "", "Attention", {data.q, wave({2, 3, 3, 4}), wave({2, 3, 3, 4})}).has_value());
  EXPECT_FALSE(
      run_op(23, "", "Attention", {wave({2, 3, 16}), wave({2, 3, 16}), wave({2, 3, 16})}).has_value());
  EXPECT_FALSE(run_op(25, "", "Attention", {data.q, data.k, data.v}, [](Node& n) {
                 attribute(n, "left_window_size", int64_t{2});
               }).has_value());
}

TEST(RotaryEmbedding, HalvesTurnAsInLlama) {
  const dag::Tensor positions = from_list({dag::DType::I64, {1, 3}}, {0, 1, 2});
  const auto heads = [](Node& n) { attribute(n, "num_heads", int64_t{4}); };
  const auto results =
      run_op(23, "", "RotaryEmbedding", {wave({1, 3, 16}), cosines(), sines(), positions}, heads);
  ASSERT_TRUE(results.has_value()) << results.error().message;
  const Values y = to_doubles((*results)[0]);
  const Values expected{-0.557344804, -0.681894438, -0.805783038, 0.604513962,
                        0.280162136,  0.879665115,  0.997342894,  -0.295728856};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[16 + i], expected[i], 2e-6);
  // The same without positions, and in four dims.
  const auto in_three = [](const dag::Tensor& t) { return t.reshaped({1, 3, 2}); };
  const auto again =
      run_op(23, "", "RotaryEmbedding", {wave({1, 3, 16}), in_three(cosines()), in_three(sines())}, heads);
  expect_start(again, y, 0);
}

TEST(RotaryEmbedding, NeighboursTurnAndTheRestStays) {
  // One head of 6, of which 4 turn.
  const dag::Tensor positions = from_list({dag::DType::I64, {1, 3}}, {0, 1, 2});
  const dag::Tensor x = wave({1, 1, 3, 6});
  const auto results = run_op(23, "", "RotaryEmbedding", {x, cosines(), sines(), positions}, [](Node& n) {
    attribute(n, "interleaved", int64_t{1});
    attribute(n, "rotary_embedding_dim", int64_t{4});
  });
  ASSERT_TRUE(results.has_value()) << results.error().message;
  Values expected = to_doubles(x);
  for (size_t i = 0; i < 3; ++i)
    for (size_t pair = 0; pair < 2; ++pair) {
      const double angle = static_cast<double>(i) * (pair == 0 ? 1.0 : 0.1);
      double &a = expected[i * 6 + 2 * pair], &b = expected[i * 6 + 2 * pair + 1];
      const double real = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = real;
    }
  expect_start(results, expected);
}

TEST(RotaryEmbedding, TablesOfAnglesAreNotTrained) {
  ModelMaker maker(23);
  maker.input("x", {1, 3, 16}).output("y");
  maker.weight("cos", {1, 3, 2});
  maker.weight("sin", {1, 3, 2});
  attribute(maker.node("RotaryEmbedding", {"x", "cos", "sin"}, {"y"}), "num_heads", int64_t{4});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  for (const auto& initializer : imported->graph.initializers())
    EXPECT_EQ(initializer.role, dag::InitializerRole::Buffer) << initializer.name;
}

}  // namespace
}  // namespace weft::onnx::testing
