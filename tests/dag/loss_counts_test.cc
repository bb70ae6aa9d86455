// What a step's loss is the mean of: labels that do not count, weights of classes and samples, and smoothing,
// whatever the microbatches; against the formulas written out.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/counted_mean.h"
#include "dag/loss.h"
#include "dag/metrics.h"
#include "tests/dag/run_graph.h"

namespace weft::dag {
namespace {

constexpr int64_t kSamples = 8, kTokens = 3, kClasses = 4;
constexpr int64_t kIgnored = -100;

// A step's data. Labels count unevenly, and in the first two samples not at all.
struct Step {
  std::vector<double> logits, labels, weights;  // [8,3,4], [8,3], [8]

  explicit Step(uint64_t seed) {
    Rng rng(seed, 0);
    for (int64_t i = 0; i < kSamples * kTokens * kClasses; ++i) logits.push_back(4 * rng.uniform() - 2);
    for (int64_t i = 0; i < kSamples; ++i) {
      weights.push_back(0.25 * static_cast<double>(i % 5));
      for (int64_t t = 0; t < kTokens; ++t)
        labels.push_back(i < 2 || t > i % 3 ? kIgnored : static_cast<double>(rng.below(kClasses)));
    }
  }
};

// Of all samples: numerator and divisor, as PyTorch's cross_entropy over the whole batch has them.
std::pair<double, double> cross_entropy(const Step& step, const LossSpec& loss) {
  double sum = 0, divisor = 0;
  for (size_t i = 0; i < step.labels.size(); ++i) {
    if (step.labels[i] == kIgnored) continue;
    const double* x = &step.logits[i * kClasses];
    double exps = 0;
    for (int c = 0; c < kClasses; ++c) exps += std::exp(x[c]);
    const auto log_p = [&](size_t c) { return x[c] - std::log(exps); };
    const auto w = [&](size_t c) { return loss.class_weights.empty() ? 1 : loss.class_weights[c]; };
    const double v = loss.sample_weights.empty() ? 1 : step.weights[i / kTokens];
    const auto label = static_cast<size_t>(step.labels[i]);
    double all = 0;
    for (size_t c = 0; c < kClasses; ++c) all -= w(c) * log_p(c);
    const double e = loss.label_smoothing;
    sum += v * ((1 - e) * w(label) * -log_p(label) + e / kClasses * all);
    divisor += v * w(label);
  }
  return {sum, divisor};
}

Graph token_model(int64_t samples) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {samples, kTokens, kClasses}});
  const ValueId gain = b.initializer("gain", {DType::F32, {kClasses}}, InitializerRole::Parameter);
  b.output("logits", b.add(OpKind::Mul, {x, gain}), OutputRole::Prediction);
  return b.finish();
}

LossSpec token_loss(std::vector<double> class_weights, double smoothing, bool weighted) {
  return {.prediction = "logits",
          .target = "label",
          .axis = -1,
          .ignore_index = kIgnored,
          .class_weights = std::move(class_weights),
          .label_smoothing = smoothing,
          .sample_weights = weighted ? "weight" : ""};
}

TermColumns token_columns(int64_t samples, const LossSpec& loss) {
  TermColumns columns{.target = {DType::I64, {samples, kTokens}}};
  if (!loss.sample_weights.empty()) columns.sample_weights = TensorSpec{DType::F32, {samples}};
  return columns;
}

std::vector<double> part(const std::vector<double>& all, int64_t first, int64_t samples) {
  const int64_t each = static_cast<int64_t>(all.size()) / kSamples;
  return {all.begin() + first * each, all.begin() + (first + samples) * each};
}

Inputs inputs_of(const Step& step, int64_t first, int64_t samples) {
  return {{"x", part(step.logits, first, samples)},
          {"gain", std::vector<double>(kClasses, 1.0)},
          {"loss.target", part(step.labels, first, samples)},
          {"loss.weights", part(step.weights, first, samples)},
          {"loss.mask", std::vector<double>(static_cast<size_t>(samples), 1.0)}};
}

const std::vector<LossSpec> kVariants = {token_loss({}, 0, false),   token_loss({1, 0.5, 3, 0}, 0, false),
                                         token_loss({}, 0.1, false), token_loss({1, 0.5, 3, 0}, 0.2, false),
                                         token_loss({}, 0, true),    token_loss({2, 1, 1, 0.25}, 0.3, true)};

TEST(LossCounts, AStepIsThatOfTheWholeBatchWhateverItsMicrobatches) {
  for (uint64_t seed = 1; seed <= 3; ++seed)
    for (const LossSpec& loss : kVariants) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const Step step(seed);
      const auto [sum, divisor] = cross_entropy(step, loss);
      std::vector<double> whole_gradient;
      for (const int64_t samples : {8, 4, 2, 1}) {
        const auto microbatches = static_cast<uint32_t>(kSamples / samples);
        const TermColumns columns = token_columns(samples, loss);
        const auto attached =
            attach_training_loss(token_model(samples), {&loss, 1}, {&columns, 1}, microbatches, op_table());
        ASSERT_TRUE(attached.has_value()) << attached.error().message;
        ASSERT_EQ(attached->divisors.size(), 1u);
        EXPECT_EQ(attached->divisors[0].labels, "loss.target");
        EXPECT_EQ(attached->divisors[0].sample_weights, loss.sample_weights.empty() ? "" : "loss.weights");
        const auto training = differentiate(attached->graph, op_table());
        ASSERT_TRUE(training.has_value());
        double mean = 0;
        std::vector<double> gradient(kClasses, 0.0);
        for (int64_t first = 0; first < kSamples; first += samples) {
          Inputs inputs = inputs_of(step, first, samples);
          inputs["loss.divisor"] = {divisor};
          mean += run(*training, inputs, OutputRole::Loss).at(0) / microbatches;
          const auto of_gain = run(*training, inputs, OutputRole::Gradient, "gain");
          for (size_t c = 0; c < gradient.size(); ++c) gradient[c] += of_gain[c] / microbatches;
        }
        EXPECT_NEAR(mean, sum / divisor, 1e-7) << samples;
        if (whole_gradient.empty()) whole_gradient = gradient;
        for (size_t c = 0; c < gradient.size(); ++c) EXPECT_NEAR(gradient[c], whole_gradient[c], 1e-7);
      }
    }
}

TEST(LossCounts, AnEvaluationAddsUpTheSame) {
  const Step step(4);
  for (const LossSpec& loss : kVariants) {
    EvaluationSums sums(loss_terms({&loss, 1}));
    double labels = 0, hits = 0;
    for (size_t i = 0; i < step.labels.size(); ++i) {
      if (step.labels[i] == kIgnored) continue;
      ++labels;
      const auto row = step.logits.begin() + static_cast<std::ptrdiff_t>(i * kClasses);
      hits += static_cast<double>(std::max_element(row, row + kClasses) - row) == step.labels[i];
    }
    const TermColumns columns = token_columns(4, loss);
    const auto graph = attach_evaluation_loss(token_model(4), {&loss, 1}, {&columns, 1}, 4, op_table());
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    for (const int64_t first : {0, 4}) {
      const Inputs inputs = inputs_of(step, first, 4);
      sums.add(run(*graph, inputs, OutputRole::Loss), run(*graph, inputs, OutputRole::Counted),
               run(*graph, inputs, OutputRole::Correct)[0]);
    }
    const auto [sum, divisor] = cross_entropy(step, loss);
    EXPECT_NEAR(sums.loss(), sum / divisor, 1e-6);
    EXPECT_EQ(sums.accuracy(), hits / labels) << "over labels that count, unweighted";
  }
}

TEST(LossCounts, WhatCountsNothingIsZero) {
  const LossSpec loss = token_loss({}, 0.1, false);
  EvaluationSums sums(loss_terms({&loss, 1}));
  sums.add(std::vector<double>{0}, std::vector<double>{0}, 0);
  EXPECT_EQ(sums.loss(), 0);
}

TEST(LossCounts, ElementsAreWeighedBySample) {
  const std::vector<double> y{1, 2, 3, 4, 5, 6}, t{0, 2, 1, 4, 9, 6}, v{1, 0, 3};
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {3, 2}});
  const ValueId gain = b.initializer("gain", {DType::F32, {2}}, InitializerRole::Parameter);
  b.output("y", b.add(OpKind::Mul, {x, gain}), OutputRole::Prediction);
  const Graph model = b.finish();
  const LossSpec loss{.type = LossType::Mse,
                      .prediction = "y",
                      .target = "t",
                      .axis = {},
                      .ignore_index = {},
                      .class_weights = {},
                      .label_smoothing = 0,
                      .sample_weights = "v"};
  // Of sample means 0.5, 2 and 8.
  const double expected = (1 * 0.5 + 3 * 8) / 4;
  for (const Shape& of_weights : {Shape{3}, Shape{3, 1}}) {
    const TermColumns columns{.target = {DType::F64, {3, 2}},
                              .sample_weights = TensorSpec{DType::U8, of_weights}};
    const auto attached = attach_training_loss(model, {&loss, 1}, {&columns, 1}, 1, op_table());
    ASSERT_TRUE(attached.has_value()) << attached.error().message;
    EXPECT_EQ(attached->divisors.at(0).rule.elements, 2);
    EXPECT_NEAR(
        run(attached->graph,
            {{"x", y}, {"gain", {1, 1}}, {"loss.target", t}, {"loss.weights", v}, {"loss.divisor", {8}}},
            OutputRole::Loss)
            .at(0),
        expected, 1e-7);
  }
  const TermColumns wrong{.target = {DType::F32, {3, 2}}, .sample_weights = TensorSpec{DType::F32, {3, 3}}};
  const auto refused = attach_training_loss(model, {&loss, 1}, {&wrong, 1}, 1, op_table());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("neither one a sample"), std::string::npos);
}

// ---- every loss over every type of output, target and weight is computed, or refused in words

TEST(LossTypes, EachIsTakenCastOrRefused) {
  constexpr DType kAll[] = {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8,
                            DType::U8,  DType::I16, DType::U16, DType::I32,  DType::U32,
                            DType::I64, DType::U64, DType::Bool};
  int taken = 0, refused = 0;
  for (const LossType type :
       {LossType::CrossEntropy, LossType::Mse, LossType::L1, LossType::BceWithLogits, LossType::Output})
    for (const DType output : kAll)
      for (const DType target : kAll)
        for (const DType weight : kAll) {
          const bool classes = type == LossType::CrossEntropy, own = type == LossType::Output;
          GraphBuilder b(op_table());
          const Shape shape = own ? Shape{} : classes ? Shape{2, 3} : Shape{2};
          const ValueId x = b.input("x", {DType::F32, shape});
          ValueId y =
              b.add(OpKind::Mul, {x, b.initializer("gain", {DType::F32, {}}, InitializerRole::Parameter)});
          if (output != DType::F32)
            y = b.add(OpKind::Cast, {y}, {{Attr::DType, static_cast<int64_t>(output)}});
          b.output("y", y, OutputRole::Prediction);
          const Graph model = b.finish();
          LossSpec loss{
              .type = type, .prediction = "y", .target = own ? "" : "t", .axis = {}, .ignore_index = -1};
          if (!own) loss.sample_weights = "v";
          const TermColumns columns{.target = {target, {2}}, .sample_weights = TensorSpec{weight, {2}}};
          SCOPED_TRACE(std::string(to_string(output)) + " " + std::string(to_string(target)) + " " +
                       std::string(to_string(weight)));
          const auto training = attach_training_loss(model, {&loss, 1}, {&columns, 1}, 2, op_table());
          const auto evaluation = attach_evaluation_loss(model, {&loss, 1}, {&columns, 1}, 2, op_table());
          const bool fits = is_float(output) && (!classes || !is_float(target));
          ASSERT_EQ(training.has_value(), fits) << (fits ? training.error().message : "");
          ASSERT_EQ(evaluation.has_value(), fits) << (fits ? evaluation.error().message : "");
          if (!fits) {
            ++refused;
            continue;
          }
          ++taken;
          const auto gradient = differentiate(training->graph, op_table());
          ASSERT_TRUE(gradient.has_value()) << gradient.error().message;
          const Inputs inputs{{"x", std::vector<double>(own       ? 1
                                                        : classes ? 6
                                                                  : 2,
                                                        1.0)},
                              {"gain", {1}},
                              {"loss.target", {1, 0}},
                              {"loss.weights", {1, 1}},
                              {"loss.divisor", {2}},
                              {"loss.mask", {1, 1}}};
          const double expected = classes                           ? std::log(3.0)
                                  : own                             ? 1
                                  : type == LossType::BceWithLogits ? 0.8132617
                                                                    : 0.5;
          // The mean of two such microbatches, each of which is said to be a half of the step.
          const double factor = own ? 1 : 2;
          EXPECT_NEAR(run(*gradient, inputs, OutputRole::Loss).at(0), factor * expected, 0.02);
          if (own) continue;
          EXPECT_NEAR(run(*evaluation, inputs, OutputRole::Loss).at(0), 2 * expected, 0.02);
        }
  EXPECT_EQ(taken, 4 * (3 * 13 + 13 + 9) * 13)
      << "4 float outputs; 3 losses and the model's own take any target";
  EXPECT_GT(refused, 0);
}

TEST(LossTypes, ATargetMayDifferInAxesOfLengthOneAlone) {
  const struct {
    Shape output, target;
    bool fits;
  } cases[] = {{{4, 3, 8, 8}, {4, 8, 8, 3}, false},
               {{4, 2, 3}, {4, 3, 2}, false},
               {{4, 1, 4, 6}, {4, 6, 4, 1}, false},
               {{4, 3, 4}, {4, 2, 6}, false},
               {{4, 1}, {4}, true},
               {{4}, {4, 1}, true},
               {{4, 1, 1}, {4}, true},
               {{4, 1, 5, 5}, {4, 5, 5}, true},
               {{1, 3}, {1, 3, 1}, true},
               {{3, 4}, {4, 3}, false},
               {{4, 2}, {4, 2}, true}};
  for (const auto& one : cases)
    for (const LossType type : {LossType::Mse, LossType::L1, LossType::BceWithLogits}) {
      SCOPED_TRACE(to_string(one.output) + " against " + to_string(one.target));
      GraphBuilder b(op_table());
      const ValueId x = b.input("x", {DType::F32, one.output});
      b.output("y", b.add(OpKind::Abs, {x}), OutputRole::Prediction);
      const Graph model = b.finish();
      const LossSpec loss{.type = type, .prediction = "y", .target = "t", .axis = {}, .ignore_index = {}};
      const TermColumns columns{.target = {DType::F32, one.target}};
      const auto attached = attach_training_loss(model, {&loss, 1}, {&columns, 1}, 1, op_table());
      ASSERT_EQ(attached.has_value(), one.fits);
      if (one.fits) {
        EXPECT_EQ(attached->notes.size(), one.output == one.target ? 0u : 1u);
        continue;
      }
      EXPECT_NE(attached.error().message.find(to_string(one.output)), std::string::npos);
      EXPECT_NE(attached.error().message.find(to_string(one.target)), std::string::npos);
    }
}

TEST(LossTypes, TheClassAxisIsNeverThatOfTheSamples) {
  EXPECT_EQ(class_axis({10, 10}, {10}), 1);
  EXPECT_EQ(class_axis({3, 3, 6, 6}, {3, 6, 6}), 1);
  EXPECT_EQ(class_axis({8, 12, 50}, {8, 12}), 2);
  EXPECT_FALSE(class_axis({8, 12, 12}, {8, 12}).has_value()) << "two axes that the labels may lack";
  EXPECT_FALSE(class_axis({5, 8}, {8}).has_value()) << "only the first axis would fit";
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {10, 10}});
  b.output("y", b.add(OpKind::Abs, {x}), OutputRole::Prediction);
  const Graph model = b.finish();
  const TermColumns columns{.target = {DType::I64, {10}}};
  for (const int64_t axis : {0, -2}) {
    const LossSpec loss{.prediction = "y", .target = "t", .axis = axis, .ignore_index = {}};
    const auto refused = attach_training_loss(model, {&loss, 1}, {&columns, 1}, 1, op_table());
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message.find("samples"), std::string::npos);
  }
  for (const int64_t axis : {1, -1}) {
    const LossSpec loss{.prediction = "y", .target = "t", .axis = axis, .ignore_index = {}};
    EXPECT_TRUE(attach_training_loss(model, {&loss, 1}, {&columns, 1}, 1, op_table()).has_value());
  }
}

// ---- a loss of the model's own

// SoftmaxCrossEntropyLoss over next tokens: labels are tokens[:, 1:], flattened.
Graph language_model(int64_t samples, bool weighted) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {samples, kTokens, kClasses}});
  const ValueId tokens = b.input("tokens", {DType::I32, {samples, kTokens + 1}});
  const ValueId gain = b.initializer("gain", {DType::F32, {kClasses}}, InitializerRole::Parameter);
  const ValueId logits = b.add(OpKind::Reshape, {b.add(OpKind::Mul, {x, gain})},
                               {{Attr::Shape, Shape{samples * kTokens, kClasses}}});
  const ValueId next =
      b.add(OpKind::Slice, {tokens},
            {{Attr::Starts, Ints{0, 1}}, {Attr::Sizes, Ints{samples, kTokens}}, {Attr::Steps, Ints{1, 1}}});
  const ValueId wide = b.add(OpKind::Cast, {next}, {{Attr::DType, static_cast<int64_t>(DType::I64)}});
  const ValueId labels = b.add(OpKind::Reshape, {wide}, {{Attr::Shape, Shape{samples * kTokens}}});
  std::vector<ValueId> operands{logits, labels};
  if (weighted) operands.push_back(b.constant(make_tensor({kClasses}, std::vector<float>{1, 0.5f, 3, 0})));
  b.output(
      "loss",
      b.add(
          OpKind::CrossEntropy, std::move(operands),
          {{Attr::Axis, int64_t{1}}, {Attr::Reduction, std::string("mean")}, {Attr::IgnoreIndex, kIgnored}}),
      OutputRole::Prediction);
  return b.finish();
}

TEST(CountedMean, OfTheModelsOwnIsThatOfTheWholeStep) {
  const Step step(7);
  std::vector<double> tokens;
  for (int64_t i = 0; i < kSamples; ++i) {
    tokens.push_back(0);  // the first is no label
    for (int64_t t = 0; t < kTokens; ++t) tokens.push_back(step.labels[static_cast<size_t>(i * kTokens + t)]);
  }
  for (const bool weighted : {false, true}) {
    const LossSpec as_job =
        token_loss(weighted ? std::vector<double>{1, 0.5, 3, 0} : std::vector<double>{}, 0, false);
    const auto [sum, divisor] = cross_entropy(step, as_job);
    const LossSpec loss{
        .type = LossType::Output, .prediction = "loss", .target = {}, .axis = {}, .ignore_index = {}};
    const TermColumns none;
    EvaluationSums sums(loss_terms({&loss, 1}));
    for (const int64_t samples : {8, 2}) {
      const auto attached = attach_training_loss(language_model(samples, weighted), {&loss, 1}, {&none, 1},
                                                 static_cast<uint32_t>(kSamples / samples), op_table());
      ASSERT_TRUE(attached.has_value()) << attached.error().message;
      EXPECT_TRUE(attached->notes.empty());
      ASSERT_EQ(attached->divisors.size(), 1u);
      EXPECT_EQ(attached->divisors[0].labels, "tokens");
      EXPECT_EQ(attached->divisors[0].rule.reads, (std::vector<uint32_t>{0, 1, 1, 1}));
      EXPECT_EQ(attached->divisors[0].rule.ignore_index, kIgnored);
      EXPECT_EQ(attached->divisors[0].rule.class_weights, as_job.class_weights);
      const auto evaluation = attach_evaluation_loss(language_model(samples, weighted), {&loss, 1},
                                                     {&none, 1}, samples, op_table());
      double mean = 0;
      for (int64_t first = 0; first < kSamples; first += samples) {
        Inputs inputs = inputs_of(step, first, samples);
        inputs["tokens"] = part(tokens, first, samples);
        inputs["loss.divisor"] = {divisor};
        mean +=
            run(attached->graph, inputs, OutputRole::Loss).at(0) * static_cast<double>(samples) / kSamples;
        if (samples == 2)
          sums.add(run(*evaluation, inputs, OutputRole::Loss), run(*evaluation, inputs, OutputRole::Counted),
                   0);
      }
      EXPECT_NEAR(mean, sum / divisor, 1e-7);
    }
    EXPECT_NEAR(sums.loss(), sum / divisor, 1e-6);
  }
}

TEST(CountedMean, AnotherLossOfTheModelSaysWhatItWillBe) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {4}});
  b.output("loss", b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Prediction);
  const Graph model = b.finish();
  EXPECT_FALSE(find_counted_mean(model, model.outputs()[0].value).has_value());
  const LossSpec loss{
      .type = LossType::Output, .prediction = "loss", .target = {}, .axis = {}, .ignore_index = {}};
  const TermColumns none;
  EXPECT_EQ(attach_training_loss(model, {&loss, 1}, {&none, 1}, 2, op_table())->notes.size(), 1u);
  EXPECT_TRUE(attach_training_loss(model, {&loss, 1}, {&none, 1}, 1, op_table())->notes.empty());
}

// Labels of which samples read different ones, or that mix samples, tell no count.
TEST(CountedMean, LabelsThatAreNotReadAlikeTellNoCount) {
  const auto with = [](const std::function<ValueId(GraphBuilder&, ValueId)>& labels_of) {
    GraphBuilder b(op_table());
    const ValueId tokens = b.input("tokens", {DType::I64, {2, 2}});
    const ValueId labels = labels_of(b, tokens);
    const int64_t count = b.spec(labels).element_count();
    const ValueId x = b.input("x", {DType::F32, {count, kClasses}});
    const ValueId flat = b.add(OpKind::Reshape, {labels}, {{Attr::Shape, Shape{count}}});
    b.output("loss",
             b.add(OpKind::CrossEntropy, {x, flat},
                   {{Attr::Axis, int64_t{1}},
                    {Attr::Reduction, std::string("mean")},
                    {Attr::IgnoreIndex, kIgnored}}),
             OutputRole::Prediction);
    const Graph graph = b.finish();
    return find_counted_mean(graph, graph.outputs()[0].value).has_value();
  };
  EXPECT_TRUE(with([](GraphBuilder&, ValueId tokens) { return tokens; }));
  EXPECT_FALSE(with([](GraphBuilder& b, ValueId tokens) {
    return b.add(OpKind::Transpose, {tokens}, {{Attr::Perm, Ints{1, 0}}});
  }));
  EXPECT_FALSE(with([](GraphBuilder& b, ValueId tokens) {
    return b.add(OpKind::Slice, {tokens},
                 {{Attr::Starts, Ints{0, 0}}, {Attr::Sizes, Ints{1, 2}}, {Attr::Steps, Ints{1, 1}}});
  }));
  EXPECT_FALSE(with([](GraphBuilder& b, ValueId tokens) { return b.add(OpKind::Abs, {tokens}); }));
}

}  // namespace
}  // namespace weft::dag
