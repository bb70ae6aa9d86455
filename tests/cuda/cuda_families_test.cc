// Two steps of a small form of families of torchvision's models on the cuda backend, over a HostDevice,
// against PyTorch's losses. The quick ones; WEFT_LONG=1: all.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dag/lower.h"
#include "tests/cuda/backend_on_host.h"
#include "tests/graphs/kernels_agree.h"
#include "tests/peer/stage_runner.h"
#include "tests/train/family_steps.h"

namespace weft {
namespace {

std::vector<std::string> chosen() {
  if (std::getenv("WEFT_LONG") != nullptr) return families();
  return {"mobilenet_v3", "swin"};
}

class CudaFamilies : public testing::TestWithParam<std::string> {};

TEST_P(CudaFamilies, TwoStepsAsPyTorch) {
  const auto backend = test::cuda_on_host({.pace = test::HostDeviceOptions::Pace::Early});
  expect_near_pytorch(GetParam(), two_family_steps(GetParam(), *backend));
}

TEST_P(CudaFamilies, EachKernelAgreesWithTheReference) {
  const test::Model model = family(GetParam());
  const auto backend = test::cuda_on_host();
  const dag::Graph graph = dag::lower(model.graph, dag::op_table(), backend->traits());
  peer::GraphRun run(*backend, graph);
  run.run(peer::leaves_of(graph, model), peer::kContext);
  peer::expect_kernels_agree(graph, run);
}

INSTANTIATE_TEST_SUITE_P(Torchvision, CudaFamilies, testing::ValuesIn(chosen()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace weft
