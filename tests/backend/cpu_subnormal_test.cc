// Subnormal numbers count as zero in every kernel and on every thread, and only while kernels run.
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::DType;
using dag::GraphBuilder;
using dag::OpKind;
using dag::OutputRole;
using dag::Tensor;
using dag::ValueId;

Tensor filled(dag::Shape shape, float value) {
  Tensor tensor(dag::TensorSpec{DType::F32, std::move(shape)});
  for (float& v : tensor.mutable_as<float>()) v = value;
  return tensor;
}

// This thread's own arithmetic, which no compiler folds.
bool keeps_subnormals() {
  volatile float small = 1e-30f, factor = 1e-10f;
  return small * factor > 0;
}

Tensor result_of(Backend& backend, OpKind kind, const std::vector<Tensor>& inputs,
                 dag::Attributes attributes = {}) {
  GraphBuilder b(dag::op_table());
  std::vector<ValueId> operands;
  for (const Tensor& tensor : inputs)
    operands.push_back(b.input("x" + std::to_string(operands.size()), tensor.spec()));
  b.output("y", b.add(kind, operands, std::move(attributes)), OutputRole::Prediction);
  const dag::Graph graph = b.finish();
  GraphRun run(backend, graph);
  run.run(inputs);
  return run.value(graph.outputs()[0].value);
}

void expect_all(const Tensor& tensor, float value, const char* what) {
  for (const float v : tensor.as<float>()) ASSERT_EQ(v, value) << what;
}

TEST(CpuSubnormals, AreZeroOnEveryThreadAndLeaveTheCallerAlone) {
#ifndef __SSE2__
  GTEST_SKIP() << "flushed on x86-64 alone";
#endif
  for (const int threads : {1, 2, 5}) {
    const auto backend = cpu(threads);
    ASSERT_NE(backend->numerics_fingerprint().find("flush-subnormals"), std::string::npos);
    const dag::Shape large{64, 4096};
    // Written: a product below the normal range. Read: an operand that is there already.
    expect_all(result_of(*backend, OpKind::Mul, {filled(large, 1e-30f), filled(large, 1e-10f)}), 0,
               "product");
    expect_all(result_of(*backend, OpKind::Mul, {filled(large, 1e-40f), filled(large, 1e10f)}), 0, "operand");
    expect_all(result_of(*backend, OpKind::MatMul, {filled({96, 300}, 1e-40f), filled({300, 512}, 1e5f)}), 0,
               "matrix product");
    const dag::Attributes conv{{Attr::Strides, dag::Ints{1, 1}},
                               {Attr::Pads, dag::Ints{1, 1, 1, 1}},
                               {Attr::Dilations, dag::Ints{1, 1}},
                               {Attr::Groups, int64_t{1}}};
    expect_all(result_of(*backend, OpKind::Conv,
                         {filled({8, 16, 9, 9}, 1e-40f), filled({16, 16, 3, 3}, 1e5f)}, conv),
               0, "convolution");
    EXPECT_TRUE(keeps_subnormals()) << threads << " threads";
  }
}

TEST(CpuSubnormals, AreZeroInTheOptimizersSlots) {
#ifndef __SSE2__
  GTEST_SKIP() << "flushed on x86-64 alone";
#endif
  const auto backend = cpu(3);
  const dag::TensorSpec spec{DType::F32, {300'000}};
  std::vector<std::unique_ptr<Memory>> memory;
  const auto uploaded = [&](float value) -> View {
    memory.push_back(std::move(*backend->allocate(spec.bytes())));
    EXPECT_TRUE(
        backend->upload(filled(spec.shape, value), {memory.back().get(), 0}, dag::Layout::Plain).has_value());
    return {memory.back().get(), 0};
  };
  dag::OptimizerSpec adam;
  adam.type = dag::OptimizerType::Adam;
  const ParameterUpdate update{spec, uploaded(1), uploaded(0), {uploaded(1.2e-38f), uploaded(1.2e-38f)}};
  ASSERT_TRUE(backend->update(adam, {.step = 9, .learning_rate = 0.1, .gradient_scale = 1}, {&update, 1})
                  .has_value());
  expect_all(*backend->download(update.slots[0], spec, dag::Layout::Plain), 0, "first moment");
  EXPECT_TRUE(keeps_subnormals());
}

}  // namespace
}  // namespace weft::peer
