// Every op of the cuda backend against the reference, its kernels on the shim: in what order the threads of a
// block run and how late the streams are is drawn by seed.

#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/large_cases.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {
namespace {

using test::cuda_on_host;

void expect_close_to_reference(Backend& backend, const OpCase& op_case) {
  SCOPED_TRACE(op_case.name);
  const auto reference = make_reference_backend();
  std::string implementation;
  const std::vector<Tensor> actual = run_case(backend, op_case, &implementation),
                            expected = run_case(*reference, op_case);
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(relative_error(actual[i], expected[i]), op_case.tolerance)
        << "output " << i << " by " << implementation;
}

// What is compiled while a program runs is compiled for all cases at once, which is some hundred times
// faster.
void compile_all(const std::vector<OpCase>& cases) {
  const auto backend = cuda_on_host();
  for (const OpCase& op_case : cases) {
    const dag::OpCaseGraph made = dag::build_op_case(op_case);
    for (const GroupSignature& group : group_signatures(made.builder.graph()))
      EXPECT_TRUE(backend->make_kernel(made.builder.graph(), group).has_value()) << op_case.name;
  }
  ASSERT_TRUE(backend->prepare().has_value());
}

TEST(CudaOps, EveryCaseAgreesWithTheReference) {
  compile_all(dag::all_op_cases(1));
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto backend = cuda_on_host({.seed = seed});
    for (const OpCase& op_case : dag::all_op_cases(seed)) expect_close_to_reference(*backend, op_case);
  }
}

TEST(CudaOps, LargeShapesAgreeWithTheReference) {
  compile_all(large_cases());
  const auto backend = cuda_on_host();
  for (const OpCase& op_case : large_cases()) expect_close_to_reference(*backend, op_case);
}

TEST(CudaOps, BitsDoNotDependOnTheOrderOfThreads) {
  const auto one = cuda_on_host({.pace = test::HostDeviceOptions::Pace::Early, .seed = 11}),
             other = cuda_on_host({.pace = test::HostDeviceOptions::Pace::Late, .seed = 12});
  std::vector<OpCase> cases = dag::all_op_cases(4);
  for (OpCase& op_case : large_cases()) cases.push_back(std::move(op_case));
  compile_all(cases);
  for (const OpCase& op_case : cases) {
    SCOPED_TRACE(op_case.name);
    const std::vector<Tensor> a = run_case(*one, op_case), b = run_case(*other, op_case);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bytes(a[i], b[i])) << "output " << i;
  }
}

// What would be slow if it fell back to the host unnoticed.
TEST(CudaOps, CommonOpsHaveKernelsOfTheirOwn) {
  const auto backend = cuda_on_host();
  for (const OpCase& op_case : large_cases()) {
    std::string implementation;
    run_case(*backend, op_case, &implementation);
    EXPECT_NE(implementation, "reference") << op_case.name;
  }
}

TEST(CudaOps, ProductsAndConvolutionsInOtherArithmetic) {
  const auto backend = cuda_on_host(), reference = make_reference_backend();
  for (const OpCase& op_case : large_cases()) {
    if (op_case.kind != OpKind::MatMul && op_case.kind != OpKind::Conv &&
        op_case.kind != OpKind::ConvGradInput && op_case.kind != OpKind::ConvGradWeight)
      continue;
    SCOPED_TRACE(op_case.name);
    const std::vector<Tensor> expected = run_case(*reference, op_case);
    for (const auto& [arithmetic, tolerance] :
         {std::pair{Arithmetic::TF32, 2e-3}, {Arithmetic::BF16, 1.5e-2}}) {
      const std::vector<Tensor> actual = run_case(*backend, op_case, nullptr, {.compute = arithmetic});
      const double error = relative_error(actual[0], expected[0]);
      EXPECT_LE(error, tolerance) << to_string(arithmetic);
      EXPECT_GT(error, 1e-6) << to_string(arithmetic) << ": nothing was rounded";
    }
  }
}

}  // namespace
}  // namespace weft::peer
