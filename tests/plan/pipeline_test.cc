// The planner's picture of a cut against dag::split's, and its memory against the executor's.
#include "plan/pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "dag/autodiff.h"
#include "dag/copied_bytes.h"
#include "dag/loss.h"
#include "dag/recompute.h"
#include "dag/slots.h"
#include "dag/split.h"
#include "dag/state.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/executor.h"
#include "plan/model.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using dag::Graph;

std::vector<uint32_t> random_cut(const Graph& graph, const Model& model, uint32_t stages, Rng& rng) {
  std::vector<uint32_t> stage_of_position(model.positions);
  std::vector<bool> begins(model.positions, false);
  for (uint32_t cuts = 1; cuts < stages;) {
    const auto at = static_cast<uint32_t>(1 + rng.below(model.positions - 1));
    if (begins[at]) continue;
    begins[at] = true;
    ++cuts;
  }
  for (uint32_t p = 1; p < model.positions; ++p) stage_of_position[p] = stage_of_position[p - 1] + begins[p];
  std::vector<uint32_t> stage_of_op;
  for (const uint32_t position : model.position_of_op) stage_of_op.push_back(stage_of_position[position]);
  EXPECT_EQ(dag::stages_by_origin(graph, stage_of_op), stage_of_op) << "positions keep origins together";
  return dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, stage_of_op);
}

class OnEveryGraph : public testing::TestWithParam<std::string> {};

TEST_P(OnEveryGraph, CutsBetweenPositionsAreAcceptedAndGoOneWay) {
  const Graph graph = test::training_graph(GetParam(), 2);
  const Model model = make_model(graph);
  ASSERT_GE(model.positions, 6u);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 3);
    const auto stages = static_cast<uint32_t>(2 + rng.below(4));
    const auto stage_of_op = random_cut(graph, model, stages, rng);
    const auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    for (const auto& edge : split->cut_edges) {
      const bool forward = graph.producer(edge.value).phase == dag::Phase::Forward;
      EXPECT_EQ(edge.from_stage < edge.to_stage, forward);
    }
  }
}

// A cut through attention, where the masked scores cross: they hold -inf and travel dense.
TEST(PipelineMessages, ScoresThatAreMaskedWithInfinityHaveNoCodec) {
  const Graph graph = test::training_graph("gpt", 1);
  const Model model = make_model(graph);
  size_t cuts = 0;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    if (op.kind != dag::OpKind::Where || op.phase != dag::Phase::Forward) continue;
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : model.position_of_op)
      stage_of_op.push_back(position > model.position_of_op[i]);
    stage_of_op = dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, stage_of_op);
    const auto split = dag::split(graph, stage_of_op, 2, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const Pipeline pipeline = make_pipeline(model, stage_of_op, std::vector<StageDevice>(2), {}).value();
    for (const dag::CutEdge& edge : split->cut_edges) {
      if (edge.value != op.outputs[0]) continue;
      ++cuts;
      const int64_t scores = graph.spec(edge.value).element_count();
      for (const Message& message : pipeline.messages) {
        if (message.backward) continue;
        EXPECT_EQ(std::count(message.floats.begin(), message.floats.end(), scores), 0);
        EXPECT_GE(message.dense.value, 4 * scores);
      }
    }
  }
  EXPECT_GT(cuts, 0u);
}

// Inputs of the stages' graphs that no other stage sends.
TEST_P(OnEveryGraph, DataAreWhatTheSplitLeavesToTheBroker) {
  const Graph graph = test::training_graph(GetParam(), 3);
  const Model model = make_model(graph);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 5);
    const auto stages = static_cast<uint32_t>(1 + rng.below(5));
    const auto stage_of_op = random_cut(graph, model, stages, rng);
    const auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const Pipeline pipeline = make_pipeline(model, stage_of_op, std::vector<StageDevice>(stages), {}).value();
    for (uint32_t s = 0; s < stages; ++s) {
      const Graph& part = split->stages[s].graph;
      int64_t bytes = 0;
      for (const dag::ValueId input : part.inputs()) bytes += part.spec(input).bytes().value;
      for (const auto& edge : split->cut_edges)
        if (edge.to_stage == s) bytes -= graph.spec(edge.value).bytes().value;
      const int64_t data = pipeline.stages[s].data.value;
      EXPECT_GE(data, bytes);
      EXPECT_LE(data, bytes + bytes / 100 + (bytes > 0 ? 4096 : 0)) << "frames and TLS add little";
    }
  }
}

TEST(PipelineOfAProcessor, ItsThreadsServeItsLinks) {
  const Graph graph = test::training_graph("gpt");
  const Model model = make_model(graph);
  Rng rng(1, 6);
  const auto stage_of_op = random_cut(graph, model, 2, rng);
  const auto computing = [&](uint32_t threads) {
    const std::vector<StageDevice> devices(2, {.rates = {}, .threads = threads});
    const Pipeline pipeline = make_pipeline(model, stage_of_op, devices, {}).value();
    return pipeline.stages[0].busy(1);
  };
  EXPECT_GT(computing(1), computing(2));
  EXPECT_GT(computing(2), computing(0)) << "others serve them";
}

TEST_P(OnEveryGraph, SegmentsAndMessagesAreThoseOfTheSplit) {
  const Graph graph = test::training_graph(GetParam(), 3);
  const Model model = make_model(graph);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 4);
    const auto stages = static_cast<uint32_t>(1 + rng.below(5));
    const auto stage_of_op = random_cut(graph, model, stages, rng);
    const auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const Pipeline pipeline = make_pipeline(model, stage_of_op, std::vector<StageDevice>(stages), {}).value();

    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, int64_t> expected, found;
    const auto segment = [&](uint32_t stage, dag::ValueId value) {
      return split->stages[stage].segment_of_op[split->stages[stage].graph.value(value).producer.index];
    };
    for (const auto& edge : split->cut_edges)
      expected[{edge.from_stage, segment(edge.from_stage, edge.sent), edge.to_stage,
                segment(edge.to_stage, edge.received)}] += graph.spec(edge.value).bytes().value;
    for (const Message& message : pipeline.messages)
      found[{message.from_stage, message.from_segment, message.to_stage, message.to_segment}] +=
          message.bytes.value;
    EXPECT_EQ(found, expected);
    for (uint32_t s = 0; s < stages; ++s)
      EXPECT_EQ(pipeline.stages[s].segments.size(), split->stages[s].segment_count) << "stage " << s;
  }
}

TEST_P(OnEveryGraph, CrossingBytesAreThoseOfTwoStages) {
  const Graph graph = test::training_graph(GetParam(), 1);
  const Model model = make_model(graph);
  for (uint32_t cut = 1; cut < model.positions; cut += std::max(1u, model.positions / 7)) {
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : model.position_of_op) stage_of_op.push_back(position >= cut);
    stage_of_op =
        dag::move_sums(graph, std::span<const std::shared_ptr<const dag::Lowered>>{}, std::move(stage_of_op));
    const auto split = dag::split(graph, stage_of_op, 2, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    int64_t up = 0, down = 0;
    for (const auto& edge : split->cut_edges)
      (edge.to_stage == 1 ? up : down) += graph.spec(edge.value).bytes().value;
    EXPECT_EQ(model.crossing.received(cut, model.positions), up) << "cut at " << cut;
    EXPECT_EQ(model.crossing.returned(cut, model.positions), down) << "cut at " << cut;
  }
}

TEST_P(OnEveryGraph, MemoryIsNotUnderestimated) {
  auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(backend.has_value());
  const Graph graph = test::training_graph(GetParam(), 1);
  const Model model = make_model(graph);
  for (const bool accumulates : {false, true})
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Rng rng(seed % 3, 6);
      auto stages = static_cast<uint32_t>(1 + rng.below(4));
      auto stage_of_op = random_cut(graph, model, stages, rng);
      if (seed % 2 == 0 && stages > 2) {  // a ring: the first stage has the end, too
        --stages;
        for (uint32_t& stage : stage_of_op) stage %= stages;
      }
      auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
      ASSERT_TRUE(split.has_value());
      std::vector<StageDevice> on(stages);
      for (uint32_t s = 0; seed > 3 && s < stages; s += 2) {
        on[s].recomputes = true;
        dag::recompute(*split, s, dag::op_table());
      }
      const auto slots = seed % 3 == 0 ? dag::SlotType::Int8 : dag::SlotType::Float32;
      const Pipeline pipeline =
          make_pipeline(model, stage_of_op, on,
                        {.microbatches = accumulates ? 4u : 1u, .optimizer_slots = 2, .slot_type = slots})
              .value();
      for (uint32_t s = 0; s < stages; ++s) {
        peer::ExecutorOptions options;
        options.accumulates = accumulates;
        options.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::AdamW, .slots = slots};
        options.segment_of_op = split->stages[s].segment_of_op;
        for (const auto& edge : split->cut_edges)
          if (edge.from_stage == s) options.kept.push_back(edge.sent);
        const auto state = std::make_shared<peer::State>(**backend);
        auto executor = peer::Executor::create(std::make_shared<const Graph>(split->stages[s].graph), state,
                                               std::move(options));
        ASSERT_TRUE(executor.has_value()) << executor.error().message;
        const int64_t need = state->bytes().value + (*executor)->persistent_bytes().value +
                             (*executor)->scratch_bytes().value + 3 * (*executor)->microbatch_bytes().value;
        const StageWork& work = pipeline.stages[s];
        const int64_t planned = work.persistent.value + 3 * work.microbatch.value;
        EXPECT_GE(planned, need) << "stage " << s << " of " << stages;
        // What is on its way lies beside what an executor holds.
        int64_t on_its_way = 0;
        for (const Message& message : pipeline.messages)
          if (message.from_stage == s || message.to_stage == s) on_its_way += 3 * message.bytes.value;
        EXPECT_LE(planned - on_its_way, 4 * need) << "stage " << s << " of " << stages;
      }
    }
}

// What its first part makes is not kept for its second, which reads none of it.
TEST_P(OnEveryGraph, CopiesSendTheTrainedState) {
  const Graph graph = test::training_graph(GetParam(), 3);
  const Model model = make_model(graph);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 5);
    const auto stage_of_op = random_cut(graph, model, 3, rng);
    const auto split = dag::split(graph, stage_of_op, 3, dag::op_table()).value();
    const auto slots = seed % 2 == 0 ? dag::SlotType::Int8 : dag::SlotType::Float32;
    const Pipeline pipeline = make_pipeline(model, stage_of_op, std::vector<StageDevice>(3),
                                            {.optimizer_slots = 2, .slot_type = slots})
                                  .value();
    for (size_t s = 0; s < 3; ++s) {
      const Graph& stage = split.stages[s].graph;
      Bytes state;
      for (const dag::StateKey& key : dag::trained_state(stage, {.type = dag::OptimizerType::AdamW}))
        state += spec_of_state(key.slot, stage.spec(stage.find_initializer(key.name)->value), slots).bytes();
      EXPECT_EQ(dag::copied_bytes(stage, {2, slots}), state) << "stage " << s;
      EXPECT_EQ(pipeline.stages[s].copied, state) << "stage " << s;
    }
  }
}

// Three layers are frozen, and nothing learns what `side` is multiplied by.
TEST(PipelineWork, CopiesSendNothingThatIsNotTrained) {
  dag::GraphBuilder b(dag::op_table());
  const auto weight = [&](const std::string& name, dag::InitializerRole role, int64_t out) {
    return b.initializer(name, {dag::DType::F32, {64, out}}, role);
  };
  dag::ValueId x = b.input("x", {dag::DType::F32, {2, 64}});
  for (const char* name : {"a", "b", "c"})
    x = b.add(dag::OpKind::MatMul, {x, weight(name, dag::InitializerRole::Frozen, 64)});
  b.output("side", b.add(dag::OpKind::MatMul, {x, weight("side", dag::InitializerRole::Parameter, 64)}),
           dag::OutputRole::Prediction);
  const dag::ValueId y = b.add(dag::OpKind::MatMul, {x, weight("head", dag::InitializerRole::Parameter, 10)});
  b.output("loss",
           b.add(dag::OpKind::ReduceMean, {y},
                 {{dag::Attr::Axes, dag::Ints{0, 1}}, {dag::Attr::KeepDims, int64_t{0}}}),
           dag::OutputRole::Loss);
  const Graph graph = test::lowered(b.finish());
  const Pipeline pipeline = make_pipeline(make_model(graph), std::vector<uint32_t>(graph.ops().size(), 0),
                                          std::vector<StageDevice>(1), {.optimizer_slots = 2})
                                .value();
  const Bytes head{3 * 64 * 10 * 4};  // its values, and two slots
  EXPECT_EQ(dag::copied_bytes(graph, {2}), head);
  EXPECT_EQ(pipeline.stages[0].copied, head);
  EXPECT_GT(pipeline.stages[0].host, head) << "the host fetches what is not trained, too";
}

TEST(PipelineWork, ARingsFirstStageKeepsLittleBetweenItsTasksIfItRecomputes) {
  const Graph graph = test::gpt({.layers = 6, .width = 64, .heads = 4, .tied = false});
  const Model model = make_model(graph);
  std::vector<uint32_t> stage_of_op;
  for (const uint32_t position : model.position_of_op) {
    const uint32_t third = 3 * position / model.positions;
    stage_of_op.push_back(third == 1 ? 1 : 0);
  }
  std::vector<StageDevice> on(2);
  const Bytes kept = make_pipeline(model, stage_of_op, on, {})->stages[0].microbatch;
  on[0].recomputes = true;
  const Bytes repeated = make_pipeline(model, stage_of_op, on, {})->stages[0].microbatch;
  EXPECT_LT(2 * repeated.value, kept.value);
}

// The price: what the repeated forward groups take, which are those that dag::recompute adds.
TEST_P(OnEveryGraph, RepeatingForwardCostsWhatItRunsAgain) {
  const Graph graph = test::training_graph(GetParam(), 2);
  const Model model = make_model(graph);
  Duration of_all_stages{};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 8);
    const auto stages = static_cast<uint32_t>(1 + rng.below(4));
    const auto stage_of_op = random_cut(graph, model, stages, rng);
    auto split = dag::split(graph, stage_of_op, stages, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    std::vector<StageDevice> on(stages);
    const Pipeline keeps = make_pipeline(model, stage_of_op, on, {}).value();
    for (StageDevice& device : on) device.recomputes = true;
    const Pipeline repeats = make_pipeline(model, stage_of_op, on, {}).value();
    for (uint32_t s = 0; s < stages; ++s) {
      const auto seconds_of_graph = [&] {
        double sum = 0;
        for (const GroupCost& group : group_costs(split->stages[s].graph)) sum += seconds_of(group, Rates{});
        return sum;
      };
      const double before = seconds_of_graph();
      dag::recompute(*split, s, dag::op_table());
      Duration kept{}, repeated{}, all{};
      for (const Segment& segment : keeps.stages[s].segments) kept += segment.compute;
      for (const Segment& segment : repeats.stages[s].segments) {
        all += segment.compute;
        repeated += segment.repeated;
        EXPECT_TRUE(segment.backward || segment.repeated == Duration{});
      }
      of_all_stages += repeated;
      EXPECT_NEAR(seconds(all - kept), seconds(repeated), 1e-8);
      // The copies leave out outputs that only forward needs.
      const double runs_again = seconds_of_graph() - before;
      EXPECT_GE(seconds(repeated), runs_again - 1e-8);
      EXPECT_LE(seconds(repeated), 1.25 * runs_again + 1e-7);
    }
  }
  EXPECT_GT(of_all_stages.count(), 0);
}

INSTANTIATE_TEST_SUITE_P(Graphs, OnEveryGraph, testing::ValuesIn(test::kAllGraphs),
                         [](const auto& param_info) { return param_info.param; });

// Where nothing but the residual stream crosses, as much comes back as goes forward: the two terms of its
// cotangent are added by the stage that makes both. And such borders are still there when there are few.
TEST(Model, ResidualBordersCarryOneValueEachWayAndSurviveCoarsening) {
  const Graph lowered = test::training_graph("gpt");
  std::vector<dag::ValueId> value_of;
  const Graph graph = dag::raise(lowered, dag::op_table(), value_of);
  const auto borders = [](const Model& model) {
    int64_t least = std::numeric_limits<int64_t>::max(), count = 0;
    for (uint32_t b = model.positions / 4; b < model.positions * 3 / 4; ++b)
      least = std::min(least, model.crossing.received(b, model.positions));
    for (uint32_t b = 1; b < model.positions; ++b)
      count += model.crossing.received(b, model.positions) == least &&
               model.crossing.returned(b, model.positions) == least;
    return count;
  };
  const Model fine = make_model(graph);
  const int64_t all = borders(fine);
  EXPECT_GE(all, 7) << "two in each of four blocks, but for the ends";
  for (const uint32_t positions : {40u, 24u}) {
    const Model coarse = make_model(graph, {}, positions);
    EXPECT_LE(coarse.positions, positions);
    EXPECT_GE(borders(coarse), std::min<int64_t>(all, positions / 3))
        << positions << " of " << fine.positions;
  }
}

TEST(Model, CoarseningKeepsWholePositionsTogether) {
  const Graph graph = test::training_graph("gpt");
  const Model fine = make_model(graph), coarse = make_model(graph, {}, 9);
  EXPECT_LE(coarse.positions, 9u);
  EXPECT_GE(coarse.positions, 5u);
  std::map<uint32_t, uint32_t> coarse_of_fine;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const auto [at, fresh] = coarse_of_fine.emplace(fine.position_of_op[i], coarse.position_of_op[i]);
    EXPECT_EQ(at->second, coarse.position_of_op[i]);
  }
  uint32_t last = 0;
  for (const auto& [from, to] : coarse_of_fine) EXPECT_GE(to, std::exchange(last, to));
}

// What divides a loss would else be a stage of its own, for a cut costs no more than a number each way.
TEST(Model, WhatIsDoneToALossIsNeverCutOff) {
  dag::GraphBuilder b(dag::op_table());
  const dag::ValueId x = b.input("x", {dag::DType::F32, {4, 8}});
  const dag::ValueId w = b.initializer("w", {dag::DType::F32, {8, 3}}, dag::InitializerRole::Parameter);
  b.output("logits", b.add(dag::OpKind::MatMul, {x, w}), dag::OutputRole::Prediction);
  const dag::LossSpec loss{.prediction = "logits", .target = "y", .axis = {}, .ignore_index = -100};
  const dag::TermColumns columns{.target = {dag::DType::I64, {4}}};
  const Graph model_graph = b.finish();
  const auto attached =
      dag::attach_training_loss(model_graph, {&loss, 1}, {&columns, 1}, /*microbatches=*/4, dag::op_table());
  ASSERT_TRUE(attached.has_value());
  const auto graph = dag::differentiate(attached->graph, dag::op_table());
  ASSERT_TRUE(graph.has_value());
  const Model model = make_model(*graph);
  std::set<uint32_t> positions;
  for (size_t i = 0; i < graph->ops().size(); ++i)
    if (const dag::OpKind kind = graph->ops()[i].kind;
        kind == dag::OpKind::CrossEntropy || kind == dag::OpKind::Div || kind == dag::OpKind::Mul)
      positions.insert(model.position_of_op[i]);
  EXPECT_EQ(positions.size(), 1u);
}

TEST(Model, ATiedWeightStandsWithItsFirstReader) {
  const Graph graph = test::training_graph("transformer");
  const Model model = make_model(graph);
  const uint32_t weight = graph.value(graph.find_initializer("wte")->value).producer.index;
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    if (graph.ops()[i].kind == dag::OpKind::Gather) {
      EXPECT_EQ(model.position_of_op[i], model.position_of_op[weight]);
    }
}

}  // namespace
}  // namespace weft::plan
