// What is no causal model in parts, each with the op that is to blame and the reason.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>

#include "tests/incremental/compare.h"
#include "tests/incremental/net.h"

namespace weft::incremental::testing {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using V = Net::V;

constexpr int64_t kLength = 24, kWidth = 8;

struct Refusal {
  std::string name;
  std::string op, reason;                // words of the error
  std::function<V(Net& net, V x)> make;  // logits of x [1, length, width]
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

namespace {

V mask(Net& net, double seen, double hidden, const std::function<bool(int64_t row, int64_t key)>& sees) {
  return net.table(DType::F32, false, [&](int64_t i, int64_t j) { return sees(i, j) ? seen : hidden; });
}
bool is_causal(int64_t row, int64_t key) { return key <= row; }

V scores(Net& net, V x) { return net.matmul(net.linear(x, kWidth), net.linear(x, kWidth), false, true); }
V attend(Net& net, V x, V masked) {
  return net.add(x, net.matmul(net.softmax(masked, -1), net.linear(x, kWidth)));
}
V attend_with(Net& net, V x, double hidden, const std::function<bool(int64_t, int64_t)>& sees) {
  return attend(net, x, net.add(scores(net, x), mask(net, 0, hidden, sees)));
}
// x [1, T, W] as [1, W, T], through f, and back.
V along(Net& net, V x, const std::function<V(V)>& f) {
  return net.transpose(f(net.transpose(x, {0, 2, 1})), {0, 2, 1});
}

V convolve(Net& net, V x) {
  return along(net, x, [&](V y) {
    return net.op(OpKind::Conv, {y, net.weight({kWidth, kWidth, 3})},
                  {{Attr::Strides, Ints{1}},
                   {Attr::Dilations, Ints{1}},
                   {Attr::Pads, Ints{2, 0}},
                   {Attr::Groups, int64_t{1}}});
  });
}
V lstm(Net& net, V x) {
  const V steps = net.transpose(net.linear(x, 4 * kWidth), {1, 0, 2});
  const V y =
      net.ops(OpKind::Lstm, {steps, net.weight({4 * kWidth, kWidth})}, {{Attr::Reverse, int64_t{0}}})[0];
  return net.transpose(y, {1, 0, 2});
}
V cumulated(Net& net, V x) {
  return net.op(OpKind::CumSum, {x},
                {{Attr::Axis, int64_t{1}}, {Attr::Exclusive, int64_t{0}}, {Attr::Reverse, int64_t{0}}});
}
V linear_attention(Net& net, V x) {
  const V mixture = net.matmul(net.linear(x, kWidth), net.linear(x, kWidth), true, false);
  return net.add(x, net.matmul(net.linear(x, kWidth), mixture));
}
V pairs_by_distance(Net& net, V x) {
  const V y = net.linear(x, 1);
  const V apart = net.sub(y, net.transpose(y, {0, 2, 1}));
  return attend(net, x, net.add(apart, mask(net, 0, -1e9, is_causal)));
}
V reversed(Net& net, V x) { return net.add(x, net.slice(x, 1, kLength - 1, kLength, -1)); }
V shifted(Net& net, V x) {
  const V later = net.slice(x, 1, 1, kLength - 1);
  return net.concat({later, net.slice(x, 1, 0, 1)}, 1);
}
V folded(Net& net, V x) {
  return net.reshape(net.linear(net.reshape(x, {1, kLength / 2, 2 * kWidth}), 2 * kWidth),
                     {1, kLength, kWidth});
}
V with_unknown_mask(Net& net, V x) {
  return attend(net, x, net.add(scores(net, x), net.unknown_buffer({DType::F32, {kLength, kLength}})));
}
std::vector<Refusal> refusals() {
  const auto nothing_seen = [](int64_t row, int64_t key) { return key < row; };
  return {
      {"NoMask", "Softmax", "looks at later positions",
       [](Net& n, V x) { return attend(n, x, scores(n, x)); }},
      {"WeakMask", "Softmax", "no mask of -1e4 or less",
       [](Net& n, V x) { return attend_with(n, x, -100, is_causal); }},
      {"MaskThatForgetsOnePair", "Softmax", "looks at later positions",
       [](Net& n, V x) {
         return attend_with(n, x, -1e9, [](int64_t i, int64_t j) { return j <= i || (i == 3 && j == 20); });
       }},
      {"MaskTurnedRound", "Softmax", "looks at later positions",
       [](Net& n, V x) { return attend_with(n, x, -1e9, [](int64_t i, int64_t j) { return j >= i; }); }},
      {"MaskOfEverything", "Softmax", "looks at later positions",
       [](Net& n, V x) { return attend(n, x, n.add(scores(n, x), n.number(-1e9))); }},
      {"RowThatSeesNothing", "Softmax", "looks at later positions",
       [=](Net& n, V x) { return attend_with(n, x, -1e9, nothing_seen); }},
      {"RowThatSeesNothingByWhere", "Softmax", "looks at later positions",
       [=](Net& n, V x) {
         return attend(
             n, x, n.where(n.cast(mask(n, 1, 0, nothing_seen), DType::Bool), scores(n, x), n.number(-1e9)));
       }},
      {"NanInTheMask", "Softmax", "looks at later positions",
       [](Net& n, V x) { return attend_with(n, x, std::numeric_limits<double>::quiet_NaN(), is_causal); }},
      {"MaskAfterSoftmax", "Softmax", "looks at later positions",
       [](Net& n, V x) { return n.matmul(n.mul(n.softmax(scores(n, x), -1), mask(n, 1, 0, is_causal)), x); }},
      {"ValuesOverRows", "Softmax", "normalises over the positions that are computed",
       [](Net& n, V x) {
         const V weights = n.softmax(n.add(scores(n, x), mask(n, 0, -1e9, is_causal)), -1);
         return n.matmul(weights, n.linear(x, kWidth), true, false);
       }},
      {"Convolution", "Conv", "reaches over neighbouring positions", convolve},
      {"Recurrence", "Lstm", "goes along the sequence step by step", lstm},
      {"RunningSum", "CumSum", "goes along the sequence", cumulated},
      {"Mean", "ReduceMean", "reduces over the whole sequence",
       [](Net& n, V x) { return n.add(x, n.reduce(OpKind::ReduceMean, x, 1)); }},
      {"Largest", "ReduceMax", "reduces over the whole sequence",
       [](Net& n, V x) { return n.sub(x, n.reduce(OpKind::ReduceMax, x, 1)); }},
      {"NormalisedOverTime", "LayerNorm", "normalises over the whole sequence",
       [](Net& n, V x) { return along(n, x, [&](V y) { return n.layer_norm(y); }); }},
      {"Cut", "Slice", "cuts the sequence", shifted},
      {"Reversed", "Slice", "cuts the sequence", reversed},
      {"LastPosition", "Slice", "cuts the sequence",
       [](Net& n, V x) { return n.slice(x, 1, kLength - 1, 1); }},
      {"Padded", "Pad", "pads the sequence",
       [](Net& n, V x) {
         return n.op(OpKind::Pad, {x},
                     {{Attr::Pads, Ints{0, 1, 0, 0, -1, 0}}, {Attr::Mode, std::string("constant")}});
       }},
      {"Folded", "Reshape", "folds the sequence", folded},
      {"LinearAttention", "MatMul", "adds up over the whole sequence", linear_attention},
      {"PairsByElements", "Sub", "has the sequence in its result more than once", pairs_by_distance},
      {"MixedOverTime", "MatMul", "adds up over the whole sequence",
       [](Net& n, V x) { return along(n, x, [&](V y) { return n.linear(y, kLength); }); }},
      {"UnknownMask", "", "no value is known", with_unknown_mask},
  };
}

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, WithOpAndReason) {
  Net net(kLength, true, 5);
  const V x = net.add(net.gather(net.weight({11, kWidth}), net.tokens()), net.weight({kLength, kWidth}));
  const V y = GetParam().make(net, x);
  const Model model = net.finish(net.linear(y, 11));
  const auto made = derive(model);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::Unsupported) << made.error().message;
  EXPECT_EQ(made.error().message.rfind(GetParam().op, 0), 0u) << made.error().message;
  EXPECT_NE(made.error().message.find(GetParam().reason), std::string::npos) << made.error().message;
}
INSTANTIATE_TEST_SUITE_P(All, Refused, ::testing::ValuesIn(refusals()),
                         [](const auto& test) { return test.param.name; });

// The same model without the fault derives: what is refused above is refused for its fault.
TEST(Refused, NotWithoutAFault) {
  Net net(kLength, true, 5);
  const V x = net.gather(net.weight({11, kWidth}), net.tokens());
  const Model model = net.finish(net.linear(attend_with(net, x, -1e4, is_causal), 11));
  const auto made = derive(model);
  EXPECT_TRUE(made) << made.error().message;
}

Error error_of(const dag::TensorSpec& tokens, const std::string& input, const std::string& output) {
  dag::GraphBuilder builder(dag::op_table());
  const V in = builder.input("tokens", tokens);
  builder.output("logits", builder.add(OpKind::Cast, {in}, {{Attr::DType, static_cast<int64_t>(DType::F32)}}),
                 dag::OutputRole::Prediction);
  const auto graph = std::make_shared<const dag::Graph>(builder.finish());
  const auto made =
      dag::Incremental::derive(graph, dag::op_table(), {.tokens = input, .logits = output, .evaluate = {}});
  return made ? Error{ErrorCode::Internal, "it derives"} : made.error();
}

TEST(Refused, TokensThatAreNoSequence) {
  const auto message = [](const dag::TensorSpec& tokens) { return error_of(tokens, "tokens", "").message; };
  EXPECT_NE(message({DType::I64, {2, 8}}).find("wanted is one sequence"), std::string::npos);
  EXPECT_NE(message({DType::I64, {1, 1}}).find("wanted is one sequence"), std::string::npos);
  EXPECT_NE(message({DType::I64, {}}).find("wanted is one sequence"), std::string::npos);
  EXPECT_NE(message({DType::F32, {1, 8}}).find("no tokens"), std::string::npos);
}
TEST(Refused, NamesThatTheModelLacks) {
  EXPECT_EQ(error_of({DType::I64, {1, 8}}, "ids", "").code, ErrorCode::NotFound);
  EXPECT_EQ(error_of({DType::I64, {1, 8}}, "tokens", "scores").code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::incremental::testing
