// The reference backend: storage, groups, update rules; and what its kernels do with values from outside.
#include "peer/backend/reference/reference_backend.h"
#include "dag/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/dag/op_cases.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using dag::TensorSpec;
using dag::ValueId;

Tensor floats(const Shape& shape, const std::vector<double>& values) {
  return dag::from_doubles({DType::F32, shape}, values);
}
Tensor wholes(const Shape& shape, const std::vector<int64_t>& values) {
  return dag::from_int64s({DType::I64, shape}, values);
}

// One op over host tensors.
std::vector<Tensor> fold(OpKind kind, const std::vector<std::optional<Tensor>>& inputs,
                         Attributes attributes = {}) {
  const dag::OpCaseGraph made = dag::build_op_case({.name = "fold",
                                                    .kind = kind,
                                                    .attributes = std::move(attributes),
                                                    .inputs = inputs,
                                                    .no_gradient = {}});
  const dag::Graph& graph = made.builder.graph();
  std::vector<const Tensor*> operands;
  for (const auto& input : inputs) operands.push_back(input ? &*input : nullptr);
  std::vector<TensorSpec> outputs;
  for (const ValueId output : made.outputs) outputs.push_back(graph.spec(output));
  auto result = evaluate_reference(graph.ops().back(), operands, outputs);
  EXPECT_TRUE(result.has_value());
  return result ? *result : std::vector<Tensor>{};
}

struct Block {
  std::unique_ptr<Memory> memory;
  View view() const { return {memory.get(), 0}; }
};
Block block_of(Backend& backend, const TensorSpec& spec) {
  auto memory = backend.allocate(backend.storage_bytes(spec, dag::Layout::Plain));
  EXPECT_TRUE(memory.has_value());
  return {std::move(*memory)};
}
Block uploaded(Backend& backend, const Tensor& tensor) {
  Block block = block_of(backend, tensor.spec());
  EXPECT_TRUE(backend.upload(tensor, block.view(), dag::Layout::Plain).has_value());
  return block;
}
std::vector<double> downloaded(Backend& backend, const Block& block, const TensorSpec& spec) {
  return dag::to_doubles(*backend.download(block.view(), spec, dag::Layout::Plain));
}

TEST(ReferenceBackend, EveryDTypeComesBackAsItWent) {
  const auto backend = make_reference_backend();
  for (int i = 0; i <= static_cast<int>(DType::Bool); ++i) {
    const TensorSpec spec{static_cast<DType>(i), {2, 2}};
    const Tensor tensor = dag::from_int64s(spec, std::vector<int64_t>{0, 1, 1, 0});
    const Block block = uploaded(*backend, tensor);
    const auto back = backend->download(block.view(), spec, dag::Layout::Plain);
    ASSERT_TRUE(back.has_value());
    EXPECT_TRUE(std::ranges::equal(back->bytes(), tensor.bytes())) << to_string(spec);
  }
}

TEST(ReferenceBackend, TooMuchMemoryIsAnError) {
  const auto memory = make_reference_backend()->allocate({int64_t{1} << 60});
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().code, ErrorCode::ResourceExhausted);
}

TEST(ReferenceBackend, AGroupKeepsItsTemporariesInside) {
  // y = exp(x) * 2 + exp(x), as one group with a constant inside; a view at an offset.
  dag::GraphBuilder builder(dag::op_table());
  const TensorSpec spec{DType::F32, {3}};
  const ValueId x = builder.input("x", spec);
  const ValueId e = builder.add(OpKind::Exp, {x});
  const ValueId two = builder.scalar(DType::F32, 2);
  const ValueId twice = builder.add(OpKind::Mul, {e, two});
  const ValueId y = builder.add(OpKind::Add, {twice, e});
  const dag::Graph graph = builder.finish();
  GroupSignature group;
  for (const ValueId value : {e, two, twice, y}) group.ops.push_back(graph.value(value).producer);
  group.inputs = {x};
  group.outputs = {y};

  const auto backend = make_reference_backend();
  auto kernel = backend->make_kernel(graph, group);
  ASSERT_TRUE(kernel.has_value());
  const auto memory = backend->allocate({backend->alignment() * 2});
  const View in{memory->get(), 0}, out{memory->get(), backend->alignment()};
  ASSERT_TRUE(backend->upload(floats({3}, {0, 1, -1}), in, dag::Layout::Plain).has_value());
  ASSERT_TRUE((*kernel)->run(std::vector{in}, std::vector{out}, {}, {}).has_value());
  const auto values = dag::to_doubles(*backend->download(out, spec, dag::Layout::Plain));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_FLOAT_EQ(static_cast<float>(values[i]),
                    static_cast<float>(3 * std::exp(std::vector{0, 1, -1}[i])));
}

TEST(ReferenceBackend, LeavesAreNotKernels) {
  dag::GraphBuilder builder(dag::op_table());
  const ValueId x = builder.input("x", {DType::F32, {3}});
  const dag::Graph graph = builder.finish();
  const auto kernel = make_reference_backend()->make_kernel(graph, {{graph.value(x).producer}, {}, {x}});
  ASSERT_FALSE(kernel.has_value());
  EXPECT_EQ(kernel.error().code, ErrorCode::Unsupported);
}

TEST(ReferenceBackend, AccumulatesZeroesCopiesAndSquares) {
  const auto backend = make_reference_backend();
  const TensorSpec spec{DType::F32, {3}};
  const Block a = uploaded(*backend, floats({3}, {1, 2, 3})), b = uploaded(*backend, floats({3}, {4, 5, 6}));
  ASSERT_TRUE(backend->accumulate(a.view(), b.view(), spec).has_value());
  EXPECT_EQ(downloaded(*backend, b, spec), (std::vector<double>{5, 7, 9}));
  const TensorView both[] = {{b.view(), spec}, {a.view(), spec}};
  EXPECT_EQ(*backend->sums_of_squares(both), (std::vector<double>{25 + 49 + 81, 1 + 4 + 9}));
  ASSERT_TRUE(backend->copy(a.view(), b.view(), spec).has_value());
  EXPECT_EQ(downloaded(*backend, b, spec), (std::vector<double>{1, 2, 3}));
  ASSERT_TRUE(backend->fill_zero(b.view(), spec).has_value());
  EXPECT_EQ(downloaded(*backend, b, spec), (std::vector<double>{0, 0, 0}));
}

// Two steps on one F64 parameter with gradients 0.5 and -0.25. The expected numbers are PyTorch's.
double after_two_steps(const dag::OptimizerSpec& optimizer) {
  const auto backend = make_reference_backend();
  const TensorSpec spec{DType::F64, {1}};
  const auto scalar = [&](double value) {
    return uploaded(*backend, dag::from_doubles(spec, std::vector{value}));
  };
  const Block parameter = scalar(2);
  std::vector<Block> slots;
  std::vector<View> views;
  for (size_t i = 0; i < dag::optimizer_slots(optimizer).size(); ++i)
    views.push_back(slots.emplace_back(scalar(0)).view());
  for (uint64_t step = 1; step <= 2; ++step) {
    const Block gradient = scalar(step == 1 ? 1.0 : -0.5);
    const dag::UpdateStep at{.step = step, .learning_rate = optimizer.learning_rate, .gradient_scale = 0.5};
    const ParameterUpdate update{spec, parameter.view(), gradient.view(), views};
    EXPECT_TRUE(backend->update(optimizer, at, {&update, 1}).has_value());
  }
  return downloaded(*backend, parameter, spec)[0];
}

TEST(ReferenceUpdate, Sgd) {
  EXPECT_NEAR(after_two_steps({.type = dag::OptimizerType::Sgd, .learning_rate = 0.1}), 1.9749999999999999,
              1e-13);
  EXPECT_NEAR(after_two_steps({.type = dag::OptimizerType::Sgd,
                               .learning_rate = 0.1,
                               .weight_decay = 0.01,
                               .momentum = 0.9,
                               .dampening = 0.2}),
              1.9196416, 1e-13);
  EXPECT_NEAR(after_two_steps({.type = dag::OptimizerType::Sgd,
                               .learning_rate = 0.1,
                               .weight_decay = 0.01,
                               .momentum = 0.9,
                               .nesterov = true}),
              1.90296772, 1e-13);
}

TEST(ReferenceUpdate, AdamAndAdamW) {
  EXPECT_NEAR(after_two_steps({.type = dag::OptimizerType::Adam, .learning_rate = 0.1, .weight_decay = 0.01}),
              1.8689922487277597, 1e-13);
  EXPECT_NEAR(
      after_two_steps({.type = dag::OptimizerType::AdamW, .learning_rate = 0.1, .weight_decay = 0.01}),
      1.8694682987058464, 1e-13);
}

TEST(ReferenceKernels, CastsRoundAsTheirDTypeDoes) {
  const auto cast = [](double value, DType dtype) {
    const auto to = [](const Tensor& x, DType d) {
      return fold(OpKind::Cast, {x}, {{Attr::DType, static_cast<int64_t>(d)}})[0];
    };
    return dag::to_doubles(
        to(to(dag::from_doubles({DType::F64, {1}}, std::vector{value}), dtype), DType::F64))[0];
  };
  EXPECT_EQ(cast(1.0 + 0x1p-24, DType::F32), 1.0);
  EXPECT_EQ(cast(1.0 + 0x1p-11, DType::F16), 1.0);
  EXPECT_EQ(cast(1.0 + 3 * 0x1p-11, DType::F16), 1.0 + 0x1p-9);
  EXPECT_EQ(cast(1.0 + 0x1p-8, DType::BF16), 1.0);
  EXPECT_EQ(cast(-3.9, DType::I32), -3);
  EXPECT_EQ(cast(1e30, DType::I8), 127);
  EXPECT_EQ(cast(std::nan(""), DType::I64), 0);
  EXPECT_EQ(cast(0.3, DType::Bool), 1);
}

TEST(ReferenceKernels, IntegersWrapAndNeverTrap) {
  const int64_t low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(dag::to_int64s(fold(OpKind::Div, {wholes({3}, {low, 5, -7}), wholes({3}, {-1, 0, 2})})[0]),
            (std::vector<int64_t>{low, 0, -3}));
  EXPECT_EQ(dag::to_int64s(fold(OpKind::Mod, {wholes({4}, {low, 5, -7, 7}), wholes({4}, {-1, 0, 3, -3})})[0]),
            (std::vector<int64_t>{0, 0, 2, -2}));
  EXPECT_EQ(dag::to_int64s(fold(OpKind::Neg, {wholes({1}, {low})})[0])[0], low);
  EXPECT_EQ(dag::to_int64s(fold(OpKind::Add, {wholes({1}, {low}), wholes({1}, {-1})})[0])[0],
            std::numeric_limits<int64_t>::max());
}

TEST(ReferenceKernels, IndicesOutOfRangeReadNothing) {
  const auto rows = dag::to_doubles(fold(
      OpKind::Gather, {floats({2}, {1, 2}), wholes({4}, {1, -2, 2, std::numeric_limits<int64_t>::min()})},
      {{Attr::Axis, 0}})[0]);
  EXPECT_EQ(rows[0], 2);
  EXPECT_EQ(rows[1], 1);
  EXPECT_TRUE(std::isnan(rows[2]) && std::isnan(rows[3]));
  EXPECT_EQ(
      dag::to_int64s(fold(OpKind::Gather, {wholes({2}, {1, 2}), wholes({1}, {7})}, {{Attr::Axis, 0}})[0])[0],
      0);
  EXPECT_EQ(dag::to_doubles(fold(OpKind::GatherGrad, {floats({2}, {1, 2}), wholes({2}, {9, 1})},
                                 {{Attr::Axis, 0}, {Attr::Shape, Ints{2}}})[0]),
            (std::vector<double>{0, 2}));
  const Tensor places = dag::from_int64s({DType::I32, {1, 1, 3}}, std::vector<int64_t>{-1, 99, 1});
  EXPECT_EQ(dag::to_doubles(fold(OpKind::MaxPoolGrad, {floats({1, 1, 3}, {1, 2, 3}), places},
                                 {{Attr::Shape, Ints{1, 1, 2}}})[0]),
            (std::vector<double>{0, 3}));
}

TEST(ReferenceKernels, CrossEntropyOfALabelWithoutAClassIsNaN) {
  const Attributes attributes{{Attr::Axis, 1}, {Attr::Reduction, "none"}, {Attr::IgnoreIndex, -100}};
  const auto loss = dag::to_doubles(fold(
      OpKind::CrossEntropy, {floats({3, 2}, {0, 0, 0, 0, 0, 0}), wholes({3}, {1, 2, -100})}, attributes)[0]);
  EXPECT_NEAR(loss[0], std::log(2), 1e-7);
  EXPECT_TRUE(std::isnan(loss[1]));
  EXPECT_EQ(loss[2], 0);
}

TEST(ReferenceKernels, SoftmaxOfNothingIsNaNAndAMaskedEntryIsZero) {
  const double none = -std::numeric_limits<double>::infinity();
  const auto y =
      dag::to_doubles(fold(OpKind::Softmax, {floats({2, 2}, {none, none, none, 1})}, {{Attr::Axis, 1}})[0]);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 1);
}

TEST(ReferenceKernels, DropoutOfABatchIsThatOfItsMicrobatches) {
  const auto run = [](int64_t samples, int64_t position) {
    const dag::OpCase op_case{.name = "dropout",
                              .kind = OpKind::Dropout,
                              .attributes = {{Attr::Ratio, 0.4}, {Attr::Key, 3}},
                              .inputs = {Tensor({DType::F32, {samples, 7}})},
                              .no_gradient = {}};
    const dag::OpCaseGraph made = dag::build_op_case(op_case);
    const TensorSpec spec{DType::F32, {samples, 7}};
    const RefValue x{spec, std::vector<double>(static_cast<size_t>(samples * 7), 1.0), {}};
    std::vector<RefValue> y{{spec, {}, {}}};
    const RefValue* operand = &x;
    EXPECT_TRUE(
        run_reference_op(made.builder.graph().ops().back(), {&operand, 1}, y,
                         {.seed = 11, .step = 5, .sample_position = position, .microbatch_size = samples})
            .has_value());
    return y[0].reals;
  };
  const auto whole = run(6, 0);
  auto parts = run(2, 0);
  for (const int64_t position : {2, 4})
    for (const double value : run(2, position)) parts.push_back(value);
  EXPECT_EQ(whole, parts);
  EXPECT_GT(std::count(whole.begin(), whole.end(), 0.0), 0);
  EXPECT_LT(std::count(whole.begin(), whole.end(), 0.0), 42);
}

// What leads with the microbatch is drawn by place in the batch, everything else once a step.
TEST(ReferenceKernels, DrawsFollowTheBatchOrTheStep) {
  const auto run = [](OpKind kind, const Shape& shape, int64_t samples, int64_t position, uint64_t step) {
    dag::Op op;
    op.kind = kind;
    op.attributes = {{Attr::Shape, shape}, {Attr::Key, 3}};
    const RefValue zero{{DType::F32, {}}, {0.0}, {}}, one{{DType::F32, {}}, {1.0}, {}};
    const RefValue* operands[] = {&zero, &one};
    std::vector<RefValue> y{{{DType::F32, shape}, {}, {}}};
    EXPECT_TRUE(
        run_reference_op(op, operands, y,
                         {.seed = 11, .step = step, .sample_position = position, .microbatch_size = samples})
            .has_value());
    return y[0].reals;
  };
  for (const OpKind kind : {OpKind::RandomUniform, OpKind::RandomNormal}) {
    const auto whole = run(kind, {6, 7}, 6, 0, 5);
    auto parts = run(kind, {2, 7}, 2, 0, 5);
    for (const int64_t position : {2, 4})
      for (const double value : run(kind, {2, 7}, 2, position, 5)) parts.push_back(value);
    EXPECT_EQ(whole, parts);
    EXPECT_NE(whole, run(kind, {6, 7}, 6, 0, 6));
    EXPECT_EQ(run(kind, {3, 7}, 2, 0, 5), run(kind, {3, 7}, 2, 4, 5));
    EXPECT_NE(run(kind, {3, 7}, 2, 0, 5), run(kind, {3, 7}, 2, 0, 6));
    EXPECT_EQ(run(kind, {}, 1, 0, 5), run(kind, {}, 1, 3, 5));
  }
}

TEST(ReferenceKernels, AFoldBeyondTheLimitIsRefusedBeforeMemoryIsTaken) {
  dag::Op op;
  op.kind = OpKind::Expand;
  op.attributes = {{Attr::Shape, Ints{int64_t{1} << 39}}};
  const Tensor x = floats({1}, {1});
  const Tensor* operand = &x;
  const TensorSpec huge{DType::F32, {int64_t{1} << 39}};
  const auto result = evaluate_reference(op, {&operand, 1}, {&huge, 1});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::ResourceExhausted);
}

}  // namespace
}  // namespace weft::peer
