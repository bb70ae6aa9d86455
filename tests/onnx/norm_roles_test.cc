// What of a normalisation is trained and what of it moves: BatchNormalization with frozen parts, and those
// that stand for an instance normalisation.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "dag/onnx/export.h"
#include "dag/passes/canonicalise.h"
#include "tests/onnx/exporters.h"
#include "tests/onnx/judged.h"

namespace weft::onnx::testing {
namespace {

using dag::InitializerRole;
using dag::OpKind;

ModelMaker batch_norm_model(bool training, int64_t opset = 17) {
  ModelMaker maker(opset);
  maker.input("x", {-1, 3, 4, 4}).output("y");
  for (const char* name : {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"})
    maker.weight(name, {3}, 1.0f);
  maker.weight("w", {3, 3, 1, 1});
  auto& bn =
      maker.node("BatchNormalization", {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"},
                 training ? std::vector<std::string>{"n", "m", "v"} : std::vector<std::string>{"n"});
  bn.set_name("bn");
  if (training && opset >= 14) attribute(bn, "training_mode", int64_t{1});
  maker.node("Conv", {"n", "w"}, {"y"});
  return maker;
}

ImportedModel imported_with(const ModelMaker& maker, const std::vector<std::string>& freeze,
                            bool training = true) {
  ImportOptions options = training_options();
  options.freeze = freeze;
  options.training = training;
  auto imported = import_bytes(maker.bytes(), options);
  if (!imported) throw std::runtime_error(imported.error().message);
  return std::move(*imported);
}

TEST(BatchNormRoles, FrozenStatisticsHoldAndTheLayerNormalisesByThem) {
  const ImportedModel held = imported_with(batch_norm_model(true), {"bn.*"});
  EXPECT_EQ(count_kind(held.graph, OpKind::BatchNormInference), 1);
  EXPECT_EQ(held.graph.find_output(dag::OutputRole::StateUpdate), nullptr);
  EXPECT_TRUE(held.notes.empty() && held.warnings.empty());
  const ImportedModel trained = imported_with(batch_norm_model(true), {"bn.running_*"});
  EXPECT_EQ(count_kind(trained.graph, OpKind::BatchNormInference), 1) << "its weight and bias are trained";
  EXPECT_EQ(trained.graph.find_initializer("bn.weight")->role, InitializerRole::Parameter);
  EXPECT_EQ(trained.graph.find_initializer("bn.running_mean")->role, InitializerRole::Frozen);
}

TEST(BatchNormRoles, OneFrozenStatisticHoldsAndIsWarnedOf) {
  const ImportedModel model = imported_with(batch_norm_model(true), {"bn.running_mean"});
  EXPECT_EQ(count_kind(model.graph, OpKind::BatchNorm), 1);
  EXPECT_EQ(model.graph.find_output(dag::OutputRole::StateUpdate, "bn.running_mean"), nullptr);
  EXPECT_NE(model.graph.find_output(dag::OutputRole::StateUpdate, "bn.running_var"), nullptr);
  EXPECT_TRUE(any_has(model.warnings, {"'bn'", "one of its running statistics is frozen"}));
}

TEST(BatchNormRoles, StatisticsOfALayerWithFrozenWeightsMoveAndThatIsSaidOnce) {
  const ImportedModel model = imported_with(batch_norm_model(true), {"bn.weight", "bn.bias"});
  EXPECT_EQ(count_kind(model.graph, OpKind::BatchNorm), 1);
  EXPECT_NE(model.graph.find_output(dag::OutputRole::StateUpdate, "bn.running_mean"), nullptr);
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_TRUE(any_has(model.notes, {"'bn'", "go on moving"})) << model.notes[0];
}

TEST(BatchNormRoles, AnEvaluationExportIsWarnedOf) {
  for (const int64_t opset : {9, 17}) {
    EXPECT_TRUE(
        any_has(imported_with(batch_norm_model(false, opset), {}).warnings, {"'bn'", "inference form"}));
    EXPECT_TRUE(imported_with(batch_norm_model(false, opset), {"bn.*"}).warnings.empty()) << "meant so";
    EXPECT_TRUE(imported_with(batch_norm_model(true, opset), {}).warnings.empty());
    EXPECT_TRUE(imported_with(batch_norm_model(false, opset), {}, /*training=*/false).warnings.empty());
  }
}

// InstanceNorm as torch.onnx writes it: samples as channels of one sample.
ModelMaker instance_norm_model(const std::string& after = "Reshape") {
  ModelMaker maker;
  maker.input("x", {-1, 3, 4, 4}).output("y");
  maker.ints("as_channels", {1, 6, 4, 4});
  maker.ints("as_samples", {-1, 3, 4, 4});
  for (const char* name : {"s", "b", "m", "v"}) maker.weight(name, {6}, 1.0f);
  maker.node("Reshape", {"x", "as_channels"}, {"c"});
  auto& bn = maker.node("BatchNormalization", {"c", "s", "b", "m", "v"}, {"n", "mo", "vo"});
  bn.set_name("inst");
  attribute(bn, "training_mode", int64_t{1});
  attribute(bn, "epsilon", 0.01f);
  if (after == "Reshape")
    maker.node("Reshape", {"n", "as_samples"}, {"y"});
  else
    maker.node(after, {"n"}, {"y"});
  return maker;
}

TEST(InstanceNorm, WrittenAsBatchNormalizationKeepsEachSamplesStatistics) {
  const ModelMaker maker = instance_norm_model();
  const ImportedModel training = imported_with(maker, {}), predicting = imported_with(maker, {}, false);
  Rng rng(3, 3);
  std::vector<float> values(96);
  for (float& value : values) value = static_cast<float>(rng.normal() * 2 + 5);
  const dag::Tensor x = dag::make_tensor({2, 3, 4, 4}, std::span<const float>(values));
  const auto folder = fresh_folder("instance_norm");
  ASSERT_TRUE(write_trained(must_read(maker.bytes()), {}, folder / "m.onnx").has_value());
  const auto twin = import_bytes(read_all(folder / "m.inference.onnx"));
  ASSERT_TRUE(twin.has_value()) << twin.error().message;
  for (const ImportedModel* model : {&training, &predicting, &*twin}) {
    EXPECT_EQ(model->graph.find_output(dag::OutputRole::StateUpdate), nullptr);
    EXPECT_EQ(count_kind(model->graph, OpKind::BatchNormInference), 0);
    const auto outputs = run_graph(model->graph, model->weights, {{"x", x}});
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    const auto y = to_doubles(outputs->at("y"));
    for (size_t plane = 0; plane < 6; ++plane) {
      double sum = 0, squares = 0;
      for (size_t i = 0; i < 16; ++i) sum += static_cast<double>(values[plane * 16 + i]);
      for (size_t i = 0; i < 16; ++i)
        squares += std::pow(static_cast<double>(values[plane * 16 + i]) - sum / 16, 2);
      const double scale = 1 + 0.01 * static_cast<double>(plane);
      for (size_t i = 0; i < 16; ++i)
        EXPECT_NEAR(y[plane * 16 + i],
                    (static_cast<double>(values[plane * 16 + i]) - sum / 16) /
                            std::sqrt(squares / 16 + 0.01) * scale +
                        scale,
                    1e-5);
    }
  }
}

TEST(InstanceNorm, ABatchNormalizationOfOneSampleIsNone) {
  EXPECT_NE(imported_with(instance_norm_model("Relu"), {}).graph.find_output(dag::OutputRole::StateUpdate),
            nullptr);
}

}  // namespace
}  // namespace weft::onnx::testing
