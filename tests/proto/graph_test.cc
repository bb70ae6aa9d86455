// A graph that went over the wire is the graph that was sent: in its text, and in all that the text does not
// show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dag/slots.h"
#include "dag/text.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/executor.h"
#include "proto/codec/codec.h"
#include "tests/proto/samples.h"

namespace weft::proto {
namespace {

using dag::Graph;
using dag::Layout;
using dag::OpKind;
using dag::Tensor;
using dag::ValueId;

void expect_equal(const Graph& a, const Graph& b) {
  EXPECT_EQ(dag::to_text(a), dag::to_text(b));
  ASSERT_EQ(a.ops().size(), b.ops().size());
  for (size_t i = 0; i < a.ops().size(); ++i) {
    const dag::Op &x = a.ops()[i], &y = b.ops()[i];
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.attributes, y.attributes) << "op " << i;
    EXPECT_EQ(x.inputs, y.inputs) << "op " << i;
    EXPECT_EQ(x.outputs, y.outputs) << "op " << i;
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.phase, y.phase);
    EXPECT_EQ(x.origin, y.origin) << "op " << i;
    EXPECT_EQ(x.group, y.group);
    if (x.kind != OpKind::Constant) continue;
    EXPECT_EQ(a.constant(x).spec(), b.constant(y).spec());
    EXPECT_TRUE(std::ranges::equal(a.constant(x).bytes(), b.constant(y).bytes()));
  }
  ASSERT_EQ(a.values().size(), b.values().size());
  for (size_t i = 0; i < a.values().size(); ++i) {
    EXPECT_EQ(a.values()[i].spec, b.values()[i].spec);
    EXPECT_EQ(a.values()[i].producer, b.values()[i].producer);
    EXPECT_EQ(a.values()[i].output_index, b.values()[i].output_index);
    EXPECT_EQ(a.values()[i].layout, b.values()[i].layout);
    EXPECT_EQ(a.values()[i].name, b.values()[i].name);
  }
  EXPECT_TRUE(std::ranges::equal(a.inputs(), b.inputs()));
  ASSERT_EQ(a.initializers().size(), b.initializers().size());
  for (size_t i = 0; i < a.initializers().size(); ++i) {
    EXPECT_EQ(a.initializers()[i].name, b.initializers()[i].name);
    EXPECT_EQ(a.initializers()[i].value, b.initializers()[i].value);
    EXPECT_EQ(a.initializers()[i].role, b.initializers()[i].role);
  }
  ASSERT_EQ(a.outputs().size(), b.outputs().size());
  for (size_t i = 0; i < a.outputs().size(); ++i) {
    EXPECT_EQ(a.outputs()[i].name, b.outputs()[i].name);
    EXPECT_EQ(a.outputs()[i].value, b.outputs()[i].value);
    EXPECT_EQ(a.outputs()[i].role, b.outputs()[i].role);
  }
}

Graph there_and_back(const Graph& graph) {
  auto decoded = decode_graph(encode_graph(graph));
  if (!decoded) {
    ADD_FAILURE() << decoded.error().message;
    return {};
  }
  return std::move(*decoded);
}

TEST(GraphCodec, GraphsAndTheirPiecesComeBackEqual) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0x6AF);
    for (const auto& model :
         {test::residual_net(seed, {.channels = 16, .blocks = 3}), test::transformer(seed)})
      for (const Layout layout : {Layout::Plain, Layout::Blocked8, Layout::Blocked16}) {
        expect_equal(model.graph, there_and_back(model.graph));
        const test::CutModel cut =
            test::cut_model(model, {.fuse_elementwise = true, .convolution_layout = layout}, 4, rng);
        expect_equal(cut.whole, there_and_back(cut.whole));
        for (const dag::StageGraph& stage : cut.split.stages)
          expect_equal(stage.graph, there_and_back(stage.graph));
      }
  }
}

// Bits of all gradients and outputs of a stage, on inputs drawn from a seed.
std::vector<Tensor> run_stage(const std::shared_ptr<const Graph>& graph, const test::Model& model) {
  auto backend = peer::make_cpu_backend({.threads = 1, .pin = false}).value();
  auto executor = peer::Executor::create(graph, std::make_shared<peer::State>(*backend), {}).value();
  for (const auto& initializer : graph->initializers())
    EXPECT_TRUE(
        executor->state().write(weight_key(initializer), model.weights.at(initializer.name)).has_value());
  auto microbatch = executor->make_microbatch().value();
  microbatch->context = {.seed = 7, .step = 3, .sample_position = 0, .microbatch_size = 2};
  uint64_t stream = 0;
  for (const ValueId input : graph->inputs()) {
    const dag::TensorSpec& spec = graph->spec(input);
    const auto at = model.inputs.find(graph->value(input).name);
    const Tensor tensor = at != model.inputs.end()        ? at->second
                          : spec.dtype == dag::DType::F32 ? test::random_tensor(5, ++stream, spec.shape)
                                                          : Tensor(spec);
    EXPECT_TRUE(executor->set_value(*microbatch, input, tensor).has_value());
  }
  EXPECT_TRUE(executor->run(*microbatch).has_value());
  std::vector<Tensor> results;
  for (size_t i = 0; i < executor->parameters().size(); ++i) results.push_back(executor->gradient(i).value());
  for (const auto& output : graph->outputs())
    if (output.role == dag::OutputRole::Loss)
      results.push_back(executor->value(*microbatch, output.value).value());
  return results;
}

TEST(GraphCodec, AStageComputesTheSameBits) {
  const auto traits = peer::make_cpu_backend({.threads = 1, .pin = false}).value()->traits();
  Rng rng(3, 3);
  for (const auto& model : {test::residual_net(3, {.channels = 16, .blocks = 2}), test::transformer(3)}) {
    const test::CutModel cut = test::cut_model(
        model, {.fuse_elementwise = true, .convolution_layout = traits.convolution_layout}, 3, rng);
    size_t compared = 0;
    for (const dag::StageGraph& stage : cut.split.stages) {
      const auto sent = std::make_shared<const Graph>(stage.graph);
      const auto came = std::make_shared<const Graph>(there_and_back(stage.graph));
      const auto a = run_stage(sent, model), b = run_stage(came, model);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i, ++compared)
        EXPECT_TRUE(std::ranges::equal(a[i].bytes(), b[i].bytes()));
    }
    EXPECT_GT(compared, 5u);
  }
}

TEST(GraphCodec, KeepsWhatTheModelsDoNotHave) {
  dag::GraphBuilder builder(dag::op_table());
  const ValueId x = builder.input("x", {dag::DType::F32, {2, 16, 4, 4}});
  const ValueId odd = builder.constant(dag::make_tensor({0}, std::span<const float>()), "nothing");
  builder.set_name(odd, "another name");
  const ValueId y =
      builder.add(OpKind::Clip, {x}, {{dag::Attr::Min, -0.0}, {dag::Attr::Max, 1e300}}, "clip\xff");
  builder.set_layout(y, Layout::Blocked16);
  builder.set_name(y, {});
  const ValueId z =
      builder.add(OpKind::ReduceSum, {y}, {{dag::Attr::Axes, dag::Ints{}}, {dag::Attr::KeepDims, 1}});
  builder.set_group(builder.graph().value(z).producer, {0});
  builder.output("", z, dag::OutputRole::Cotangent);
  builder.output("", z, dag::OutputRole::Cotangent);
  const Graph graph = builder.finish();
  expect_equal(graph, there_and_back(graph));
}

// ---- what is refused

// A stage, changed into one that must not be taken.
Message changed_stage(const std::function<void(AssignStage&)>& change) {
  Rng rng(11, 4);
  const test::CutModel cut =
      test::cut_model(test::residual_net(1, {.blocks = 2}), {.fuse_elementwise = true}, 3, rng);
  AssignStage stage;
  stage.stage_count = static_cast<uint32_t>(cut.split.stages.size());
  stage.seat = {1};
  stage.training.batch_size = stage.training.microbatch_size = 4;
  stage.programs = {test::stage_program(cut.split, 1)};
  const Graph& graph = *stage.programs[0].graph;
  for (const auto& initializer : graph.initializers())
    stage.tensors.push_back({weight_key(initializer), graph.spec(initializer.value), {}});
  change(stage);
  return stage;
}

void expect_refused(const std::function<void(AssignStage&)>& change, const std::string& word) {
  const auto decoded = decode(encode(changed_stage(change)));
  ASSERT_FALSE(decoded.has_value()) << "taken: " << word;
  EXPECT_NE(decoded.error().message.find(word), std::string::npos) << decoded.error().message;
}

TEST(StageCodec, TakesAWeightInHalfPrecisionAndNothingElseInIt) {
  const auto half = [](AssignStage& stage) { stage.tensors[0].spec.dtype = dag::DType::F16; };
  const auto taken = decode(encode(changed_stage(half)));
  EXPECT_TRUE(taken.has_value()) << taken.error().message;
  expect_refused(
      [&](AssignStage& stage) {
        half(stage);
        stage.tensors[0].key.slot = dag::StateSlot::M;
      },
      "tensors");
}

TEST(StageCodec, TakesSlotsAsTheOptimizerKeepsThem) {
  const auto slot = [](dag::SlotType of_job, dag::SlotType of_tensor) {
    return [=](AssignStage& stage) {
      stage.training.optimizer.slots = of_job;
      TensorReference& tensor = stage.tensors[0];
      tensor.key.slot = dag::StateSlot::M;
      tensor.spec = spec_of_state(tensor.key.slot, tensor.spec, of_tensor);
    };
  };
  using enum dag::SlotType;
  const auto taken = decode(encode(changed_stage(slot(Int8, Int8))));
  EXPECT_TRUE(taken.has_value()) << taken.error().message;
  expect_refused(slot(Int8, Float32), "tensors");
  expect_refused(slot(Float32, Int8), "tensors");
}

TEST(StageCodec, RefusesAnAgreementThatCannotBe) {
  using S = AssignStage;
  const auto changed = [](const std::function<void(S&)>& change) {
    return [change](S& stage) {
      LocalTerms& local = stage.local.emplace();
      local.steps = {.terms = {.count = 2, .every = 4}, .steps = 20};
      stage.training.steps = last_inner_step(local.steps);
      for (const auto& initializer : stage.programs[0].graph->initializers())
        local.tensors.push_back(
            {static_cast<uint32_t>(local.tensors.size()), initializer.name, 1, {stage.seat.stage, 0}});
      stage.links.emplace_back().seat = {0, 1};
      change(stage);
    };
  };
  const auto untouched = decode(encode(changed_stage(changed([](S&) {}))));
  ASSERT_TRUE(untouched.has_value()) << untouched.error().message;
  const struct {
    const char* word;
    std::function<void(S&)> change;
  } cases[] = {
      {"rounds", [](S& s) { s.local->steps.terms.every = 0; }},
      {"rounds", [](S& s) { s.local->steps.terms.count = 0; }},
      {"rounds", [](S& s) { s.local->steps.begun_after = 21; }},
      {"rounds", [](S& s) { s.local->steps.terms.every = ~uint64_t{0}; }},
      {"none of them", [](S& s) { s.seat.replica = 2; }},
      {"inner steps", [](S& s) { s.after_step = 11; }},
      {"inner steps", [](S& s) { s.training.steps = 20; }},
      {"ascend", [](S& s) { s.local->tensors[1].number = 0; }},
      {"a fragment that is none of them", [](S& s) { s.local->tensors[0].fragment = 1; }},
      {"no initializer", [](S& s) { s.local->tensors[0].name = "nobody's"; }},
      {"twice", [](S& s) { s.local->tensors[1].name = s.local->tensors[0].name; }},
      {"owner", [](S& s) { s.local->tensors[0].owner = 2; }},
      {"every replica", [](S& s) { s.local->tensors[0].stages.push_back(0); }},
      {"every replica", [](S& s) { s.local->tensors[0].stages[0] = 0; }},
      {"links",
       [](S& s) {
         s.links[0].seat = {0, 2};
       }},
      {"links", [](S& s) { s.local.reset(); }},
      {"trains nothing", [](S& s) { s.programs[0].kind = ProgramKind::Evaluate; }},
  };
  for (const auto& each : cases) expect_refused(changed(each.change), each.word);
}

// Of replicas that add each step's gradients: every gradient once, and nothing else.
TEST(StageCodec, RefusesSumsThatCannotBe) {
  using S = AssignStage;
  Rng rng(11, 4);
  const test::CutModel cut =
      test::cut_model(test::transformer(1, {.layers = 2}), {.fuse_elementwise = true}, 3, rng);
  const auto refusal = [&](const std::function<void(S&)>& change) {
    S stage;
    stage.stage_count = static_cast<uint32_t>(cut.split.stages.size());
    stage.seat = {1};
    stage.training.microbatch_size = 4;
    stage.training.batch_size = 24;
    stage.training.gradient_ranges = 3;
    stage.programs = {test::stage_program(cut.split, 1)};
    ExactTerms& exact = stage.exact.emplace();
    exact.ranges = {1, 2};
    for (const dag::GraphOutput& output : stage.programs[0].graph->outputs())
      if (output.role == dag::OutputRole::Gradient)
        exact.tensors.push_back({static_cast<uint32_t>(exact.tensors.size()), output.name, 1, {1, 0}});
    stage.links.emplace_back().seat = {0, 1};
    change(stage);
    const auto decoded = decode(encode(stage));
    return decoded ? std::string() : decoded.error().message;
  };
  ASSERT_EQ(refusal([](S&) {}), "");
  const auto add_slot = [](S& s) {  // of the first
    const dag::Graph& graph = *s.programs[0].graph;
    const std::string& name = s.exact->tensors[0].name;
    s.training.optimizer.type = dag::OptimizerType::AdamW;
    s.tensors.push_back(
        {dag::of_initializer(name, dag::StateSlot::M), graph.spec(graph.find_initializer(name)->value), {}});
  };
  const struct {
    const char* word;
    std::function<void(S&)> change;
  } cases[] = {
      {"one replica", [](S& s) { s.exact->ranges = {3}; }},
      {"without any",
       [](S& s) {
         s.exact->ranges = {3, 0};
       }},
      {"ranges that are not",
       [](S& s) {
         s.exact->ranges = {1, 1};
       }},
      {"ranges that are not",
       [](S& s) {
         s.exact->ranges = {2, 0xFFFFFFFF, 2};
       }},
      {"none of them", [](S& s) { s.seat.replica = 2; }},
      {"ascend", [](S& s) { s.exact->tensors[1].number = 0; }},
      {"no initializer", [](S& s) { s.exact->tensors[0].name = "nobody's"; }},
      {"not added up", [](S& s) { s.exact->tensors.pop_back(); }},
      {"every replica", [](S& s) { s.exact->tensors[0].stages.push_back(0); }},
      {"every replica", [](S& s) { s.exact->tensors[0].stages[0] = 0; }},
      {"owner", [](S& s) { s.exact->tensors[0].owner = 2; }},
      {"leaves out most", [](S& s) { s.exact->codec = compress::parse("topk:0.02:int4").value(); }},
      {"always the same way", [](S& s) { s.exact->codec = compress::parse("bf16").value(); }},
      {"links",
       [](S& s) {
         s.links[0].seat = {0, 2};
       }},
      {"trains nothing", [](S& s) { s.programs[0].kind = ProgramKind::Evaluate; }},
      {"another replica updates it",
       [&](S& s) {
         s.exact->shared_slots = true;
         s.exact->tensors[0].owner = 1;
         add_slot(s);
       }},
  };
  for (const auto& each : cases)
    EXPECT_NE(refusal(each.change).find(each.word), std::string::npos)
        << each.word << ": " << refusal(each.change);
  EXPECT_EQ(refusal([&](S& s) {
              s.exact->shared_slots = true;
              s.exact->tensors[0].owner = s.seat.replica;
              add_slot(s);
            }),
            "");
}

// And every running statistic, of which each replica could otherwise have another.
TEST(StageCodec, RefusesRunningStatisticsThatNobodyAddsUp) {
  Rng rng(12, 4);
  const test::CutModel cut = test::cut_model(test::residual_net(1), {.fuse_elementwise = true}, 2, rng);
  const auto refusal = [&](const std::function<void(AssignStage&)>& change) {
    AssignStage stage;
    stage.stage_count = static_cast<uint32_t>(cut.split.stages.size());
    stage.seat = {1};
    stage.training.microbatch_size = 4;
    stage.training.batch_size = 24;
    stage.training.gradient_ranges = 3;
    stage.programs = {test::stage_program(cut.split, 1)};
    ExactTerms& exact = stage.exact.emplace();
    exact.ranges = {1, 2};
    for (const dag::GraphOutput& output : stage.programs[0].graph->outputs())
      if (output.role == dag::OutputRole::Gradient || output.role == dag::OutputRole::StateUpdate)
        exact.tensors.push_back({static_cast<uint32_t>(exact.tensors.size()), output.name, 1, {1, 0}});
    stage.links.emplace_back().seat = {0, 1};
    change(stage);
    const auto decoded = decode(encode(stage));
    return decoded ? std::string() : decoded.error().message;
  };
  ASSERT_EQ(refusal([](AssignStage&) {}), "");
  const auto leave_out = [](AssignStage& stage) {
    const auto is_statistic = [&](const AgreedTensor& tensor) {
      return stage.programs[0].graph->find_output(dag::OutputRole::StateUpdate, tensor.name) != nullptr;
    };
    auto& tensors = stage.exact->tensors;
    const auto at = std::find_if(tensors.begin(), tensors.end(), is_statistic);
    ASSERT_NE(at, tensors.end()) << "the second stage has no running statistic";
    tensors.erase(at);
  };
  EXPECT_NE(refusal(leave_out).find("not added up"), std::string::npos) << refusal(leave_out);
}

// One that the rest of the graph reads is another in each replica.
TEST(StageCodec, RefusesRunningStatisticsThatTrainingReads) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {4}};
  const dag::ValueId x = builder.input("x", spec);
  const dag::ValueId mean = builder.initializer("mean", spec, dag::InitializerRole::RunningStatistic);
  const dag::ValueId blended = builder.add(dag::OpKind::Add, {mean, x});
  builder.output("mean", blended, dag::OutputRole::StateUpdate);
  builder.output("y", blended, dag::OutputRole::Prediction);
  const auto graph = std::make_shared<const dag::Graph>(builder.finish());
  AssignStage stage;
  stage.stage_count = 1;
  stage.training.microbatch_size = 4;
  stage.training.batch_size = 8;
  stage.training.gradient_ranges = 2;
  StageProgram& program = stage.programs.emplace_back();
  program.graph = graph;
  program.segment_of_op.assign(graph->ops().size(), 0);
  program.segment_count = 1;
  program.data_inputs = {"x"};
  stage.exact = ExactTerms{{1, 1}, {{0, "mean", 1, {0, 0}}}};
  stage.links.emplace_back().seat = {0, 1};
  const auto decoded = decode(encode(stage));
  ASSERT_FALSE(decoded.has_value());
  EXPECT_NE(decoded.error().message.find("cannot be told from the rest"), std::string::npos)
      << decoded.error().message;
}

TEST(StageCodec, RefusesWhatDoesNotFitTheGraph) {
  const auto untouched = decode(encode(changed_stage([](AssignStage&) {})));
  ASSERT_TRUE(untouched.has_value()) << untouched.error().message;
  using S = AssignStage;
  expect_refused([](S& s) { s.programs[0].segment_of_op.pop_back(); }, "segment_of_op");
  expect_refused([](S& s) { s.programs[0].segment_of_op[0] = 1'000'000; }, "segment_of_op");
  expect_refused([](S& s) { s.programs[0].segment_count = 1; }, "segment_of_op");
  expect_refused([](S& s) { s.programs[0].segment_count = 0xFFFFFFFF; }, "segment_count");
  expect_refused([](S& s) { s.programs[0].receives[0].value = {0xFFFFFFFF}; }, "receives");
  expect_refused([](S& s) { s.programs[0].receives[0].value = s.programs[0].sends[0].value; }, "receives");
  expect_refused([](S& s) { s.programs[0].receives.push_back(s.programs[0].receives[0]); }, "receives");
  expect_refused([](S& s) { s.programs[0].receives.pop_back(); }, "data_inputs");
  expect_refused([](S& s) { s.programs[0].sends[0].value = {1'000'000}; }, "sends");
  expect_refused([](S& s) { s.programs[0].sends[0].edge = s.programs[0].receives[0].edge; }, "sends");
  expect_refused([](S& s) { s.programs[0].sends[0].stage = 1; }, "edge");
  expect_refused([](S& s) { s.programs[0].data_inputs.push_back("nobody"); }, "data_inputs");
  expect_refused([](S& s) { s.programs.push_back(s.programs[0]); }, "twice");
  for (const uint32_t segments : {0u, 1u})
    expect_refused(
        [segments](S& s) {
          StageProgram none{.kind = ProgramKind::Evaluate};
          none.graph = std::make_shared<const Graph>(dag::GraphBuilder(dag::op_table()).finish());
          none.segment_count = segments;
          s.programs.push_back(std::move(none));
        },
        "without ops");
  expect_refused([](S& s) { s.tensors[0].key.name = "nobody"; }, "tensors");
  expect_refused([](S& s) { s.tensors[0].spec.shape.push_back(2); }, "tensors");
  expect_refused([](S& s) { s.tensors[0].spec.dtype = dag::DType::F64; }, "tensors");
  expect_refused([](S& s) { s.tensors[0].key.slot = dag::StateSlot::None; }, "tensors");
  expect_refused([](S& s) { s.tensors.push_back(s.tensors[0]); }, "tensors");
  expect_refused([](S& s) { s.seat.stage = s.stage_count; }, "stage");
  expect_refused([](S& s) { s.links.emplace_back().seat = {1}; }, "links");
  expect_refused([](S& s) { s.training.microbatch_size = 3; }, "microbatch_size");
  expect_refused([](S& s) { s.training.microbatch_size = 0; }, "microbatch_size");
  expect_refused([](S& s) { s.training.optimizer.beta1 = std::nan(""); }, "beta1");
  expect_refused([](S& s) { s.microbatches_in_flight = 0; }, "in_flight");
}

}  // namespace
}  // namespace weft::proto
