// What recomputation repeats and what it leaves alone, and that it takes less memory. That its bits are those
// of the whole is a law of split_test, of random graphs (tests/graphs) and of whole runs (tests/pipeline).
#include "dag/recompute.h"

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/cuts.h"

namespace weft::peer {
namespace {

using dag::OpKind;
using dag::Phase;

// The model as one stage, forward and backward segment.
dag::Split as_one_stage(const test::Model& model) {
  const Graph graph = dag::lower(value_or_fail(dag::differentiate(model.graph, dag::op_table())),
                                 dag::op_table(), {.fuse_elementwise = true});
  return value_or_fail(dag::split(graph, std::vector<uint32_t>(graph.ops().size(), 0), 1, dag::op_table()));
}

ptrdiff_t count(const Graph& graph, OpKind kind, Phase phase) {
  return std::count_if(graph.ops().begin(), graph.ops().end(),
                       [&](const dag::Op& op) { return op.kind == kind && op.phase == phase; });
}

std::unique_ptr<Executor> executor_of(const dag::StageGraph& stage, Backend& backend) {
  return value_or_fail(Executor::create(std::make_shared<const Graph>(stage.graph),
                                        std::make_shared<State>(backend),
                                        {.accumulates = true, .segment_of_op = stage.segment_of_op}));
}

TEST(Recompute, BackwardReadsNothingOfForwardButWhatWasGiven) {
  for (const bool convolutions : {false, true}) {
    const test::Model model = convolutions ? test::residual_net(1) : test::transformer(1);
    const dag::Split split = test::recomputed(as_one_stage(model), [](uint32_t) { return true; });
    const dag::StageGraph& stage = split.stages[0];
    EXPECT_EQ(stage.segment_count, 2u);
    ASSERT_EQ(stage.segment_of_op.size(), stage.graph.ops().size());
    EXPECT_TRUE(std::is_sorted(stage.segment_of_op.begin(), stage.segment_of_op.end()));
    for (const dag::Op& op : stage.graph.ops()) {
      EXPECT_EQ(stage.graph.op(op.origin).phase == Phase::Forward || op.phase == Phase::Backward, true);
      if (op.phase == Phase::Forward) continue;
      for (const ValueId input : op.inputs) {
        if (!input.valid()) continue;
        const dag::Op& producer = stage.graph.producer(input);
        EXPECT_TRUE(producer.phase == Phase::Backward || producer.inputs.empty())
            << to_string(op.kind) << " reads " << to_string(producer.kind) << " of the forward pass";
      }
    }
  }
}

TEST(Recompute, RepeatsDropoutByItsKeyAndLeavesStatisticsAlone) {
  const dag::Split drops = as_one_stage(test::transformer(1));
  const Graph& before = drops.stages[0].graph;
  const dag::Split again = test::recomputed(drops, [](uint32_t) { return true; });
  const Graph& after = again.stages[0].graph;
  ASSERT_GT(count(before, OpKind::Dropout, Phase::Forward), 0);
  EXPECT_GT(count(after, OpKind::Dropout, Phase::Backward), count(before, OpKind::Dropout, Phase::Backward));
  for (const dag::Op& op : after.ops())
    if (op.kind == OpKind::Dropout) {
      EXPECT_EQ(op.attributes, after.op(op.origin).attributes) << "drawn by another key";
    }

  const dag::Split norms =
      test::recomputed(as_one_stage(test::residual_net(1)), [](uint32_t) { return true; });
  const Graph& graph = norms.stages[0].graph;
  EXPECT_EQ(count(graph, OpKind::BatchNorm, Phase::Backward),
            count(graph, OpKind::BatchNorm, Phase::Forward));
  int statistics = 0;
  for (const auto& output : graph.outputs()) {
    if (output.role != OutputRole::StateUpdate) continue;
    ++statistics;
    EXPECT_EQ(graph.producer(output.value).phase, Phase::Forward) << output.name;
  }
  EXPECT_GT(statistics, 0);
}

// What reads a running statistic before the step's blend would read the blended one afterwards.
TEST(Recompute, WhatHangsOnAStatisticThatChangesIsKept) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {2}};
  const ValueId x = builder.input("x", spec);
  const ValueId statistic = builder.initializer("s", spec, dag::InitializerRole::RunningStatistic);
  const ValueId w = builder.initializer("w", spec, dag::InitializerRole::Parameter);
  const ValueId shifted = builder.add(OpKind::Sub, {x, statistic});
  const ValueId squared = builder.add(OpKind::Mul, {x, x});
  const ValueId scaled = builder.add(OpKind::Mul, {builder.add(OpKind::Add, {shifted, squared}), w});
  builder.output("loss",
                 builder.add(OpKind::ReduceSum, {scaled},
                             {{dag::Attr::Axes, dag::Ints{0}}, {dag::Attr::KeepDims, int64_t{0}}}),
                 OutputRole::Loss);
  builder.output("s", builder.add(OpKind::Add, {statistic, x}), OutputRole::StateUpdate);
  const test::Model model{.graph = builder.finish(),
                          .weights = {{"s", dag::make_tensor({2}, std::vector<float>{1, 2})},
                                      {"w", dag::make_tensor({2}, std::vector<float>{3, 5})}},
                          .inputs = {{"x", dag::make_tensor({2}, std::vector<float>{7, 11})}}};
  const dag::Split split = as_one_stage(model);
  const auto backend = make_reference_backend();
  const auto expected = run_split(split, *backend, model);
  EXPECT_EQ(dag::to_doubles(expected.at("gradient w")), (std::vector<double>{7 - 1 + 49, 11 - 2 + 121}));
  expect_same_bits(expected,
                   run_split(test::recomputed(split, [](uint32_t) { return true; }), *backend, model));
}

TEST(Recompute, AMicrobatchInFlightTakesWhatTheStageWasGiven) {
  const auto backend = value_or_fail(make_cpu_backend({.threads = 1, .pin = false}));
  for (const bool convolutions : {false, true}) {
    const test::Model model = convolutions ? test::residual_net(1) : test::transformer(1, {.layers = 3});
    const dag::Split split = as_one_stage(model);
    const auto keeps = executor_of(split.stages[0], *backend);
    const auto repeats =
        executor_of(test::recomputed(split, [](uint32_t) { return true; }).stages[0], *backend);
    int64_t given = 0;
    for (const ValueId input : split.stages[0].graph.inputs())
      given += align_up(split.stages[0].graph.spec(input).bytes().value, backend->alignment());
    EXPECT_LE(repeats->microbatch_bytes().value, given);
    EXPECT_GT(keeps->microbatch_bytes().value, 4 * given);
    EXPECT_LT(repeats->scratch_bytes() + repeats->microbatch_bytes() * 3,
              keeps->scratch_bytes() + keeps->microbatch_bytes() * 3);
  }
}

// Tasks of several microbatches by turns: what they share is what lives within one task.
TEST(Executor, TakesOneScratchForAllMicrobatchesInFlight) {
  const auto backend = make_reference_backend();
  const dag::Split split = as_one_stage(test::transformer(1));
  const auto state = std::make_shared<State>(*backend);
  const auto executor =
      value_or_fail(Executor::create(std::make_shared<const Graph>(split.stages[0].graph), state,
                                     {.accumulates = true, .segment_of_op = split.stages[0].segment_of_op}));
  const auto whole =
      value_or_fail(Executor::create(std::make_shared<const Graph>(split.stages[0].graph),
                                     std::make_shared<State>(*backend), {.accumulates = true}));
  EXPECT_LT(executor->microbatch_bytes(), whole->microbatch_bytes());
  const Bytes before = backend->memory()->used;
  std::vector<std::unique_ptr<MicrobatchMemory>> in_flight;
  for (int i = 0; i < 3; ++i) in_flight.push_back(value_or_fail(executor->make_microbatch()));
  EXPECT_EQ(backend->memory()->used - before, executor->microbatch_bytes() * 3);
}

}  // namespace
}  // namespace weft::peer
