// What is trained of a model: as exporters write it, by `train` and `freeze`, what is said of it; and what
// stands in front of a loss.
#include "dag/onnx/roles.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dag/onnx/activation.h"
#include "dag/onnx/export.h"
#include "dag/onnx/outline.h"
#include "tests/onnx/exporters.h"
#include "tests/onnx/judged.h"

namespace weft::onnx::testing {
namespace {

using dag::InitializerRole;
using dag::OpKind;

// ---- as exporters write models

TEST(Roles, AreThoseOfTheModuleWhoeverExportedIt) {
  for (const ExportedModel& exported : as_all_write_it()) {
    SCOPED_TRACE(exported.exporter);
    const RoleTable table = judged(exported.maker);
    EXPECT_EQ(names_of(table, TensorRole::Trained), exported.trained);
    EXPECT_EQ(names_of(table, TensorRole::Statistic), exported.statistics);
    const auto imported = import_bytes(exported.maker.bytes());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    std::set<std::string> parameters;
    for (const auto& initializer : imported->graph.initializers())
      if (initializer.role == InitializerRole::Parameter) parameters.insert(initializer.name);
    EXPECT_EQ(parameters, exported.trained);
    EXPECT_EQ(imported->roles, table);
  }
}

// Everything of a file but the numbers of one tensor.
std::string without_data(pb::TensorProto tensor) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  return tensor.SerializeAsString();
}

TEST(Roles, WhatIsTrainedIsWrittenInTheFormItCameIn) {
  for (const ExportedModel& exported : as_all_write_it()) {
    SCOPED_TRACE(exported.exporter);
    const OnnxModel model = must_read(exported.maker.bytes());
    EXPECT_EQ(*trained_bytes(model, {}), exported.maker.bytes()) << "nothing is trained: the same file";
    dag::Weights trained;
    for (const std::string& name : exported.trained) {
      const dag::Tensor& tensor = model.weights().find(name)->second;
      auto values = to_doubles(tensor);
      for (double& value : values) value += 1;
      trained[name] = from_doubles(tensor.spec(), values);
    }
    pb::ModelProto written;
    ASSERT_TRUE(written.ParseFromString(*trained_bytes(model, trained)));
    const auto check = [&](const std::string& name, const pb::TensorProto& before,
                           const pb::TensorProto& after) {
      EXPECT_EQ(without_data(before), without_data(after)) << name;
      EXPECT_EQ(before.has_raw_data(), after.has_raw_data()) << name;
      EXPECT_EQ(before.float_data_size(), after.float_data_size()) << name;
      EXPECT_EQ(before.SerializeAsString() != after.SerializeAsString(), exported.trained.contains(name))
          << name;
    };
    const auto& graph = exported.maker.proto.graph();
    for (int i = 0; i < graph.initializer_size(); ++i)
      check(graph.initializer(i).name(), graph.initializer(i), written.graph().initializer(i));
    for (int i = 0; i < graph.node_size(); ++i)
      if (graph.node(i).op_type() == "Constant")
        check(graph.node(i).output(0), graph.node(i).attribute(0).t(),
              written.graph().node(i).attribute(0).t());
    const OnnxModel again = must_read(*trained_bytes(model, trained));
    for (const auto& [name, tensor] : trained)
      EXPECT_TRUE(std::ranges::equal(tensor.bytes(), again.weights().find(name)->second.bytes())) << name;
  }
}

TEST(Roles, TheTwinHasTheTrainedConstantsToo) {
  const ExportedModel exported = as_paddle2onnx_writes_it();
  const OnnxModel model = must_read(exported.maker.bytes());
  const dag::Tensor& bias = model.weights().find("linear_0.b_0")->second;
  const dag::Weights trained{{"linear_0.b_0", from_doubles(bias.spec(), std::vector<double>{7, 8})}};
  const auto folder = fresh_folder("constant_twin");
  const auto files = write_trained(model, trained, folder / "m.onnx");
  ASSERT_TRUE(files.has_value()) << files.error().message;
  for (const auto& path : {files->trained, files->inference}) {
    const auto read = read_model(path);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(to_doubles(read->weights().find("linear_0.b_0")->second), (std::vector<double>{7, 8}));
    EXPECT_EQ(read->weights().size(), model.weights().size());
  }
}

TEST(Roles, AnOutlineHasTheSameOnesAndSaysWhatWasNotLookedAt) {
  for (const ExportedModel& exported : as_all_write_it()) {
    SCOPED_TRACE(exported.exporter);
    const auto folder = fresh_folder("roles_outline");
    write_bytes(folder / "m.onnx", exported.maker.bytes());
    const auto outline = read_outline(folder / "m.onnx");
    ASSERT_TRUE(outline.has_value()) << outline.error().message;
    auto table = judge_roles(*outline, {}, look_at(*outline));
    ASSERT_TRUE(table.has_value()) << table.error().message;
    const OnnxModel whole = must_read(exported.maker.bytes());
    const RoleTable known = *judge_roles(whole, {}, look_at(whole));
    for (const TensorRow& row : known)
      if (const TensorRow outlined = row_of(*table, row.name); outlined.looked_at)
        EXPECT_EQ(outlined, row) << row.name;
      else
        EXPECT_EQ(outlined.name, "keras/window");
    // Who looked at the values hands them over: the roles are those of the whole model.
    EXPECT_EQ(*judge_roles(*outline, {}, look_at(whole)), known);
    // Decided once: the import takes a table as it is.
    ImportOptions options = training_options();
    options.roles = known;
    const auto imported = import_model(*outline, options, dag::op_table());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    EXPECT_EQ(imported->roles, known);
  }
}

using Dims = std::vector<int64_t>;

// ---- train and freeze

ModelMaker scaled_model() {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("w1", {4, 4});
  maker.weight("b1", {4});
  maker.weight("logit_scale", {}, 1.5f);
  maker.weight("two", {}, 2.0f);
  maker.weight("unread", {4});
  maker.ints("shape", {0, 4});
  maker.node("Gemm", {"x", "w1", "b1"}, {"h"});
  maker.node("Pow", {"h", "two"}, {"p"});
  maker.node("Reshape", {"p", "shape"}, {"r"});
  maker.node("Mul", {"r", "logit_scale"}, {"y"});
  return maker;
}

TEST(Roles, TrainThatNamesConstantsAddsThem) {
  const RoleTable table = judged(scaled_model(), {.train = {"logit_*"}});
  EXPECT_EQ(names_of(table, TensorRole::Trained), (std::set<std::string>{"w1", "b1", "logit_scale"}));
  EXPECT_EQ(row_of(table, "logit_scale").reason, RoleReason::Named);
}

TEST(Roles, TrainThatNamesAParameterNamesAll) {
  const RoleTable table = judged(scaled_model(), {.train = {"w1", "logit_scale"}});
  EXPECT_EQ(names_of(table, TensorRole::Trained), (std::set<std::string>{"w1", "logit_scale"}));
  EXPECT_EQ(row_of(table, "b1").role, TensorRole::Frozen);
  EXPECT_EQ(why(row_of(table, "b1")), "`train` does not name it");
  EXPECT_EQ(names_of(judged(scaled_model(), {.train = {"*"}, .freeze = {"two", "b1"}}), TensorRole::Trained),
            (std::set<std::string>{"w1", "logit_scale"}))
      << "freeze takes away";
}

TEST(Roles, APatternThatNamesNothingToTrainIsAnError) {
  const OnnxModel model = must_read(scaled_model().bytes());
  const auto none = judge_roles(model, {.train = {"w1", "logit_skale"}}, look_at(model));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::NotFound);
  EXPECT_NE(none.error().message.find("near names are 'logit_scale'"), std::string::npos)
      << none.error().message;
  for (const std::string name : {"shape", "unread"}) {
    const auto useless = judge_roles(model, {.train = {name}}, look_at(model));
    ASSERT_FALSE(useless.has_value()) << name;
    EXPECT_EQ(useless.error().code, ErrorCode::InvalidArgument);
  }
}

TEST(Roles, ATableOfAnotherModelIsRefused) {
  const OnnxModel model = must_read(scaled_model().bytes());
  const RoleTable table = judged(scaled_model());
  EXPECT_TRUE(check_roles(model, table).has_value());
  for (const auto& change :
       {+[](RoleTable& t) { t.pop_back(); }, +[](RoleTable& t) { t[1].name = t[0].name; },
        +[](RoleTable& t) { t[0].name = "other"; }, +[](RoleTable& t) { t[0].name = "shape"; }}) {
    RoleTable wrong = table;
    change(wrong);
    ImportOptions options = training_options();
    options.roles = wrong;
    const auto imported = import_model(model, options, dag::op_table());
    ASSERT_FALSE(imported.has_value());
    EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
  }
}

// ---- what is said

TEST(Roles, OneLineSaysWhatIsConstantAndAnotherWhatMayBeLearnt) {
  const auto imported = import_bytes(scaled_model().bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_TRUE(imported->warnings.empty()) << imported->warnings[0];
  ASSERT_EQ(imported->notes.size(), 2u);
  EXPECT_TRUE(any_has(imported->notes, {"'two' (the exponent of Pow", "train: [\"two\"]"}))
      << imported->notes[0];
  EXPECT_TRUE(any_has(imported->notes, {"'logit_scale' of Mul", "train: [\"logit_scale\"]"}))
      << imported->notes[1];
}

TEST(Roles, TheMeanAndDeviationOfTheDataAreWarnedOf) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  for (const char* name : {"mean", "deviation", "scale"}) maker.weight(name, {4});
  maker.node("Sub", {"x", "mean"}, {"a"});
  maker.node("Div", {"a", "deviation"}, {"b"});
  maker.node("Mul", {"b", "scale"}, {"y"});
  const auto warnings = import_bytes(maker.bytes())->warnings;
  EXPECT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(any_has(warnings, {"'mean'", "shifted by it", "freeze: [\"mean\"]"}));
  EXPECT_TRUE(any_has(warnings, {"'deviation'", "divided by it"}));
}

TEST(Roles, AWeightThatIsWrittenTwiceIsNamed) {
  const auto warnings = [](bool transposed, float other) {
    ModelMaker maker;
    maker.input("t", {-1, 5}, pb::TensorProto::INT64).output("y");
    const std::string values = maker.weight("embed", {7, 4}).raw_data();
    std::string turned = values;
    for (size_t r = 0; r < 7; ++r)
      for (size_t c = 0; c < 4; ++c)
        std::copy_n(values.data() + (r * 4 + c) * 4, 4, turned.data() + (c * 7 + r) * 4);
    auto& head = maker.weight("head", transposed ? Dims{4, 7} : Dims{7, 4}, other);
    if (other == 0) head.set_raw_data(transposed ? turned : values);
    maker.node("Gather", {"embed", "t"}, {"e"});
    if (!transposed) attribute(maker.node("Transpose", {"head"}, {"ht"}), "perm", Dims{1, 0});
    maker.node("MatMul", {"e", transposed ? "head" : "ht"}, {"y"});
    return import_bytes(maker.bytes())->warnings;
  };
  EXPECT_TRUE(any_has(warnings(true, 0), {"'embed'", "'head'", "one transposed"}));
  EXPECT_TRUE(any_has(warnings(false, 0), {"'embed'", "'head'", "hold the same numbers"}));
  EXPECT_TRUE(warnings(true, 3).empty());
  EXPECT_TRUE(warnings(false, 3).empty());
}

// ---- what stands in front of a loss

TEST(Activation, IsFoundBehindWhatKeepsItsValues) {
  for (const std::string op : {"Softmax", "LogSoftmax", "Sigmoid", "Relu"})
    for (const std::string behind : {"", "Identity", "Flatten"}) {
      SCOPED_TRACE(op + " " + behind);
      ModelMaker maker;
      maker.input("x", {-1, 4}).output("y");
      maker.node("Neg", {"x"}, {"z"});
      maker.node(op, {"z"}, {behind.empty() ? "y" : "a"}).set_name("act");
      if (!behind.empty()) maker.node(behind, {"a"}, {"y"});
      const auto found = activation_in_front(must_read(maker.bytes()), "y");
      ASSERT_EQ(found.has_value(), op != "Relu");
      if (!found) continue;
      EXPECT_EQ(found->op_type, op);
      EXPECT_EQ(found->node, "act");
      EXPECT_EQ(found->value, "z");
      EXPECT_EQ(found->reshaped, behind == "Flatten");
      EXPECT_FALSE(activation_in_front(must_read(maker.bytes()), "z").has_value());
    }
}

TEST(Import, AValueThatIsReadIsAPrediction) {
  ImportOptions options = training_options();
  const ModelMaker maker = linear_model();
  options.read = {"y", "sum", "nobody"};
  const auto imported = import_bytes(maker.bytes(), options);
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  size_t predictions = 0;
  for (const auto& output : imported->graph.outputs())
    predictions += output.role == dag::OutputRole::Prediction;
  EXPECT_EQ(predictions, 2u);
  EXPECT_NE(imported->graph.find_output(dag::OutputRole::Prediction, "sum"), nullptr);
}

}  // namespace
}  // namespace weft::onnx::testing
