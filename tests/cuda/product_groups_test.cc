// Products that take in their bias and activation: which ops join, which must not, and that the values are
// those of the ops one by one.
#include <gtest/gtest.h>

#include "dag/lower.h"
#include "peer/backend/cuda/coverage.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/run_graph.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {
namespace {

using dag::DType;
using dag::GraphBuilder;
using dag::OpKind;
using dag::OutputRole;
using dag::ValueId;

constexpr int64_t kRows = 12, kInner = 7, kColumns = 9;

enum class Activation { None, Relu, GeluTanh, GeluErf };

struct Made {
  dag::Graph graph;
  std::vector<dag::Tensor> inputs;
};

// activation(x w + bias); `bias_first`: as Add's first operand; `kept`: which value is an output as well, 0
// none, 1 the product, 2 the sum.
Made make(const dag::Shape& bias, Activation activation, bool bias_first = false, int kept = 0) {
  GraphBuilder builder(dag::op_table());
  const ValueId x = builder.input("x", {DType::F32, {2, kRows, kInner}}),
                w = builder.input("w", {DType::F32, {kInner, kColumns}}),
                b = builder.input("b", {DType::F32, bias});
  const ValueId product = builder.add(OpKind::MatMul, {x, w});
  const ValueId sum =
      bias_first ? builder.add(OpKind::Add, {b, product}) : builder.add(OpKind::Add, {product, b});
  ValueId y = sum;
  if (activation == Activation::Relu) y = builder.add(OpKind::Relu, {sum});
  if (activation == Activation::GeluTanh || activation == Activation::GeluErf)
    y = builder.add(OpKind::Gelu, {sum},
                    {{dag::Attr::Approximate, int64_t{activation == Activation::GeluTanh}}});
  if (kept == 1) builder.output("product", product, OutputRole::Prediction);
  if (kept == 2) builder.output("sum", sum, OutputRole::Prediction);
  builder.output("y", y, OutputRole::Prediction);
  return {
      builder.finish(),
      {random_tensor({2, kRows, kInner}, 1), random_tensor({kInner, kColumns}, 2), random_tensor(bias, 3)}};
}

size_t largest_group(const dag::Graph& graph) {
  size_t largest = 0;
  for (const GroupSignature& group : group_signatures(graph)) largest = std::max(largest, group.ops.size());
  return largest;
}

TEST(ProductGroups, TakeInBiasAndActivation) {
  for (const bool bias_first : {false, true})
    for (const auto& [activation, ops] :
         {std::pair{Activation::None, 2u}, {Activation::Relu, 3u}, {Activation::GeluTanh, 3u}}) {
      const Made made = make({kColumns}, activation, bias_first);
      const dag::Graph lowered = dag::lower(made.graph, dag::op_table(), cuda_traits());
      EXPECT_EQ(largest_group(lowered), ops);
      const auto backend = test::cuda_on_host(), reference = make_reference_backend();
      const auto expected = outputs_of(*reference, made.graph, made.inputs);
      const auto actual = outputs_of(*backend, lowered, made.inputs);
      EXPECT_LE(relative_error(actual[0], expected[0]), 2e-6);
      // Whoever has no such kernel runs the ops one after another.
      EXPECT_LE(relative_error(outputs_of(*reference, lowered, made.inputs)[0], expected[0]), 2e-6);
    }
}

TEST(ProductGroups, LeaveOutWhatTheyCannotHold) {
  const auto group_of = [](const Made& made) {
    const dag::Graph lowered = dag::lower(made.graph, dag::op_table(), cuda_traits());
    const auto backend = test::cuda_on_host();
    const auto expected = outputs_of(*make_reference_backend(), made.graph, made.inputs),
               actual = outputs_of(*backend, lowered, made.inputs);
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_LE(relative_error(actual[i], expected[i]), 2e-6);
    for (const GroupSignature& group : group_signatures(lowered))
      if (lowered.op(group.ops.front()).kind == OpKind::MatMul) return group.ops.size();
    return size_t{0};
  };
  EXPECT_EQ(group_of(make({kColumns}, Activation::GeluErf)), 2u) << "the library's Gelu is by tanh";
  EXPECT_EQ(group_of(make({kColumns}, Activation::Relu, false, 1)), 1u) << "somebody else reads the product";
  EXPECT_EQ(group_of(make({kColumns}, Activation::Relu, false, 2)), 2u) << "somebody else reads the sum";
  EXPECT_EQ(group_of(make({kRows, kColumns}, Activation::Relu)), 1u) << "a bias of its own for each row";
  EXPECT_EQ(group_of(make({kRows, 1}, Activation::Relu)), 1u) << "one a row";
  EXPECT_EQ(group_of(make({1}, Activation::Relu)), 1u) << "one for all";
}

TEST(ProductGroups, AreOfOnePart) {
  const Made made = make({kColumns}, Activation::Relu);
  std::vector<uint32_t> part_of_op(made.graph.ops().size(), 0);
  part_of_op.back() = 1;  // the Relu
  const dag::Lowered lowered = dag::lower_traced(made.graph, dag::op_table(), cuda_traits(), part_of_op);
  EXPECT_EQ(largest_group(lowered.graph), 2u);
}

TEST(ProductGroups, NobodyElseMakesThem) {
  const Made made = make({kColumns}, Activation::Relu);
  const dag::Graph lowered = dag::lower(made.graph, dag::op_table(), {.fuse_elementwise = true});
  EXPECT_EQ(largest_group(lowered), 2u) << "Add and Relu";
}

}  // namespace
}  // namespace weft::peer
