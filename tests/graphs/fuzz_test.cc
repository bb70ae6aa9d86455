// Random graphs through all that a job goes through: differentiate, send, lower, plan memory, run, split.
// Every kernel of the cpu backend against the reference's arithmetic on the very same operands; the executor
// against kernels run one by one; threads, and pieces, against the whole: the same bits.
//
// WEFT_GRAPH_SEEDS=N tries seeds 1 to N; WEFT_GRAPH_SEED=S only that one.
#include <cstdlib>
#include <set>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/text.h"
#include "plan/model.h"
#include "proto/codec/codec.h"
#include "tests/backend/cpu.h"
#include "tests/graphs/graph_to_onnx.h"
#include "tests/graphs/kernels_agree.h"
#include "tests/graphs/random_graph.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/cuts.h"

namespace weft::peer {
namespace {

using dag::Layout;

static_assert(test::kRandomGraphBatch == kContext.microbatch_size);

void expect_travels(const Graph& graph) {
  const auto decoded = proto::decode_graph(proto::encode_graph(graph));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(dag::to_text(*decoded), dag::to_text(graph));
}

void expect_pieces_equal_whole(const Graph& graph, Backend& backend, const test::Model& model, uint64_t seed,
                               const std::map<std::string, Tensor>& whole) {
  Rng rng(seed, 99);
  auto stages = test::random_stages(graph, 2 + static_cast<uint32_t>(rng.below(3)), rng, rng.below(2) == 0);
  if (rng.below(2) == 0)
    stages = dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, std::move(stages));
  const uint32_t count = *std::max_element(stages.begin(), stages.end()) + 1;
  if (count < 2) return;
  const auto split = dag::split(graph, stages, count, dag::op_table());
  if (!split) {  // the repair of fusion groups may empty a stage
    EXPECT_NE(split.error().message.find("has no ops"), std::string::npos) << split.error().message;
    return;
  }
  expect_same_bits(whole, run_split(*split, backend, model));
  const dag::Split again = test::recomputed(*split, [](uint32_t) { return true; });
  for (const dag::StageGraph& stage : again.stages) expect_travels(stage.graph);
  expect_same_bits(whole, run_split(again, backend, model));
}

void check_lowered(const Graph& differentiated, Layout layout, const test::Model& model, uint64_t seed) {
  SCOPED_TRACE("layout " + std::string(to_string(layout)));
  const Graph graph = dag::lower(differentiated, dag::op_table(),
                                 {.fuse_elementwise = seed % 4 != 0, .convolution_layout = layout});
  expect_travels(graph);
  const auto one = cpu(1), three = cpu(3);
  GraphRun run(*one, graph);
  run.run(leaves_of(graph, model), kContext);
  if (testing::Test::HasFatalFailure()) return;
  expect_kernels_agree(graph, run);
  const auto whole = run_whole(graph, *one, model);
  for (const auto& output : graph.outputs()) {
    if (output.role == OutputRole::Prediction) continue;
    const char* role = output.role == OutputRole::Gradient      ? "gradient "
                       : output.role == OutputRole::StateUpdate ? "state "
                                                                : "";
    EXPECT_TRUE(same_bytes(run.value(output.value), whole.at(role + output.name)))
        << role << output.name << ": the executor differs from its kernels run one by one";
  }
  {
    SCOPED_TRACE("three threads against one");
    expect_same_bits(whole, run_whole(graph, *three, model));
  }
  SCOPED_TRACE("pieces against the whole");
  expect_pieces_equal_whole(graph, *one, model, seed, whole);
}

// Cut between the planner's positions, before lowering: stages of one class give the bits of the whole; of
// two, and with one stage lowered anew for the other class, everything is carried and run. (How near they
// come is not asked here: a random graph may amplify rounding without bound.)
void expect_classes_work(const Graph& graph, const test::Model& model, uint64_t seed) {
  SCOPED_TRACE("classes");
  Rng rng(seed, 98);
  const dag::BackendTraits traits[] = {
      {.fuse_elementwise = true, .convolution_layout = seed % 3 == 0 ? Layout::Blocked16 : Layout::Blocked8},
      {.fuse_elementwise = seed % 4 == 0, .convolution_layout = Layout::Plain}};
  std::vector<std::shared_ptr<const dag::Lowered>> lowered;
  for (const dag::BackendTraits& one : traits)
    lowered.push_back(std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), one)));
  const plan::Model positions = plan::make_model(graph, lowered);
  const uint32_t stages = std::min<uint32_t>(positions.positions, 2 + static_cast<uint32_t>(rng.below(3)));
  if (stages < 2) return;
  std::set<uint32_t> begins;
  while (begins.size() + 1 < stages)
    begins.insert(1 + static_cast<uint32_t>(rng.below(positions.positions - 1)));
  std::vector<uint32_t> stage_of_op;
  for (const uint32_t position : positions.position_of_op)
    stage_of_op.push_back(static_cast<uint32_t>(std::distance(begins.begin(), begins.upper_bound(position))));
  const dag::Lowered* const classes[] = {lowered[0].get(), lowered[1].get()};
  const auto split = [&](const std::vector<uint32_t>& class_of_stage) {
    return dag::split({&graph, stage_of_op, classes, class_of_stage}, dag::op_table());
  };
  const auto backend = cpu(1);
  for (uint32_t c = 0; c < 2; ++c) {
    SCOPED_TRACE("class " + std::to_string(c));
    auto alike = split(std::vector<uint32_t>(stages, c));
    ASSERT_TRUE(alike.has_value()) << alike.error().message;
    expect_same_bits(run_whole(lowered[c]->graph, *backend, model), run_split(*alike, *backend, model));
    const auto lost = static_cast<uint32_t>(rng.below(stages));
    dag::Relowered made = dag::relower(alike->stages[lost], traits[1 - c], dag::op_table());
    for (dag::CutEdge& edge : alike->cut_edges) {
      if (edge.from_stage == lost) edge.sent = made.value_of[edge.sent.index];
      if (edge.to_stage == lost) edge.received = made.value_of[edge.received.index];
    }
    alike->stages[lost] = std::move(made.stage);
    run_split(*alike, *backend, model);
  }
  std::vector<uint32_t> mixed;
  for (uint32_t s = 0; s < stages; ++s) mixed.push_back(static_cast<uint32_t>(rng.below(2)));
  const auto pieces = split(mixed);
  ASSERT_TRUE(pieces.has_value()) << pieces.error().message;
  run_split(*pieces, *backend, model);
}

void check(uint64_t seed) {
  SCOPED_TRACE("WEFT_GRAPH_SEED=" + std::to_string(seed));
  const test::Model model = test::random_graph(seed);
  test::expect_same_after_onnx(model);
  const auto differentiated = dag::differentiate(model.graph, dag::op_table());
  ASSERT_TRUE(differentiated.has_value()) << differentiated.error().message;
  check_lowered(*differentiated, Layout::Plain, model, seed);
  check_lowered(*differentiated, seed % 3 == 0 ? Layout::Blocked16 : Layout::Blocked8, model, seed);
  expect_classes_work(*differentiated, model, seed);
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(GraphFuzz, RandomGraphsKeepEveryLaw) {
  if (const uint64_t one = number("WEFT_GRAPH_SEED", 0)) return check(one);
  const uint64_t count = number("WEFT_GRAPH_SEEDS", 1000);
  for (uint64_t seed = 1; seed <= count; ++seed) {
    check(seed);
    if (HasFailure()) FAIL() << "at seed " << seed << " of " << count;
  }
}

}  // namespace
}  // namespace weft::peer
