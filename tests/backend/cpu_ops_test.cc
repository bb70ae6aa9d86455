// Every op of the cpu backend against the reference, and against itself with other numbers of threads.

#include <limits>

#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"
#include "tests/backend/large_cases.h"

namespace weft::peer {
namespace {

void expect_close_to_reference(const OpCase& op_case) {
  SCOPED_TRACE(op_case.name);
  const auto backend = cpu(2), reference = make_reference_backend();
  std::string implementation;
  const std::vector<Tensor> actual = run_case(*backend, op_case, &implementation),
                            expected = run_case(*reference, op_case);
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(relative_error(actual[i], expected[i]), op_case.tolerance)
        << "output " << i << " by " << implementation;
}

TEST(CpuOps, EveryCaseAgreesWithTheReference) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (const OpCase& op_case : dag::all_op_cases(seed)) expect_close_to_reference(op_case);
  }
}

TEST(CpuOps, LargeShapesAgreeWithTheReference) {
  for (const OpCase& op_case : large_cases()) expect_close_to_reference(op_case);
}

TEST(CpuOps, BitsDoNotDependOnTheNumberOfThreads) {
  std::vector<OpCase> cases = dag::all_op_cases(4);
  for (OpCase& op_case : large_cases()) cases.push_back(std::move(op_case));
  const auto one = cpu(1);
  for (const OpCase& op_case : cases) {
    SCOPED_TRACE(op_case.name);
    const std::vector<Tensor> expected = run_case(*one, op_case);
    for (const int threads : {2, 3, 5}) {
      const auto other = cpu(threads);
      const std::vector<Tensor> actual = run_case(*other, op_case);
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_TRUE(same_bytes(actual[i], expected[i])) << threads << " threads, output " << i;
    }
  }
}

// What would be slow if it fell through to the reference unnoticed.
TEST(CpuOps, CommonOpsHaveKernelsOfTheirOwn) {
  const auto backend = cpu(1);
  for (const OpCase& op_case : large_cases()) {
    std::string implementation;
    run_case(*backend, op_case, &implementation);
    EXPECT_NE(implementation, "reference") << op_case.name;
  }
}

TEST(CpuOps, HalvesAndBytesHaveKernelsOfTheirOwn) {
  const auto backend = cpu(1);
  for (const OpCase& op_case : dag::all_op_cases(1)) {
    const bool concerns = op_case.kind == OpKind::RoundToHalf || op_case.kind == OpKind::IntegerMatMul ||
                          op_case.kind == OpKind::IntegerConv;
    if (!concerns) continue;
    std::string implementation;
    run_case(*backend, op_case, &implementation);
    EXPECT_NE(implementation, "reference") << op_case.name;
  }
}

TEST(CpuOps, DoubleGraphsGoThroughTheReference) {
  const Tensor x = dag::from_doubles({DType::F64, {2}}, std::vector<double>{1e-300, 3});
  const OpCase op_case{
      .name = "f64", .kind = OpKind::Sqrt, .attributes = {}, .inputs = {x}, .no_gradient = {}};
  EXPECT_EQ(dag::to_doubles(run_case(*cpu(1), op_case)[0])[0], 1e-150);
}

TEST(CpuOps, SoftmaxSurvivesMaskedEntriesAndRows) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{0, -inf, 0, -inf, -inf, -inf};
  const Tensor tensor = dag::make_tensor({2, 3}, std::span<const float>(x));
  const OpCase op_case{.name = "mask",
                       .kind = OpKind::Softmax,
                       .attributes = {{Attr::Axis, int64_t{1}}},
                       .inputs = {tensor},
                       .no_gradient = {}};
  const std::vector<double> y = dag::to_doubles(run_case(*cpu(1), op_case)[0]);
  EXPECT_EQ(y[0], 0.5);
  EXPECT_EQ(y[1], 0);
  for (size_t i = 3; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
}

}  // namespace
}  // namespace weft::peer
