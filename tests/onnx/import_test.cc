#include "dag/onnx/import.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "base/rng.h"
#include "dag/onnx/inspect.h"
#include "dag/passes/canonicalise.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::InitializerRole;
using dag::OpKind;

const dag::Initializer& initializer(const dag::Graph& graph, const std::string& name) {
  const auto* found = graph.find_initializer(name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

ImportedModel must_import(const std::string& bytes, const ImportOptions& options = training_options()) {
  auto imported = import_bytes(bytes, options);
  if (!imported) throw std::runtime_error(imported.error().message);
  return std::move(*imported);
}

TEST(Import, ALinearModelKeepsItsNames) {
  const ImportedModel model = must_import(linear_model().bytes());
  ASSERT_EQ(model.graph.inputs().size(), 1u);
  EXPECT_EQ(model.graph.value(model.graph.inputs()[0]).name, "x");
  EXPECT_EQ(model.graph.spec(model.graph.inputs()[0]).shape, (dag::Shape{2, 4}));
  EXPECT_EQ(initializer(model.graph, "w").role, InitializerRole::Parameter);
  EXPECT_EQ(model.weights.size(), 2u);
  ASSERT_NE(model.graph.find_output(dag::OutputRole::Prediction, "y"), nullptr);
  EXPECT_EQ(model.op_counts.at("MatMul"), 1);
}

TEST(Import, AFrozenInitializerIsFrozen) {
  ImportOptions options = training_options();
  options.freeze = {"b*"};
  const ImportedModel model = must_import(linear_model().bytes(), options);
  EXPECT_EQ(initializer(model.graph, "b").role, InitializerRole::Frozen);
  EXPECT_EQ(initializer(model.graph, "w").role, InitializerRole::Parameter);
}

TEST(Import, GlobPatternsMatchAsShellsDo) {
  EXPECT_TRUE(matches_glob("*.cos", "rope.cos"));
  EXPECT_TRUE(matches_glob("mask*", "mask"));
  EXPECT_TRUE(matches_glob("h.?.b*s", "h.3.bias"));
  EXPECT_FALSE(matches_glob("mask", "mask2"));
  EXPECT_FALSE(matches_glob("?", ""));
  EXPECT_TRUE(matches_glob("a*b*c", "aXXbYYbZc"));
  EXPECT_FALSE(matches_glob("a*b*c", "aXXbYY"));
}

TEST(Import, UnsupportedOperatorsAreListedAtOnceWithCounts) {
  ModelMaker maker = linear_model();
  maker.node("SequenceMap", {"x"}, {"r1"});
  maker.node("SequenceMap", {"x"}, {"r2"});
  maker.node("Foo", {"x"}, {"f"}).set_domain("com.acme");
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("2 x SequenceMap"), std::string::npos) << imported.error().message;
  EXPECT_NE(imported.error().message.find("1 x com.acme.Foo"), std::string::npos) << imported.error().message;
}

TEST(Import, ShapeArithmeticFoldsOnceTheBatchIsBound) {
  ModelMaker maker;
  maker.input("x", {-1, 6}).output("y");
  maker.ints("zero", {0}).clear_dims();
  maker.ints("tail", {2, 3});
  maker.ints("axis", {0});
  maker.node("Shape", {"x"}, {"shape"});
  maker.node("Gather", {"shape", "zero"}, {"n"});
  maker.node("Unsqueeze", {"n", "axis"}, {"n1"});
  attribute(maker.node("Concat", {"n1", "tail"}, {"target"}), "axis", int64_t{0});
  maker.node("Reshape", {"x", "target"}, {"y"});
  const ImportedModel model = must_import(maker.bytes());
  EXPECT_EQ(model.graph.ops().size(), 2u);
  EXPECT_EQ(model.graph.spec(model.graph.outputs()[0].value).shape, (dag::Shape{2, 2, 3}));
}

TEST(Import, AMaskThatOnlyComparisonsReadIsFolded) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).output("y");
  maker.weight("mask", {1, 3}, 0.0f);
  maker.weight("zero", {}, 0.0f);
  maker.weight("low", {}, -5.0f);
  maker.node("Equal", {"mask", "zero"}, {"hidden"});
  maker.node("Where", {"hidden", "low", "x"}, {"y"});
  const ImportedModel model = must_import(maker.bytes());
  EXPECT_EQ(model.graph.find_initializer("mask"), nullptr);
  EXPECT_EQ(count_kind(model.graph, OpKind::Equal), 0);
  EXPECT_EQ(count_kind(model.graph, OpKind::Where), 1);
}

ModelMaker batch_norm_model() {
  ModelMaker maker;
  maker.input("x", {-1, 3, 4, 4}).output("y");
  for (const char* name : {"scale", "bias", "mean", "var"}) maker.weight(name, {3}, 1.0f);
  auto& node = maker.node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y", "m", "v"});
  attribute(node, "training_mode", int64_t{1});
  attribute(node, "momentum", 0.75f);
  return maker;
}

dag::Tensor random_tensor(const dag::Shape& shape, uint64_t seed) {
  Rng rng(seed, 3);
  std::vector<float> values(static_cast<size_t>(dag::TensorSpec{dag::DType::F32, shape}.element_count()));
  for (float& value : values) value = static_cast<float>(rng.normal());
  return dag::make_tensor(shape, std::span<const float>(values));
}

TEST(Import, BatchNormUpdatesItsStatisticsAsPyTorchDoes) {
  const ImportedModel model = must_import(batch_norm_model().bytes());
  EXPECT_EQ(initializer(model.graph, "mean").role, InitializerRole::RunningStatistic);
  ASSERT_NE(model.graph.find_output(dag::OutputRole::StateUpdate, "var"), nullptr);
  const dag::Tensor x = random_tensor({2, 3, 4, 4}, 7);
  const auto outputs = run_graph(model.graph, model.weights, {{"x", x}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  const auto values = to_doubles(x);
  for (size_t c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (size_t n = 0; n < 2; ++n)
      for (size_t i = 0; i < 16; ++i) sum += values[(n * 3 + c) * 16 + i];
    const double mean = sum / 32;
    for (size_t n = 0; n < 2; ++n)
      for (size_t i = 0; i < 16; ++i) squares += std::pow(values[(n * 3 + c) * 16 + i] - mean, 2);
    const double old = 1.0 + 0.01 * static_cast<double>(c);
    EXPECT_NEAR(to_doubles(outputs->at("mean"))[c], 0.75 * old + 0.25 * mean, 1e-6);
    EXPECT_NEAR(to_doubles(outputs->at("var"))[c], 0.75 * old + 0.25 * squares / 31, 1e-6)
        << "the unbiased variance";
  }
}

TEST(Import, BatchNormPredictsFromItsStatistics) {
  ImportOptions options = training_options();
  options.training = false;
  const ImportedModel model = must_import(batch_norm_model().bytes(), options);
  EXPECT_EQ(count_kind(model.graph, OpKind::BatchNormInference), 1);
  EXPECT_EQ(model.graph.outputs().size(), 1u);
}

TEST(Import, BatchNormOverOneValueIsRefused) {
  ModelMaker maker = batch_norm_model();
  maker.graph().clear_input();
  maker.input("x", {1, 3, 1, 1});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
}

ModelMaker dropout_model(float ratio) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).output("y");
  auto& tensor = maker.weight("ratio", {}, ratio);
  (void)tensor;
  auto& flag = *maker.graph().add_initializer();
  flag.set_name("train");
  flag.set_data_type(pb::TensorProto::BOOL);
  flag.add_int32_data(1);
  maker.node("Dropout", {"x", "ratio", "train"}, {"y"});
  return maker;
}

TEST(Import, DropoutDropsInTrainingOnly) {
  EXPECT_EQ(count_kind(must_import(dropout_model(0.25f).bytes()).graph, OpKind::Dropout), 1);
  ImportOptions options = training_options();
  options.training = false;
  EXPECT_EQ(count_kind(must_import(dropout_model(0.25f).bytes(), options).graph, OpKind::Dropout), 0);
}

TEST(Import, DropoutOfRatioZeroIsNothing) {
  EXPECT_EQ(must_import(dropout_model(0.0f).bytes()).graph.ops().size(), 1u);
}

TEST(Import, DropoutOfRatioOneIsRefused) {
  const auto imported = import_bytes(dropout_model(1.0f).bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
}

TEST(Import, EvaluationModeExportsThatMergeParametersAreRefusedForTraining) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).output("y");
  maker.weight("a.bias", {3});
  maker.node("Identity", {"a.bias"}, {"b.bias"});
  maker.node("Add", {"x", "a.bias"}, {"h"});
  maker.node("Add", {"h", "b.bias"}, {"y"});
  const auto refused = import_bytes(maker.bytes());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
  EXPECT_NE(refused.error().message.find("TrainingMode.TRAINING"), std::string::npos)
      << refused.error().message;
  ImportOptions options = training_options();
  options.training = false;
  EXPECT_TRUE(import_bytes(maker.bytes(), options).has_value());
}

TEST(Import, ATiedHeadStaysOneParameter) {
  ModelMaker maker;
  maker.input("t", {-1, 5}, pb::TensorProto::INT64).output("y");
  maker.weight("wte", {7, 4});
  maker.node("Gather", {"wte", "t"}, {"e"});
  attribute(maker.node("Transpose", {"wte"}, {"wt"}), "perm", std::vector<int64_t>{1, 0});
  maker.node("MatMul", {"e", "wt"}, {"y"});
  const ImportedModel model = must_import(maker.bytes());
  EXPECT_EQ(model.graph.initializers().size(), 1u);
}

TEST(Import, InitializersThatLookLikeMasksAreNamed) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).output("y");
  maker.weight("h.mask", {3, 3});
  maker.weight("fill", {3}, -1e9f);
  maker.weight("bias", {3});
  maker.node("MatMul", {"x", "h.mask"}, {"a"});
  maker.node("Add", {"a", "fill"}, {"b"});
  maker.node("Add", {"b", "bias"}, {"y"});
  const ImportedModel model = must_import(maker.bytes());
  ASSERT_EQ(model.warnings.size(), 2u);
  EXPECT_NE(model.warnings[0].find("h.mask"), std::string::npos);
  EXPECT_NE(model.warnings[1].find("fill"), std::string::npos);
  ImportOptions options = training_options();
  options.freeze = {"*mask", "fill"};
  EXPECT_TRUE(must_import(maker.bytes(), options).warnings.empty());
}

TEST(Import, BoundInputsLeaveTheGraph) {
  ModelMaker maker;
  maker.input("x", {2, 6}).input("shape", {2}, pb::TensorProto::INT64).output("y");
  maker.node("Reshape", {"x", "shape"}, {"y"});
  const auto model = read_bytes(maker.bytes());
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(shape_inputs(*model), std::vector<std::string>{"shape"});
  ImportOptions options = training_options();
  const std::vector<int64_t> shape{3, 4};
  options.bound_inputs["shape"] = dag::make_tensor(dag::Shape{2}, std::span(shape));
  const auto imported = import_model(*model, options, dag::op_table());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_EQ(imported->graph.inputs().size(), 1u);
}

TEST(Import, SymbolsAreBoundByName) {
  ModelMaker maker;
  maker.input("x", {2, -1}).output("y").node("Relu", {"x"}, {"y"});
  auto& type = *maker.graph().mutable_input(0)->mutable_type()->mutable_tensor_type();
  type.mutable_shape()->mutable_dim(1)->set_dim_param("length");
  ImportOptions options = training_options();
  const auto refused = import_bytes(maker.bytes(), options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("'length'"), std::string::npos) << refused.error().message;
  options.sizes["length"] = 9;
  EXPECT_EQ(must_import(maker.bytes(), options).graph.spec(dag::ValueId{0}).shape, (dag::Shape{2, 9}));
}

TEST(Import, ExternalDataIsReadFromBesideTheModel) {
  const auto folder = fresh_folder("external");
  ModelMaker maker = linear_model();
  auto& tensor = *maker.graph().mutable_initializer(0);
  write_bytes(folder / "w.bin", std::string(8, '\0') + tensor.raw_data());
  tensor.clear_raw_data();
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair{"location", "w.bin"}, {"offset", "8"}, {"length", "48"}}) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  write_bytes(folder / "model.onnx", maker.bytes());
  const auto model = read_model(folder / "model.onnx");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->weights().find("w")->second.as<float>()[0], 0.5f);
}

TEST(Import, InspectSaysWhatIsTrained) {
  const auto model = read_bytes(batch_norm_model().bytes());
  ASSERT_TRUE(model.has_value());
  ImportOptions options = training_options();
  options.batch.reset();
  options.freeze = {"bias"};
  const ModelInfo info = inspect_model(*model, options, dag::op_table());
  EXPECT_TRUE(info.problem.empty()) << info.problem;
  EXPECT_EQ(info.opset, 17);
  ASSERT_EQ(info.parameters.size(), 1u);
  EXPECT_EQ(info.parameters[0].name, "scale");
  EXPECT_EQ(info.frozen.size(), 1u);
  EXPECT_EQ(info.running_statistics.size(), 2u);
  EXPECT_EQ(info.inputs.at(0).dims.at(0), "batch");
}

// ---- files as PyTorch 1.13 exports them ----

TEST(Import, TheFashionMnistExampleBecomesAFewKindsOfOps) {
  ImportOptions options = training_options();
  options.batch = 4;
  const ImportedModel model = must_import(read_all("examples/fashion-mnist/model.onnx"), options);
  EXPECT_EQ(count_kind(model.graph, OpKind::BatchNorm), 9);
  EXPECT_EQ(count_kind(model.graph, OpKind::Conv), 9);
  EXPECT_EQ(initializer(model.graph, "bn.running_mean").role, InitializerRole::RunningStatistic);
  EXPECT_EQ(initializer(model.graph, "head.weight").role, InitializerRole::Parameter);
  EXPECT_EQ(model.graph.spec(model.graph.find_output(dag::OutputRole::Prediction)->value).shape,
            (dag::Shape{4, 10}));
  EXPECT_TRUE(model.warnings.empty());
}

TEST(Import, TheGptExampleFoldsItsShapesAndMask) {
  const ImportedModel model = must_import(read_all("examples/gpt/model.onnx"));
  const auto graph = dag::canonicalise(model.graph, dag::op_table());
  ASSERT_TRUE(graph.has_value());
  EXPECT_EQ(count_kind(*graph, OpKind::LayerNorm), 9);
  EXPECT_EQ(count_kind(*graph, OpKind::Gelu), 4);
  EXPECT_EQ(count_kind(*graph, OpKind::Dropout), 13);
  EXPECT_EQ(count_kind(*graph, OpKind::MatMul), 4 * 6 + 1);
  EXPECT_EQ(count_kind(*graph, OpKind::Transpose), 4 * 4) << "heads, no weights";
  EXPECT_EQ(graph->find_initializer("mask"), nullptr) << "folded into the condition of Where";
  EXPECT_EQ(initializer(*graph, "wte.weight").role, InitializerRole::Parameter);
}

}  // namespace
}  // namespace weft::onnx::testing
