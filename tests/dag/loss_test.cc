// Several losses in one graph: the numbers of training and evaluation, by hand.
#include "dag/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dag/metrics.h"
#include "dag/op_table.h"
#include "dag/unread.h"
#include "tests/dag/run_graph.h"

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
const std::vector<TermColumns> kColumns = {{.target = {DType::F32, {kBatch}}},
                                           {.target = {DType::I64, {kBatch}}},
                                           {},
                                           {.target = {DType::F32, {kBatch}}}};

const Inputs kInputs = {
    {"x", {1, 2, 3, -1, 0.5, 0.25}},  // w is [1, 2]: logits 1 4, 3 -2, 0.5 0.5
    {"w", {1, 2}},
    {"loss.target", {4, 1, 3}},
    {"loss.target.1", {1, 1, -1}},  // the first is a hit, the second is none, the third not counted
    {"loss.divisor.1", {2}},
    {"loss.mask", {1, 1, 1}}};

// -log of the softmax's share of the right class.
const double kFirst = std::log(1 + std::exp(1.0 - 4.0)), kSecond = std::log(1 + std::exp(3.0 + 2.0));

TEST(Losses, TrainOnTheWeightedSumOfTheirMeans) {
  const auto graph = attach_training_loss(make_model(), kLosses, kColumns, 1, op_table());
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->graph.inputs().size(), 4u) << "x, one input for each of the two columns, and a divisor";
  // Levels 5, 1, 1 against 4, 1, 3.
  const double mse = (1.0 + 0 + 4) / 3, l1 = (1.0 + 0 + 2) / 3, penalty = 3;
  EXPECT_NEAR(run(graph->graph, kInputs, OutputRole::Loss).at(0),
              0.5 * mse + (kFirst + kSecond) / 2 - 2 * penalty + 3 * l1, 1e-6);
}

TEST(Losses, EvaluateEachByWhatItCounts) {
  const auto graph = attach_evaluation_loss(make_model(), kLosses, kColumns, kBatch, op_table());
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

TEST(Losses, OfTokensPerplexityIsSaidToo) {
  LossTerms terms;
  for (const bool is_of_tokens : {false, true}) {
    terms.is_of_tokens = is_of_tokens;
    EvaluationSums sums(terms);
    const double loss = 4 * std::log(10.0), counted = 4;
    sums.add({&loss, 1}, {&counted, 1}, 3);
    const auto metrics = sums.metrics(/*has_accuracy=*/true);
    EXPECT_EQ(metrics.at("accuracy"), 0.75);
    EXPECT_EQ(metrics.contains("perplexity"), is_of_tokens);
    if (is_of_tokens) {
      EXPECT_NEAR(metrics.at("perplexity"), 10, 1e-12);
    }
  }
}

TEST(Losses, OneOfWeightOneIsThatLossAlone) {
  std::vector<LossSpec> one(kLosses.begin() + 1, kLosses.begin() + 2);
  one[0].ignore_index.reset();
  const auto graph = attach_training_loss(make_model(), one, {&kColumns[1], 1}, 1, op_table());
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(graph->graph.producer(graph->graph.find_output(OutputRole::Loss)->value).kind,
            OpKind::CrossEntropy);
  const auto evaluation = attach_evaluation_loss(make_model(), one, {&kColumns[1], 1}, kBatch, op_table());
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
  const auto training = attach_training_loss(make_model(), wrong, {&kColumns[2], 1}, 1, op_table());
  const auto evaluation = attach_evaluation_loss(make_model(), wrong, {&kColumns[2], 1}, kBatch, op_table());
  ASSERT_FALSE(training.has_value());
  EXPECT_NE(training.error().message.find("a loss is one number"), std::string::npos);
  ASSERT_FALSE(evaluation.has_value());
  EXPECT_NE(evaluation.error().message.find("a loss is one number"), std::string::npos);
}

}  // namespace
}  // namespace weft::dag
