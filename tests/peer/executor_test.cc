// The executor against direct evaluation: microbatches add up, views and in-place results keep their values,
// and what is given wrong is refused by name.
#include "peer/executor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/promote.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

using dag::Graph;
using dag::OutputRole;
using dag::Tensor;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

// Every op one by one on host values, nothing shared, nothing reused: what a plan must not change.
std::map<std::string, std::vector<double>> evaluate_directly(const Graph& graph, const test::Model& model,
                                                             const StepContext& context) {
  std::vector<RefValue> values(graph.values().size());
  for (const dag::Op& op : graph.ops()) {
    if (op.kind == dag::OpKind::Input) {
      values[op.outputs[0].index] = ref_from_tensor(model.inputs.at(op.name));
    } else if (op.kind == dag::OpKind::Initializer) {
      values[op.outputs[0].index] = ref_from_tensor(model.weights.at(op.name));
    } else if (op.kind == dag::OpKind::Constant) {
      values[op.outputs[0].index] = ref_from_tensor(graph.constant(op));
    } else {
      std::vector<const RefValue*> inputs;
      for (const dag::ValueId input : op.inputs)
        inputs.push_back(input.valid() ? &values[input.index] : nullptr);
      std::vector<RefValue> outputs(op.outputs.size());
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i].spec = graph.spec(op.outputs[i]);
      ok_or_fail(run_reference_op(op, inputs, outputs, context));
      for (size_t i = 0; i < outputs.size(); ++i) values[op.outputs[i].index] = std::move(outputs[i]);
    }
  }
  std::map<std::string, std::vector<double>> results;
  for (const auto& output : graph.outputs())
    results[std::string(to_string(output.role)) + " " + output.name] = values[output.value.index].reals;
  return results;
}

class ExecutorAgainstDirect : public testing::TestWithParam<const char*> {};

TEST_P(ExecutorAgainstDirect, GivesTheSameGradients) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::Model model =
        std::string_view(GetParam()) == "residual" ? test::residual_net(seed) : test::transformer(seed);
    const auto backend = make_reference_backend();
    const Graph graph = value_or_fail(dag::differentiate(model.graph, dag::op_table()));
    const StepContext context{.seed = 5, .step = 2, .sample_position = 0, .microbatch_size = 2};
    const auto expected = evaluate_directly(graph, model, context);

    const Graph lowered = dag::lower(graph, dag::op_table(), {.fuse_elementwise = true});
    const auto executor = value_or_fail(Executor::create(
        std::make_shared<const Graph>(lowered), std::make_shared<State>(*backend), {.accumulates = true}));
    for (const auto& [name, tensor] : model.weights)
      ok_or_fail(executor->state().write(dag::of_initializer(name), tensor));
    const auto microbatch = value_or_fail(executor->make_microbatch());
    microbatch->context = context;
    // The second run adds the same again: every gradient doubles. Running statistics would move on, so they
    // start anew.
    for (int run = 0; run < 2; ++run) {
      microbatch->turn = dag::gradient_turn(run, 2, 1);
      for (const auto& initializer : lowered.initializers())
        if (initializer.role == dag::InitializerRole::RunningStatistic)
          ok_or_fail(executor->state().write(weight_key(initializer), model.weights.at(initializer.name)));
      for (const auto& [name, tensor] : model.inputs)
        ok_or_fail(executor->set_input(*microbatch, name, tensor));
      ok_or_fail(executor->run(*microbatch));
      for (size_t p = 0; p < executor->parameters().size(); ++p) {
        const auto& reference = expected.at("gradient " + executor->parameters()[p].name);
        const Tensor gradient = value_or_fail(executor->gradient(p));
        for (size_t i = 0; i < reference.size(); ++i)
          ASSERT_FLOAT_EQ(gradient.as<float>()[i], static_cast<float>((run + 1) * reference[i]))
              << executor->parameters()[p].name << " [" << i << "] run " << run;
      }
    }
    const Tensor loss =
        value_or_fail(executor->value(*microbatch, lowered.find_output(OutputRole::Loss)->value));
    EXPECT_FLOAT_EQ(loss.as<float>()[0], static_cast<float>(expected.at("loss loss")[0]));
  }
}
INSTANTIATE_TEST_SUITE_P(Models, ExecutorAgainstDirect, testing::Values("residual", "transformer"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Executor, NeedsLessMemoryThanAllValuesTogether) {
  const test::Model model = test::residual_net(1, {.blocks = 3});
  const auto backend = make_reference_backend();
  const auto graph =
      std::make_shared<const Graph>(value_or_fail(dag::differentiate(model.graph, dag::op_table())));
  const auto executor = value_or_fail(Executor::create(graph, std::make_shared<State>(*backend), {}));
  int64_t all = 0;
  for (const auto& value : graph->values()) all += backend->storage_bytes(value.spec, value.layout).value;
  EXPECT_LT(executor->program().arena.value, all / 2);
}

TEST(Executor, RefusesTensorsThatDoNotFit) {
  const test::Model model = test::residual_net(1);
  const auto backend = make_reference_backend();
  const auto executor = value_or_fail(
      Executor::create(std::make_shared<const Graph>(model.graph), std::make_shared<State>(*backend), {}));
  const auto wrong_shape =
      executor->state().write(dag::of_initializer("conv"), test::random_tensor(1, 1, {2, 2}));
  ASSERT_FALSE(wrong_shape.has_value());
  EXPECT_EQ(wrong_shape.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(wrong_shape.error().message.find("'conv' is f32[8,1,3,3]"), std::string::npos)
      << wrong_shape.error().message;
  EXPECT_EQ(
      executor->state().write(dag::of_initializer("nothing"), test::random_tensor(1, 1, {1})).error().code,
      ErrorCode::NotFound);
  const auto microbatch = value_or_fail(executor->make_microbatch());
  EXPECT_EQ(executor->set_input(*microbatch, "y", test::random_tensor(1, 1, {1})).error().code,
            ErrorCode::NotFound);
}

TEST(Executor, KeepsOptimizerSlots) {
  const test::Model model = test::residual_net(1);
  const auto backend = make_reference_backend();
  const auto graph =
      std::make_shared<const Graph>(value_or_fail(dag::differentiate(model.graph, dag::op_table())));
  const auto executor = value_or_fail(Executor::create(
      graph, std::make_shared<State>(*backend),
      {.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::AdamW, .learning_rate = 1e-3}}));
  const Tensor moment = test::random_tensor(3, 3, executor->parameters()[0].spec.shape);
  const std::string& name = executor->parameters()[0].name;
  ok_or_fail(executor->state().write(dag::of_initializer(name, dag::StateSlot::M), moment));
  const Tensor back = value_or_fail(executor->state().read(dag::of_initializer(name, dag::StateSlot::M)));
  EXPECT_EQ(to_doubles(back), to_doubles(moment));
  EXPECT_EQ(executor->state().read(dag::of_initializer(name, dag::StateSlot::Momentum)).error().code,
            ErrorCode::NotFound);
}

// Found by a random graph in two stages: the copy stood behind the first kernel, before the tensor came.
TEST(Executor, AGradientThatShowsWhatAnotherStageSentWaitsForIt) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId w = builder.initializer("w", {dag::DType::F32, {2, 1}}, dag::InitializerRole::Parameter);
  const dag::ValueId squared = builder.add(dag::OpKind::Mul, {w, w});
  builder.set_phase(dag::Phase::Backward);
  const dag::ValueId sent = builder.input("cotangent", {dag::DType::F32, {2}});
  const dag::ValueId shown = builder.add(dag::OpKind::Reshape, {sent}, {{dag::Attr::Shape, dag::Ints{2, 1}}});
  builder.output("squared", squared, OutputRole::Activation);
  builder.output("w", shown, OutputRole::Gradient);
  const Graph graph = builder.finish();
  const auto backend = make_reference_backend();
  ExecutorOptions options;
  options.segment_of_op = {0, 0, 1, 1};
  const auto executor = value_or_fail(Executor::create(
      std::make_shared<const Graph>(graph), std::make_shared<State>(*backend), std::move(options)));
  const auto microbatch = value_or_fail(executor->make_microbatch());
  ok_or_fail(executor->run(*microbatch, 0));
  const std::vector<double> values{3, 5};
  ok_or_fail(executor->set_value(*microbatch, sent, dag::from_doubles({dag::DType::F32, {2}}, values)));
  ok_or_fail(executor->run(*microbatch, 1));
  EXPECT_EQ(dag::to_doubles(value_or_fail(executor->gradient(0))), values);
}

TEST(Executor, CopiesValuesOfAnotherOnlyWhereTheyFit) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", {dag::DType::F32, {3}});
  const dag::ValueId wide = builder.input("wide", {dag::DType::F32, {4}});
  const dag::ValueId y = builder.add(dag::OpKind::Neg, {x});
  builder.output("y", y, OutputRole::Prediction);
  builder.output("z", builder.add(dag::OpKind::Neg, {wide}), OutputRole::Prediction);
  const auto graph = std::make_shared<const Graph>(builder.finish());
  const auto backend = make_reference_backend();
  const auto make = [&] {
    return value_or_fail(Executor::create(graph, std::make_shared<State>(*backend), {}));
  };
  const auto first = make(), second = make();
  const auto a = value_or_fail(first->make_microbatch()), b = value_or_fail(second->make_microbatch());
  ok_or_fail(first->set_value(*a, x, dag::make_tensor({3}, std::vector<float>{1, 2, 3})));
  ok_or_fail(first->run(*a));
  ok_or_fail(second->copy_value(*b, x, *first, *a, y));
  ok_or_fail(second->run(*b));
  EXPECT_EQ(dag::to_doubles(value_or_fail(second->value(*b, y))), (std::vector<double>{1, 2, 3}));
  const auto refused = second->copy_value(*b, wide, *first, *a, y);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("'wide' is f32[4]"), std::string::npos) << refused.error().message;
}

TEST(Executor, APrecisionThatTheBackendLacksIsRefusedByName) {
  const test::Model model = test::residual_net(1);
  const auto backend = make_reference_backend();
  const auto graph = std::make_shared<const Graph>(model.graph);
  const auto refused = [&](Precision precision) {
    const auto made = Executor::create(graph, std::make_shared<State>(*backend), {.precision = precision});
    return made ? std::string("made")
                : std::string(to_string(made.error().code)) + ": " + made.error().message;
  };
  EXPECT_NE(refused({.compute = Arithmetic::BF16}).find("no arithmetic in bf16"), std::string::npos);
  EXPECT_NE(refused({.storage = dag::DType::BF16}).find("no storage in bf16"), std::string::npos);
  EXPECT_NE(refused({.wire = dag::DType::F16}).find("no sending in f16"), std::string::npos);
  EXPECT_EQ(refused({}), "made");
}

TEST(Executor, AnEncodingThatTheBackendLacksIsRefused) {
  const test::Model model = test::residual_net(1);
  const auto backend = make_reference_backend();
  const auto executor = value_or_fail(
      Executor::create(std::make_shared<const Graph>(model.graph), std::make_shared<State>(*backend), {}));
  const auto microbatch = value_or_fail(executor->make_microbatch());
  const dag::ValueId loss = model.graph.find_output(OutputRole::Loss)->value;
  const auto code_of = [&](const Encoding& encoding) {
    const auto begun = executor->begin_value(*microbatch, loss, encoding);
    return begun ? std::nullopt : std::optional(begun.error().code);
  };
  EXPECT_EQ(code_of({}), std::nullopt);
  EXPECT_EQ(code_of({.kind = static_cast<Encoding::Kind>(7)}), ErrorCode::Unsupported);
  EXPECT_EQ(code_of({.floats = dag::DType::BF16}), ErrorCode::Unsupported);
}

TEST(Executor, TakesTheMemoryThatItSays) {
  const test::Model model = test::residual_net(1);
  const auto backend = make_reference_backend();
  const auto graph =
      std::make_shared<const Graph>(value_or_fail(dag::differentiate(model.graph, dag::op_table())));
  const auto state = std::make_shared<State>(*backend);
  const Bytes before = backend->memory()->used;
  const auto executor = value_or_fail(
      Executor::create(graph, state, {.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::AdamW}}));
  EXPECT_EQ(backend->memory()->used - before,
            state->bytes() + executor->persistent_bytes() + executor->program().workspace);
  const auto microbatch = value_or_fail(executor->make_microbatch());
  EXPECT_EQ(backend->memory()->used - before, state->bytes() + executor->persistent_bytes() +
                                                  executor->program().workspace + executor->program().arena);
}

}  // namespace
}  // namespace weft::peer
