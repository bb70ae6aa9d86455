// LSTM, GRU and RNN: the op over the sequence against the same cell step by step, forms and refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/op_table.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;
using dag::Tensor;

constexpr int64_t kSteps = 5, kBatch = 3, kInputs = 2, kHidden = 4;

int64_t gates_of(const std::string& op) { return op == "LSTM" ? 4 : op == "GRU" ? 3 : 1; }

Tensor random_tensor(const dag::Shape& shape, uint64_t seed) {
  Rng rng(seed, 11);
  std::vector<float> values(static_cast<size_t>(dag::TensorSpec{dag::DType::F32, shape}.element_count()));
  for (float& value : values) value = 0.7f * static_cast<float>(rng.normal());
  return dag::make_tensor(shape, std::span<const float>(values));
}
void randomise(pb::TensorProto& tensor, uint64_t seed) {
  const Tensor values = random_tensor({tensor.dims().begin(), tensor.dims().end()}, seed);
  tensor.set_raw_data(values.bytes().data(), values.bytes().size());
}

struct Form {
  std::string op;
  std::string direction = "forward";
  bool states = false, lengths = false, batch_first = false;
  int64_t linear_before_reset = 0;
};

// y, y_h (and y_c) of one node, and as the loss a sum over all of them with weights of their own.
ModelMaker model_of(const Form& form, const std::function<void(pb::NodeProto&)>& change = {}) {
  ModelMaker maker;
  const int64_t directions = form.direction == "bidirectional" ? 2 : 1, rows = gates_of(form.op) * kHidden;
  const auto state = [&]() -> std::vector<int64_t> {
    return form.batch_first ? std::vector<int64_t>{kBatch, directions, kHidden}
                            : std::vector<int64_t>{directions, kBatch, kHidden};
  }();
  randomise(maker.weight("x", form.batch_first ? std::vector<int64_t>{kBatch, kSteps, kInputs}
                                               : std::vector<int64_t>{kSteps, kBatch, kInputs}),
            1);
  randomise(maker.weight("w", {directions, rows, kInputs}), 2);
  randomise(maker.weight("r", {directions, rows, kHidden}), 3);
  randomise(maker.weight("b", {directions, 2 * rows}), 4);
  maker.ints("lengths", {3, 0, kSteps});
  randomise(maker.weight("h0", state), 5);
  randomise(maker.weight("c0", state), 6);
  std::vector<std::string> inputs{"x", "w", "r", "b", form.lengths ? "lengths" : ""};
  std::vector<std::string> outputs{"y", "y_h"};
  if (form.states) inputs.push_back("h0");
  if (form.states && form.op == "LSTM") inputs.push_back("c0");
  if (form.op == "LSTM") outputs.push_back("y_c");
  auto& node = maker.node(form.op, inputs, outputs);
  attribute(node, "hidden_size", kHidden);
  attribute(node, "direction", form.direction);
  if (form.batch_first) attribute(node, "layout", int64_t{1});
  if (form.op == "GRU") attribute(node, "linear_before_reset", form.linear_before_reset);
  if (change) change(node);
  std::string sum;
  for (const std::string& output : outputs) {
    maker.node("Sin", {output}, {output + "_bent"});
    attribute(maker.node("ReduceSum", {output + "_bent"}, {output + "_sum"}), "keepdims", int64_t{0});
    if (!sum.empty()) maker.node("Add", {sum, output + "_sum"}, {output + "_total"});
    sum = sum.empty() ? output + "_sum" : output + "_total";
    maker.output(output);
  }
  maker.node("Identity", {sum}, {"loss"});
  maker.output("loss");
  return maker;
}

// All outputs, and the gradients of everything by name.
std::map<std::string, Tensor> results_of(const ModelMaker& maker, int recurrent_ops) {
  const auto model = import_bytes(maker.bytes());
  if (!model) {
    ADD_FAILURE() << model.error().message;
    return {};
  }
  EXPECT_EQ(count_kind(model->graph, OpKind::Lstm) + count_kind(model->graph, OpKind::Gru) +
                count_kind(model->graph, OpKind::Rnn),
            recurrent_ops);
  dag::GraphCopy copy(model->graph, dag::op_table());
  for (uint32_t i = 0; i < model->graph.ops().size(); ++i) copy.copy(dag::OpId{i});
  copy.copy_outputs();
  const auto* loss = model->graph.find_output(dag::OutputRole::Prediction, "loss");
  copy.builder().output("total", copy.mapped(loss->value), dag::OutputRole::Loss);
  const auto graph = dag::differentiate(copy.finish(), dag::op_table());
  if (!graph) {
    ADD_FAILURE() << graph.error().message;
    return {};
  }
  const auto results = run_graph(*graph, model->weights, {});
  return results ? *results : std::map<std::string, Tensor>{};
}

void expect_close(const std::map<std::string, Tensor>& actual,
                  const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    ASSERT_EQ(actual.at(name).spec(), tensor.spec()) << name;
    const auto a = to_doubles(actual.at(name)), e = to_doubles(tensor);
    for (size_t i = 0; i < e.size(); ++i)
      ASSERT_NEAR(a[i], e[i], 1e-5 * (1 + std::abs(e[i]))) << name << " at " << i;
  }
}

// A clip that never clips makes the importer go step by step.
TEST(Recurrent, TheOpAgreesWithTheCellStepByStepAndSoDoGradients) {
  for (const auto& [op, linear] : {std::pair{"LSTM", 0}, {"GRU", 0}, {"GRU", 1}, {"RNN", 0}})
    for (const char* direction : {"forward", "reverse", "bidirectional"})
      for (const bool full : {false, true}) {
        const Form form{op, direction, full, full, full, linear};
        SCOPED_TRACE(std::string(op) + (linear ? " linear " : " ") + direction + (full ? " full" : ""));
        const int directions = form.direction == "bidirectional" ? 2 : 1;
        const auto fused = results_of(model_of(form), directions);
        expect_close(fused, results_of(model_of(form, [](auto& node) { attribute(node, "clip", 1e6f); }), 0));
        EXPECT_EQ(fused.count("w") + fused.count("r") + fused.count("b"), 3u);
        EXPECT_EQ(fused.count("h0"), full ? 1u : 0u);
      }
}

TEST(Recurrent, OutputsBeyondALengthAreZeroAndTheLastStateIsThatAtTheLength) {
  const auto results = results_of(model_of({"GRU", "reverse", false, true}), 1);
  const auto y = to_doubles(results.at("y")), h = to_doubles(results.at("y_h"));
  for (int64_t t = 0; t < kSteps; ++t)
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t j = 0; j < kHidden; ++j) {
        const int64_t length = b == 0 ? 3 : b == 1 ? 0 : kSteps;
        const double value = y[static_cast<size_t>((t * kBatch + b) * kHidden + j)];
        EXPECT_EQ(value == 0, t >= length);
        // Backwards the last step is the first.
        const double last = h[static_cast<size_t>(b * kHidden + j)];
        EXPECT_TRUE(t != 0 || last == value) << last << " and " << value;
      }
}

TEST(Recurrent, EveryFunctionOfAGateIsItsFormula) {
  const double a = 0.3, b = 0.6;
  const std::map<std::string, std::function<double(double)>> functions{
      {"Relu", [](double x) { return std::max(0.0, x); }},
      {"Tanh", [](double x) { return std::tanh(x); }},
      {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"Affine", [=](double x) { return a * x + b; }},
      {"LeakyRelu", [=](double x) { return x > 0 ? x : a * x; }},
      {"ThresholdedRelu", [=](double x) { return x > a ? x : 0; }},
      {"ScaledTanh", [=](double x) { return a * std::tanh(b * x); }},
      {"HardSigmoid", [=](double x) { return std::min(1.0, std::max(0.0, a * x + b)); }},
      {"Elu", [=](double x) { return x > 0 ? x : a * (std::exp(x) - 1); }},
      {"Softsign", [](double x) { return x / (1 + std::abs(x)); }},
      {"Softplus", [](double x) { return std::log1p(std::exp(x)); }}};
  for (const auto& [name, function] : functions) {
    SCOPED_TRACE(name);
    ModelMaker maker;
    maker.input("x", {1, 6, 1}).output("y");
    maker.weight("w", {1, 1, 1}, 1.0f);
    maker.weight("r", {1, 1, 1}, 0.25f);
    auto& node = maker.node("RNN", {"x", "w", "r"}, {"y"});
    attribute(node, "activation_alpha", 0.0f).set_type(pb::AttributeProto::FLOATS);
    node.mutable_attribute(0)->add_floats(0.3f);
    attribute(node, "activation_beta", 0.0f).set_type(pb::AttributeProto::FLOATS);
    node.mutable_attribute(1)->add_floats(0.6f);
    auto& activations = attribute(node, "activations", std::string());
    activations.set_type(pb::AttributeProto::STRINGS);
    activations.add_strings(name);
    const auto model = import_bytes(maker.bytes());
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const std::vector<float> x{-9, -1.5, -0.2, 0.25, 0.4, 2};
    const auto results = run_graph(model->graph, model->weights,
                                   {{"x", dag::make_tensor({1, 6, 1}, std::span<const float>(x))}});
    ASSERT_TRUE(results.has_value());
    const auto y = to_doubles(results->at("y"));
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(y[i], function(static_cast<double>(x[i])), 1e-6) << "at " << x[i];
  }
}

TEST(Recurrent, KnownZeroStatesAndFullLengthsCostNothing) {
  ModelMaker maker = model_of({"LSTM", "forward", true, true});
  for (auto& tensor : *maker.graph().mutable_initializer()) {
    if (tensor.name() == "lengths")
      for (int i = 0; i < kBatch; ++i) tensor.set_int64_data(i, kSteps);
  }
  // States that the exporter computes from a shape.
  maker.ints("state_shape", {1, kBatch, kHidden});
  auto& zeros = maker.node("ConstantOfShape", {"state_shape"}, {"zeros"});
  auto* nodes = maker.graph().mutable_node();
  for (int i = nodes->size() - 1; i > 0; --i) nodes->SwapElements(i, i - 1);
  (void)zeros;
  auto& lstm = *nodes->Mutable(1);
  lstm.set_input(5, "zeros");
  lstm.set_input(6, "zeros");
  const auto model = import_bytes(maker.bytes());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  for (const dag::Op& op : model->graph.ops()) {
    if (op.kind != OpKind::Lstm) continue;
    EXPECT_FALSE(op.inputs[2].valid());
    EXPECT_FALSE(op.inputs[3].valid());
    EXPECT_FALSE(op.inputs[4].valid());
  }
}

std::string refusal(const Form& form, const std::function<void(pb::NodeProto&)>& change) {
  const auto model = import_bytes(model_of(form, change).bytes());
  return model ? "" : model.error().message;
}

TEST(Recurrent, WhatDoesNotFitIsRefusedByName) {
  EXPECT_NE(refusal({"LSTM"}, [](auto& n) { n.mutable_attribute(1)->set_s("sideways"); }).find("sideways"),
            std::string::npos);
  EXPECT_NE(refusal({"LSTM"}, [](auto& n) { n.mutable_attribute(0)->set_i(7); }).find("hidden_size"),
            std::string::npos);
  EXPECT_NE(refusal({"GRU"}, [](auto& n) { n.set_input(3, "h0"); }).find("does not fit"), std::string::npos);
  EXPECT_NE(refusal({"RNN"}, [](auto& n) { n.set_input(1, "r"); }).find("do not fit"), std::string::npos);
  const auto unknown = [](auto& n) {
    auto& activations = attribute(n, "activations", std::string());
    activations.set_type(pb::AttributeProto::STRINGS);
    activations.add_strings("Cube");
  };
  EXPECT_NE(refusal({"RNN"}, unknown).find("'cube'"), std::string::npos);
}

TEST(Recurrent, AFormThatIsUnrolledHasABudget) {
  ModelMaker maker;
  maker.input("x", {100000, 1, 1}).output("y");
  maker.weight("w", {1, 4, 1});
  maker.weight("r", {1, 4, 1});
  attribute(maker.node("LSTM", {"x", "w", "r"}, {"y"}), "clip", 1.0f);
  const auto model = import_bytes(maker.bytes());
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().message.find("step by step"), std::string::npos) << model.error().message;
}

}  // namespace
}  // namespace weft::onnx::testing
