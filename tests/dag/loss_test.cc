// Several losses in one graph: the numbers of training and evaluation, by hand.
#include "dag/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dag/metrics.h"
#include "dag/op_table.h"
#include "dag/unread.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::dag {
namespace {

constexpr int64_t kBatch = 3;

// Outputs: `logits` [3, 2], which is the input; `level` [3], a column of it; `penalty`, one number; `unused`.
Graph make_model() {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {kBatch, 2}});
  const ValueId w = b.initializer("w", {DType::F32, {2}}, InitializerRole::Parameter);
  b.initializer("idle", {DType::F32, {2}}, InitializerRole::Parameter);
  const ValueId logits = b.add(OpKind::Mul, {x, w});
  const ValueId level =
      b.add(OpKind::ReduceSum, {logits}, {{Attr::Axes, Ints{1}}, {Attr::KeepDims, int64_t{0}}});
  const ValueId penalty =
      b.add(OpKind::ReduceSum, {w}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{1}}});
  b.output("logits", logits, OutputRole::Prediction);
  b.output("level", level, OutputRole::Prediction);
  b.output("penalty", penalty, OutputRole::Prediction);
  b.output("unused", b.add(OpKind::Exp, {x}), OutputRole::Prediction);
  return b.finish();
}

const std::vector<LossSpec> kLosses = {
    {.type = LossType::Mse,
     .prediction = "level",
     .target = "t",
     .axis = {},
     .ignore_index = {},
     .weight = 0.5},
    {.type = LossType::CrossEntropy, .prediction = "logits", .target = "y", .axis = {}, .ignore_index = -1},
    {.type = LossType::Output,
     .prediction = "penalty",
     .target = {},
     .axis = {},
     .ignore_index = {},
     .weight = -2},
    {.type = LossType::L1,
     .prediction = "level",
     .target = "t",
     .axis = {},
     .ignore_index = {},
     .weight = 3}};
const std::vector<TensorSpec> kTargets = {
    {DType::F32, {kBatch}}, {DType::I64, {kBatch}}, {}, {DType::F32, {kBatch}}};

using Inputs = std::map<std::string, std::vector<double>>;
const Inputs kInputs = {
    {"x", {1, 2, 3, -1, 0.5, 0.25}},  // w is [1, 2]: logits 1 4, 3 -2, 0.5 0.5
    {"w", {1, 2}},
    {"loss.target", {4, 1, 3}},
    {"loss.target.1", {1, 1, -1}},  // the first is a hit, the second is none, the third not counted
    {"loss.mask", {1, 1, 1}}};

// The outputs of one role, run on the reference kernels.
std::vector<double> run(const Graph& graph, const Inputs& inputs, OutputRole role) {
  std::vector<peer::RefValue> values(graph.values().size());
  const auto place = [&](ValueId value, const std::string& name) {
    const TensorSpec& spec = graph.spec(value);
    values[value.index] = peer::ref_from_tensor(from_doubles(spec, inputs.at(name)));
  };
  for (const ValueId input : graph.inputs()) place(input, graph.value(input).name);
  for (const Initializer& initializer : graph.initializers()) place(initializer.value, initializer.name);
  for (const Op& op : graph.ops()) {
    if (op.kind == OpKind::Input || op.kind == OpKind::Initializer) continue;
    if (op.kind == OpKind::Constant) {
      values[op.outputs[0].index] = peer::ref_from_tensor(graph.constant(op));
      continue;
    }
    std::vector<const peer::RefValue*> operands;
    for (const ValueId input : op.inputs) operands.push_back(input.valid() ? &values[input.index] : nullptr);
    std::vector<peer::RefValue> results;
    for (const ValueId output : op.outputs) results.push_back({graph.spec(output), {}, {}});
    EXPECT_TRUE(peer::run_reference_op(op, operands, results, {}).has_value()) << to_string(op.kind);
    for (size_t k = 0; k < results.size(); ++k) values[op.outputs[k].index] = std::move(results[k]);
  }
  return values[graph.find_output(role)->value.index].reals;
}

// -log of the softmax's share of the right class.
const double kFirst = std::log(1 + std::exp(1.0 - 4.0)), kSecond = std::log(1 + std::exp(3.0 + 2.0));

TEST(Losses, TrainOnTheWeightedSumOfTheirMeans) {
  const auto graph = attach_training_loss(make_model(), kLosses, kTargets, op_table());
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->inputs().size(), 3u) << "x, and one input for each of the two columns";
  // Levels 5, 1, 1 against 4, 1, 3.
  const double mse = (1.0 + 0 + 4) / 3, l1 = (1.0 + 0 + 2) / 3, penalty = 3;
  EXPECT_NEAR(run(*graph, kInputs, OutputRole::Loss).at(0),
              0.5 * mse + (kFirst + kSecond) / 2 - 2 * penalty + 3 * l1, 1e-6);
}

TEST(Losses, EvaluateEachByWhatItCounts) {
  const auto graph = attach_evaluation_loss(make_model(), kLosses, kTargets, kBatch, op_table());
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  const LossTerms terms = loss_terms(kLosses);
  EXPECT_EQ(terms.accuracy_term, 1u);
  EvaluationSums sums(terms);
  Inputs padded = kInputs;
  padded["loss.mask"] = {1, 1, 0};
  padded["x"][4] = std::nan("");  // of the sample that is padding
  for (const Inputs& inputs : {kInputs, padded})
    sums.add(run(*graph, inputs, OutputRole::Loss), run(*graph, inputs, OutputRole::Counted),
             run(*graph, inputs, OutputRole::Correct)[0]);
  const double mse = (1.0 + 0 + 4 + 1 + 0) / 5, l1 = (1.0 + 0 + 2 + 1 + 0) / 5;
  // The penalty is the model's own and counts for the microbatch without padding.
  EXPECT_NEAR(sums.loss(), 0.5 * mse + (kFirst + kSecond) / 2 - 2 * 3 + 3 * l1, 1e-6);
  EXPECT_EQ(sums.accuracy(), 2.0 / 4);
}

TEST(Losses, OneOfWeightOneIsThatLossAlone) {
  const std::vector<LossSpec> one(kLosses.begin() + 1, kLosses.begin() + 2);
  const auto graph = attach_training_loss(make_model(), one, {&kTargets[1], 1}, op_table());
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(graph->producer(graph->find_output(OutputRole::Loss)->value).kind, OpKind::CrossEntropy);
  const auto evaluation = attach_evaluation_loss(make_model(), one, {&kTargets[1], 1}, kBatch, op_table());
  EXPECT_TRUE(evaluation->spec(evaluation->find_output(OutputRole::Counted)->value).shape.empty());
}

TEST(Losses, WhatTheyDoNotReadIsNamed) {
  const Unread unread = find_unread(make_model(), kLosses);
  EXPECT_EQ(unread.parameters, std::vector<std::string>{"idle"});
  EXPECT_EQ(unread.outputs, std::vector<std::string>{"unused"});
  EXPECT_EQ(describe(unread).size(), 2u);
  EXPECT_TRUE(describe({}).empty());
}

TEST(Losses, AnOutputThatIsNoNumberIsNoLoss) {
  const std::vector<LossSpec> wrong = {
      {.type = LossType::Output, .prediction = "level", .target = {}, .axis = {}, .ignore_index = {}}};
  for (const auto& graph :
       {attach_training_loss(make_model(), wrong, {&kTargets[2], 1}, op_table()),
        attach_evaluation_loss(make_model(), wrong, {&kTargets[2], 1}, kBatch, op_table())}) {
    ASSERT_FALSE(graph.has_value());
    EXPECT_NE(graph.error().message.find("a loss is one number"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft::dag
