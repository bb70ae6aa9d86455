// Random graphs on the cuda backend, over a HostDevice whose streams are late or early by the seed: each
// kernel, and what the host computes between them, against the reference's arithmetic; the executor, and
// stages, against kernels run one by one: the same bits.
//
// WEFT_GRAPH_SEEDS=N tries seeds 1 to N; WEFT_GRAPH_SEED=S only that one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "tests/cuda/backend_on_host.h"
#include "tests/graphs/kernels_agree.h"
#include "tests/graphs/random_graph.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/cuts.h"

namespace weft::peer {
namespace {

void expect_outputs(const dag::Graph& graph, GraphRun& run, const std::map<std::string, Tensor>& whole) {
  for (const auto& output : graph.outputs()) {
    if (output.role == OutputRole::Prediction) continue;
    const char* role = output.role == OutputRole::Gradient      ? "gradient "
                       : output.role == OutputRole::StateUpdate ? "state "
                                                                : "";
    EXPECT_TRUE(same_bytes(run.value(output.value), whole.at(role + output.name)))
        << role << output.name << ": the executor differs from its kernels run one by one";
  }
}

void check(uint64_t seed) {
  SCOPED_TRACE("WEFT_GRAPH_SEED=" + std::to_string(seed));
  const test::Model model = test::random_graph(seed);
  const auto differentiated = dag::differentiate(model.graph, dag::op_table());
  ASSERT_TRUE(differentiated.has_value()) << differentiated.error().message;
  const auto backend = test::cuda_on_host({.seed = seed});
  dag::BackendTraits traits = backend->traits();
  traits.fuse_elementwise = seed % 3 != 0;
  const Graph graph = dag::lower(*differentiated, dag::op_table(), traits);
  GraphRun run(*backend, graph);
  run.run(leaves_of(graph, model), kContext);
  if (testing::Test::HasFatalFailure()) return;
  expect_kernels_agree(graph, run);
  const auto whole = run_whole(graph, *backend, model);
  expect_outputs(graph, run, whole);

  SCOPED_TRACE("pieces against the whole");
  Rng rng(seed, 97);
  const auto stages = test::random_stages(graph, 2 + static_cast<uint32_t>(rng.below(2)), rng, false);
  const uint32_t count = *std::max_element(stages.begin(), stages.end()) + 1;
  const auto split = dag::split(graph, stages, count, dag::op_table());
  if (count > 1 && split) expect_same_bits(whole, run_split(*split, *backend, model));
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(CudaGraphs, RandomGraphsKeepTheirLaws) {
  if (const uint64_t one = number("WEFT_GRAPH_SEED", 0)) return check(one);
  const uint64_t count = number("WEFT_GRAPH_SEEDS", 20);
  for (uint64_t seed = 1; seed <= count; ++seed) {
    check(seed);
    if (HasFailure()) FAIL() << "at seed " << seed << " of " << count;
  }
}

}  // namespace
}  // namespace weft::peer
