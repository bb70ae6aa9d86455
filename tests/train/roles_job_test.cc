// What a job says of its parameters and its loss, carried out: train, freeze, logits of any value.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "configs/job.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/onnx/exporters.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/trainer.h"

namespace weft {
namespace {

using onnx::testing::attribute;
using onnx::testing::ModelMaker;

class RolesJob : public testing::Test {
 protected:
  struct Run {
    std::vector<double> losses;
    train::StartEvent start;
    dag::Weights weights;
    std::string error;

    std::vector<double> values(const std::string& name) const { return to_doubles(weights.at(name)); }
  };

  // Twelve samples of four numbers, with labels of three classes.
  void write(const ModelMaker& maker) {
    onnx::testing::write_bytes(scratch_.folder() / "model.onnx", maker.bytes());
    std::vector<float> x(48);
    std::vector<int64_t> label(12);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7) % 11) / 5 - 1;
    for (size_t i = 0; i < label.size(); ++i) label[i] = static_cast<int64_t>(i % 3);
    const std::vector<float> target(36, 0.25f);
    const data::NpzArray arrays[] = {
        {"target", dag::make_tensor({12, 3}, std::span<const float>(target))},
        {"x", dag::make_tensor({12, 4}, std::span<const float>(x))},
        {"label", dag::make_tensor({12}, std::span<const int64_t>(label))},
    };
    const auto bytes = data::npz_bytes(arrays);
    ASSERT_TRUE(bytes.has_value());
    std::ofstream(scratch_.folder() / "train.npz", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
    std::ofstream(scratch_.folder() / "job.yaml")
        << "model: model.onnx\ntask: train\ninputs: {x: x}\n"
           "loss: {type: cross_entropy, logits: logits, labels: label}\n"
           "data:\n  train: {type: npz, path: train.npz}\nbatch_size: 6\nsteps: 4\nshuffle: false\n"
           "optimizer: {type: sgd, learning_rate: 0.1}\noutput: trained.onnx\n";
  }

  Run run(const std::vector<std::string>& sets = {}) {
    Run run;
    const auto job = configs::load_job(scratch_.folder() / "job.yaml", sets);
    if (!job) return Run{.losses = {}, .start = {}, .weights = {}, .error = job.error().message};
    const auto backend = peer::make_reference_backend();
    const auto result = train::train(*job, *backend, {}, [&](const train::Event& event) {
      if (const auto* start = std::get_if<train::StartEvent>(&event)) run.start = *start;
      if (const auto* step = std::get_if<train::StepEvent>(&event)) run.losses.push_back(step->loss);
    });
    if (!result) {
      run.error = result.error().message;
      return run;
    }
    const auto model = onnx::read_model(result->output);
    if (model) run.weights = model->weights();
    return run;
  }

  test::Scratch scratch_;
};

// logits = (x W + b) * gain, and probabilities of them.
ModelMaker classifier(const std::string& activation = "", bool constants = false) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output(activation.empty() ? "logits" : "probabilities");
  const auto add = [&](const std::string& name, const std::vector<int64_t>& dims, float value) {
    if (constants)
      onnx::testing::constant_node(maker, name, dims, value);
    else
      maker.weight(name, dims, value);
  };
  add("w", {4, 3}, 0.1f);
  add("b", {3}, 0.0f);
  maker.weight("gain", {}, 1.5f);
  maker.node("MatMul", {"x", "w"}, {"xw"});
  maker.node("Add", {"xw", "b"}, {"xwb"});
  maker.node("Mul", {"xwb", "gain"}, {"logits"}).set_name("scale");
  if (!activation.empty()) {
    auto& node = maker.node(activation, {"logits"}, {"act"});
    node.set_name("final_act");
    if (activation != "Sigmoid") attribute(node, "axis", int64_t{-1});
    maker.node("Identity", {"act"}, {"probabilities"});
  }
  return maker;
}

bool any_has(const std::vector<std::string>& lines, const std::string& word) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(word) != std::string::npos; });
}

TEST_F(RolesJob, AScalarFactorIsTrainedWhereTheJobSaysSo) {
  write(classifier());
  const Run plain = run();
  ASSERT_TRUE(plain.error.empty()) << plain.error;
  EXPECT_EQ(plain.values("gain"), std::vector<double>{1.5});
  EXPECT_TRUE(any_has(plain.start.notes, "'gain' of Mul 'scale'"));
  EXPECT_TRUE(plain.start.warnings.empty());
  const Run named = run({"train=['gain']"});
  EXPECT_NE(named.values("gain"), std::vector<double>{1.5});
  EXPECT_NE(named.values("w"),
            to_doubles(onnx::read_model(scratch_.folder() / "model.onnx")->weights().at("w")));
  EXPECT_EQ(named.start.parameter_tensors, 3u);
  EXPECT_TRUE(named.start.notes.empty());
}

TEST_F(RolesJob, TrainMayNameAllThatIsTrained) {
  write(classifier());
  const Run all = run({"train=['b']"});
  ASSERT_TRUE(all.error.empty()) << all.error;
  EXPECT_EQ(all.start.parameter_tensors, 1u);
  EXPECT_EQ(all.start.frozen_tensors, 1u);
  EXPECT_EQ(all.values("w"),
            to_doubles(onnx::read_model(scratch_.folder() / "model.onnx")->weights().at("w")));
}

TEST_F(RolesJob, APatternOfTrainThatMatchesNothingIsAnErrorWithItsLine) {
  write(classifier());
  std::ofstream(scratch_.folder() / "job.yaml", std::ios::app) << "train: [\"w\", \"gian\"]\n";
  const Run wrong = run();
  EXPECT_NE(wrong.error.find("job.yaml:12:14: nothing is trained by 'gian'"), std::string::npos)
      << wrong.error;
  EXPECT_NE(wrong.error.find("near names are 'gain'"), std::string::npos) << wrong.error;
}

TEST_F(RolesJob, WeightsInConstantNodesLearnWhatInitializersLearn) {
  write(classifier());
  const Run plain = run();
  write(classifier("", /*constants=*/true));
  const Run constants = run();
  ASSERT_TRUE(constants.error.empty()) << constants.error;
  EXPECT_EQ(constants.losses, plain.losses);
  for (const std::string name : {"w", "b"}) EXPECT_EQ(constants.values(name), plain.values(name)) << name;
}

TEST_F(RolesJob, ASoftmaxInFrontOfTheLossIsWarnedOfAndAnyValueMayBeTheLogits) {
  write(classifier());
  const Run plain = run();
  for (const std::string activation : {"Softmax", "LogSoftmax", "Sigmoid"}) {
    SCOPED_TRACE(activation);
    write(classifier(activation));
    const Run doubled = run({"loss.logits=probabilities"});
    ASSERT_TRUE(doubled.error.empty()) << doubled.error;
    ASSERT_EQ(doubled.start.warnings.size(), 1u);
    const std::string& warning = doubled.start.warnings[0];
    EXPECT_NE(warning.find(activation + " 'final_act'"), std::string::npos) << warning;
    EXPECT_TRUE(warning.ends_with("`logits: logits`")) << warning;
    EXPECT_EQ(doubled.losses.size(), 4u) << "the run goes on as written";
    const Run named = run();
    ASSERT_TRUE(named.error.empty()) << named.error;
    EXPECT_TRUE(named.start.warnings.empty()) << named.start.warnings[0];
    EXPECT_EQ(named.losses, plain.losses);
    EXPECT_EQ(named.values("w"), plain.values("w"));
  }
}

TEST_F(RolesJob, OfALossThatMakesNoProbabilitiesNothingIsSaid) {
  write(classifier("Sigmoid"));
  for (const std::string type : {"mse", "l1"}) {
    const Run of_type = run({"loss={type: " + type + ", output: probabilities, target: target}"});
    ASSERT_TRUE(of_type.error.empty()) << of_type.error;
    EXPECT_FALSE(any_has(of_type.start.warnings, "final_act"));
  }
}

// One step of SGD over a frozen BatchNorm, as PyTorch's eval() computes it: y = x / sqrt(var + eps) * weight.
TEST_F(RolesJob, AFrozenBatchNormNormalisesByItsStatisticsAndKeepsThem) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("logits");
  for (const char* name : {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"})
    maker.weight(name, {4}, name == std::string("bn.bias") ? 0.0f : 0.8f);
  maker.weight("w", {4, 3}, 0.1f);
  attribute(maker.node("BatchNormalization",
                       {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}, {"n", "m", "v"}),
            "training_mode", int64_t{1});
  maker.node("MatMul", {"n", "w"}, {"logits"});
  write(maker);
  const auto before = onnx::read_model(scratch_.folder() / "model.onnx")->weights();
  const Run moving = run();
  ASSERT_TRUE(moving.error.empty()) << moving.error;
  EXPECT_NE(moving.values("bn.running_mean"), to_doubles(before.at("bn.running_mean")));
  const Run held = run({"freeze=['bn.*']"});
  ASSERT_TRUE(held.error.empty()) << held.error;
  for (const auto& [name, tensor] : before)
    if (name.starts_with("bn.")) {
      EXPECT_EQ(held.values(name), to_doubles(tensor)) << name;
    }
  // The same network with the statistics written out as numbers.
  maker.graph().mutable_node(0)->mutable_attribute()->DeleteSubrange(0, 1);
  maker.graph().mutable_node(0)->mutable_output()->DeleteSubrange(1, 2);
  write(maker);
  const Run inference = run({"freeze=['bn.*']"});
  EXPECT_EQ(held.losses, inference.losses);
  EXPECT_EQ(held.values("w"), inference.values("w"));
  EXPECT_NE(held.losses, moving.losses);
}

}  // namespace
}  // namespace weft
