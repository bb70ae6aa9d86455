// What is trained of a model: by what reads a tensor, by `train` and `freeze`, and last by its values.
#include "dag/onnx/roles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "base/rng.h"
#include "dag/onnx/activation.h"
#include "dag/onnx/analysis.h"
#include "dag/onnx/export.h"
#include "dag/onnx/operand_meaning.h"
#include "dag/onnx/outline.h"
#include "dag/passes/canonicalise.h"
#include "tests/onnx/exporters.h"

namespace weft::onnx::testing {
namespace {

using dag::InitializerRole;
using dag::OpKind;

OnnxModel must_read(const std::string& bytes) {
  auto model = read_bytes(bytes);
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

RoleTable judged(const ModelMaker& maker, const RoleOptions& options = {}) {
  const OnnxModel model = must_read(maker.bytes());
  auto table = judge_roles(model, options, look_at(model));
  if (!table) throw std::runtime_error(table.error().message);
  return std::move(*table);
}

TensorRow row_of(const RoleTable& table, const std::string& name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const TensorRow& row) { return row.name == name; });
  if (found == table.end()) throw std::runtime_error("no row " + name);
  return *found;
}

std::set<std::string> names_of(const RoleTable& table, TensorRole role) {
  std::set<std::string> names;
  for (const TensorRow& row : table)
    if (row.role == role) names.insert(row.name);
  return names;
}

bool any_has(const std::vector<std::string>& lines, const std::vector<std::string>& words) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(words.begin(), words.end(),
                       [&](const std::string& word) { return line.find(word) != std::string::npos; });
  });
}

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

// ---- by operand

using Dims = std::vector<int64_t>;

struct ByOperand {
  const char* what;
  Dims dims;
  std::function<void(ModelMaker&)> read;  // t, with x [batch, 4, 4, 4] and z: x behind a convolution
  TensorRole role;
  RoleReason reason;
};

std::function<void(ModelMaker&)> node(const std::string& op, const std::vector<std::string>& inputs) {
  return [=](ModelMaker& maker) { maker.node(op, inputs, {"y"}); };
}

std::function<void(ModelMaker&)> in_front_of_softmax(const std::string& op) {
  return [=](ModelMaker& maker) {
    maker.node(op, {"x", "t"}, {"s"});
    attribute(maker.node("Softmax", {"s"}, {"y"}), "axis", int64_t{-1});
  };
}

TEST(Roles, AreToldByWhatReadsATensor) {
  using enum RoleReason;
  constexpr auto kTrained = TensorRole::Trained;
  constexpr auto kConstant = TensorRole::Constant;
  const ByOperand cases[] = {
      {"a matrix", {4, 4}, node("MatMul", {"x", "t"}), kTrained, Weight},
      {"a matrix on the left", {4, 4}, node("MatMul", {"t", "x"}), kTrained, Weight},
      {"a slope", {1}, node("PRelu", {"x", "t"}), kTrained, Weight},
      {"a norm's scale", {4}, node("LayerNormalization", {"x", "t"}), kTrained, Weight},
      {"a table",
       {9, 2},
       [](ModelMaker& maker) {
         maker.ints("i", {1, 2});
         maker.node("Gather", {"t", "i"}, {"g"});
         maker.node("ReduceSum", {"g"}, {"gs"});
         maker.node("Add", {"x", "gs"}, {"y"});
       },
       kTrained,
       Weight},
      {"a shift behind a convolution", {4, 1, 1}, node("Add", {"z", "t"}), kTrained, Weight},
      {"a scale behind a convolution", {1, 4, 1, 1}, node("Mul", {"t", "z"}), kTrained, Weight},
      {"a vector anywhere else", {4}, node("Mul", {"x", "t"}), kTrained, Free},
      {"a matrix anywhere else", {4, 4}, node("Mul", {"x", "t"}), kTrained, Free},
      {"one number behind four channels", {1}, node("Add", {"z", "t"}), kConstant, Number},
      {"one factor behind four channels", {1}, node("Mul", {"z", "t"}), kConstant, Factor},
      {"a scalar factor", {}, node("Mul", {"x", "t"}), kConstant, Factor},
      {"a divisor", {}, node("Div", {"x", "t"}), kConstant, Factor},
      {"a scalar", {}, node("Sub", {"t", "x"}), kConstant, Number},
      {"an exponent", {}, node("Pow", {"x", "t"}), kConstant, Exponent},
      {"exponents", {4}, node("Pow", {"x", "t"}), kConstant, Exponent},
      {"a lower limit", {}, node("Clip", {"x", "t"}), kConstant, Limit},
      {"an upper limit", {}, node("Clip", {"x", "", "t"}), kConstant, Limit},
      {"a mask", {4, 4}, in_front_of_softmax("Add"), kConstant, Mask},
      {"a mask of one row", {1, 1, 1, 4}, in_front_of_softmax("Add"), kConstant, Mask},
      {"a mask that is taken away", {4, 4}, in_front_of_softmax("Sub"), kConstant, Mask},
      {"a factor in front of a softmax", {4, 4}, in_front_of_softmax("Mul"), kTrained, Free},
      {"a class's bias in front of a softmax",
       {4},
       [](ModelMaker& maker) {
         maker.weight("w", {4, 4});
         maker.node("MatMul", {"x", "w"}, {"m"});
         maker.node("Add", {"m", "t"}, {"s"});
         attribute(maker.node("Softmax", {"s"}, {"y"}), "axis", int64_t{-1});
       },
       kTrained,
       Weight},
      {"what only a comparison reads",
       {4},
       [](ModelMaker& maker) {
         maker.node("Greater", {"x", "t"}, {"b"});
         maker.node("Where", {"b", "x", "z"}, {"y"});
       },
       kConstant,
       Unreached},
      {"what nothing reads", {4}, node("Relu", {"x"}), kConstant, Unused},
  };
  for (const ByOperand& one : cases) {
    // Through nodes that hand values on it is the same.
    for (const std::string through : {"", "Identity", "Cast", "Unsqueeze"}) {
      SCOPED_TRACE(std::string(one.what) + " " + through);
      if (through == "Unsqueeze" && one.dims != Dims{4, 4}) continue;
      ModelMaker maker;
      maker.input("x", {-1, 4, 4, 4}).output("y");
      const bool direct = through.empty();
      maker.weight(direct ? "t" : "origin", one.dims);
      maker.weight("kernel", {4, 4, 1, 1});
      maker.node("Conv", {"x", "kernel"}, {"z"});
      if (through == "Unsqueeze") {
        maker.ints("zero", {0});
        maker.node(through, {"origin", "zero"}, {"t"});
      } else if (!direct) {
        auto& view = maker.node(through, {"origin"}, {"t"});
        if (through == "Cast") attribute(view, "to", int64_t{pb::TensorProto::FLOAT});
      }
      one.read(maker);
      const TensorRow row = row_of(judged(maker), direct ? "t" : "origin");
      EXPECT_EQ(row.role, one.role) << why(row);
      if (direct || one.reason != Unused) {
        EXPECT_EQ(row.reason, one.reason) << why(row);
      }
    }
  }
}

TEST(Roles, AnOperandThatIsAWeightIsTrainedWhateverItsValues) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("w", {4, 4}, -1e6f);
  maker.weight("mask", {4, 4}, 0.0f).clear_raw_data();
  maker.graph().mutable_initializer(1)->set_raw_data(std::string(64, '\0'));
  maker.node("MatMul", {"x", "w"}, {"a"});
  maker.node("MatMul", {"a", "mask"}, {"y"});
  const RoleTable table = judged(maker);
  EXPECT_EQ(row_of(table, "w").role, TensorRole::Trained);
  EXPECT_EQ(row_of(table, "mask").role, TensorRole::Trained);
}

TEST(Roles, ValuesTellOnlyOfMatrices) {
  const auto role = [](const Dims& dims, const std::vector<float>& values) {
    ModelMaker maker;
    maker.input("x", {-1, 2, 3}).output("y");
    maker.weight("t", dims).set_raw_data(values.data(), values.size() * sizeof(float));
    maker.node("Mul", {"x", "t"}, {"y"});
    return row_of(judged(maker), "t");
  };
  EXPECT_EQ(role({2, 3}, {0, -1e4f, 0, 0, 0, 1}).reason, RoleReason::Low);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(role({1, 2, 3}, {0, -infinity, 0, 0, 0, 1}).reason, RoleReason::Low);
  EXPECT_EQ(role({2, 3}, {1, 2, 3, 1, 2, 3}).axis, 0);
  EXPECT_EQ(role({2, 3}, {1, 1, 1, 3, 3, 3}).axis, 1);
  EXPECT_EQ(role({2, 3}, {0, 0, 0, 0, 0, 0}).role, TensorRole::Trained) << "a fresh weight";
  EXPECT_EQ(role({2, 3}, {2, 2, 2, 2, 2, 2}).role, TensorRole::Trained);
  EXPECT_EQ(role({2, 3}, {1, 2, 3, 1, 2, 4}).role, TensorRole::Trained);
  EXPECT_EQ(role({3}, {-1e5f, 2, 3}).role, TensorRole::Trained) << "one axis";
}

// y = a normalisation of x [batch, 3, 4] with `scale` and zeros, of Constant nodes.
ModelMaker constant_norm(float scale, const std::string& producer = "") {
  ModelMaker maker;
  maker.proto.set_producer_name(producer);
  maker.input("x", {-1, 3, 4}).output("y");
  maker.weight("w", {4, 4});
  constant_node(maker, "scale", {3}, scale);
  constant_node(maker, "bias", {3}, 0.0f);
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> values(3, i == 0 ? scale : 0.0f);
    maker.graph().mutable_node(i)->mutable_attribute(0)->mutable_t()->set_raw_data(values.data(), 12);
  }
  constant_node(maker, "table", {4, 4});
  maker.node("InstanceNormalization", {"x", "scale", "bias"}, {"n"});
  maker.node("MatMul", {"n", "table"}, {"t"});
  maker.node("MatMul", {"t", "w"}, {"y"});
  return maker;
}

TEST(Roles, OnesAndZerosOfANormalisationWithoutWeightAreNone) {
  EXPECT_EQ(names_of(judged(constant_norm(1)), TensorRole::Trained), (std::set<std::string>{"w", "table"}));
  EXPECT_EQ(names_of(judged(constant_norm(0.7f)), TensorRole::Trained),
            (std::set<std::string>{"w", "table", "scale", "bias"}));
}

TEST(Roles, AnExporterThatWritesParametersAsInitializersHasNoneInConstantNodes) {
  EXPECT_EQ(names_of(judged(constant_norm(0.7f, "pytorch")), TensorRole::Trained),
            std::set<std::string>{"w"});
  ModelMaker frozen = constant_norm(0.7f, "pytorch");  // a frozen script: all are
  frozen.graph().clear_initializer();
  constant_node(frozen, "w", {4, 4});
  auto& nodes = *frozen.graph().mutable_node();
  for (int i = nodes.size() - 1; i > 0; --i) nodes.SwapElements(i, i - 1);
  EXPECT_EQ(names_of(judged(frozen), TensorRole::Trained),
            (std::set<std::string>{"w", "table", "scale", "bias"}));
}

TEST(Roles, AStateOfZerosIsNoParameter) {
  const auto role = [](float value) {
    ModelMaker maker;
    maker.input("x", {3, 2, 4}).output("y");
    maker.weight("w", {1, 5, 4});
    maker.weight("r", {1, 5, 5});
    const std::vector<float> state(10, 0.0f);
    auto& h0 = maker.weight("h0", {1, 2, 5}, value);
    if (value == 0) h0.set_raw_data(state.data(), state.size() * sizeof(float));
    attribute(maker.node("RNN", {"x", "w", "r", "", "", "h0"}, {"y"}), "hidden_size", int64_t{5});
    return row_of(judged(maker), "h0");
  };
  EXPECT_EQ(role(0).reason, RoleReason::State);
  EXPECT_EQ(role(0.5f).role, TensorRole::Trained) << "someone learnt it";
}

TEST(Roles, AWeightThatSeveralNodesReadIsSaidToBeShared) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("w", {4, 4});
  maker.weight("sliced", {4, 8});
  attribute(maker.node("Split", {"sliced"}, {"s0", "s1"}), "axis", int64_t{1});
  attribute(maker.node("Concat", {"s1", "s0"}, {"back"}), "axis", int64_t{1});
  attribute(maker.node("Transpose", {"w"}, {"wt"}), "perm", std::vector<int64_t>{1, 0});
  maker.node("MatMul", {"x", "w"}, {"a"});
  maker.node("MatMul", {"a", "wt"}, {"b"});
  maker.node("MatMul", {"b", "back"}, {"y"});
  const RoleTable table = judged(maker);
  EXPECT_EQ(row_of(table, "w").readers, 2);
  EXPECT_EQ(row_of(table, "sliced").readers, 1) << "its parts go to one node";
  const auto notes = import_bytes(maker.bytes())->notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(any_has(notes, {"'w'", "shared by 2 nodes"})) << notes[0];
}

TEST(Roles, EveryOperatorWithAMeaningIsImported) {
  for (const OperandMeaning& meaning : operand_meanings()) {
    const LowerRow* row = find_lowering(meaning.domain, meaning.op_type);
    if (row == nullptr) continue;  // a loss, which a later version may import
    EXPECT_EQ(meaning.weights & ~row->gradient & kAllOperands, 0u)
        << meaning.op_type << ": a weight without a gradient";
  }
}

// y = x turned by angles: pairs of the two halves of the last axis, by a value that is turned as a whole;
// pairs that lie side by side, in the same way; pairs of two values. `gathered`: the angles are rows of
// tables, by position.
enum class Pairs { Halves, SideBySide, Values };
ModelMaker rotation(Pairs pairs, bool gathered) {
  ModelMaker maker;
  maker.input("x", {-1, 4, 8}).output("y");
  maker.weight("w", {8, 8});
  for (const char* name : {"c", "s"}) maker.weight(name, {4, pairs == Pairs::Values ? 4 : 8});
  maker.ints("at", {0, 1, 2, 3});
  maker.ints("zero", {0}), maker.ints("half", {4}), maker.ints("end", {8}), maker.ints("axis", {2});
  maker.node("MatMul", {"x", "w"}, {"q"});
  const std::string c = gathered ? "c_rows" : "c", s = gathered ? "s_rows" : "s";
  if (gathered)
    for (const std::string name : {"c", "s"}) maker.node("Gather", {name, "at"}, {name + "_rows"});
  if (pairs == Pairs::SideBySide) {
    maker.ints("one", {1}), maker.ints("two", {2}), maker.ints("last", {3}), maker.ints("shape", {0, 4, 8});
    maker.node("Slice", {"q", "zero", "end", "axis", "two"}, {"a"});
    maker.node("Slice", {"q", "one", "end", "axis", "two"}, {"b"});
  } else {
    maker.node("Slice", {"q", "zero", "half", "axis"}, {"a"});
    maker.node("Slice", {"q", "half", "end", "axis"}, {"b"});
  }
  if (pairs != Pairs::Values) {
    maker.node("Neg", {"b"}, {"-b"});
    if (pairs == Pairs::SideBySide) {
      maker.node("Unsqueeze", {"-b", "last"}, {"-b1"}), maker.node("Unsqueeze", {"a", "last"}, {"a1"});
      attribute(maker.node("Concat", {"-b1", "a1"}, {"stacked"}), "axis", int64_t{3});
      maker.node("Reshape", {"stacked", "shape"}, {"turned"});
    } else {
      attribute(maker.node("Concat", {"-b", "a"}, {"turned"}), "axis", int64_t{2});
    }
    maker.node("Mul", {"q", c}, {"qc"});
    maker.node("Mul", {s, "turned"}, {"qs"});
    maker.node("Add", {"qc", "qs"}, {"y"});
    return maker;
  }
  maker.node("Mul", {"a", c}, {"ac"}), maker.node("Mul", {"b", s}, {"bs"});
  maker.node("Mul", {"a", s}, {"as"}), maker.node("Mul", {"b", c}, {"bc"});
  maker.node("Sub", {"ac", "bs"}, {"first"}), maker.node("Add", {"bc", "as"}, {"second"});
  attribute(maker.node("Concat", {"first", "second"}, {"y"}), "axis", int64_t{2});
  return maker;
}

TEST(Roles, TheAnglesOfARotationAreNoParameters) {
  for (const Pairs pairs : {Pairs::Halves, Pairs::SideBySide, Pairs::Values})
    for (const bool gathered : {true, false}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(pairs)) + (gathered ? " gathered" : ""));
      ModelMaker maker = rotation(pairs, gathered);
      const RoleTable table = judged(maker);
      EXPECT_EQ(names_of(table, TensorRole::Trained), std::set<std::string>{"w"});
      for (const char* name : {"c", "s"}) EXPECT_EQ(row_of(table, name).reason, RoleReason::Angle);
      const auto imported = import_bytes(maker.bytes());
      ASSERT_TRUE(imported.has_value()) << imported.error().message;
      EXPECT_TRUE(imported->warnings.empty()) << imported->warnings[0];
      EXPECT_TRUE(any_has(imported->notes, {"'c' (the angles of a rotation in Mul", "'s'"}));
      // The exporter says that one is learnt.
      add_signature(maker, "# inputs\np_c: PARAMETER target='c'\np_w: PARAMETER target='w'\nx: USER_INPUT\n");
      EXPECT_EQ(row_of(judged(maker), "c").role, TensorRole::Trained);
    }
  // Nothing is turned: the other half is scaled as it is, or the second of a pair is a difference too.
  ModelMaker same = rotation(Pairs::Halves, false);
  for (auto& node : *same.graph().mutable_node())
    if (node.op_type() == "Neg") node.set_op_type("Relu");
  EXPECT_EQ(names_of(judged(same), TensorRole::Trained), (std::set<std::string>{"w", "c", "s"}));
  ModelMaker differences = rotation(Pairs::Values, false);
  for (auto& node : *differences.graph().mutable_node())
    if (node.op_type() == "Add") node.set_op_type("Sub");
  EXPECT_EQ(names_of(judged(differences), TensorRole::Trained), (std::set<std::string>{"w", "c", "s"}));
}

TEST(Roles, OnesThatRepeatAnAxisAreNoParameter) {
  const auto reason = [](float value, const std::vector<int64_t>& shape, const Dims& dims,
                         bool behind_matrix = false) {
    ModelMaker maker;
    maker.input("x", {-1, 4, 6}).output("y");
    const std::vector<float> values(
        static_cast<size_t>(std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>())),
        value);
    maker.weight("t", dims).set_raw_data(values.data(), values.size() * sizeof(float));
    maker.ints("shape", shape);
    maker.weight("w", {6, 6});
    maker.node("MatMul", {"x", "w"}, {"m"});
    maker.node("Reshape", {behind_matrix ? "m" : "x", "shape"}, {"r"});
    maker.node("Mul", {"r", "t"}, {"y"});
    return row_of(judged(maker), "t").reason;
  };
  EXPECT_EQ(reason(1, {-1, 2, 1, 2, 6}, {1, 1, 3, 1, 1}), RoleReason::Repeat);
  EXPECT_EQ(reason(1, {-1, 2, 1, 2, 6}, {1, 1, 3, 1, 1}, true), RoleReason::Repeat) << "no channel's factor";
  EXPECT_EQ(reason(1, {-1, 2, 1, 2, 6}, {3, 1, 1}), RoleReason::Repeat);
  EXPECT_EQ(reason(1, {-1, 1, 24}, {3, 24}), RoleReason::Free) << "a gain for each of 24";
  EXPECT_EQ(reason(2, {-1, 2, 1, 2, 6}, {1, 1, 3, 1, 1}), RoleReason::Free) << "it scales";
  EXPECT_EQ(reason(1, {-1, 2, 3, 4}, {2, 3, 4}), RoleReason::Free) << "nothing is repeated";
}

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

// ---- the values of a tensor, as they come

TEST(ValueTraits, AreThoseOfTheWholeTensorHoweverItsBytesCome) {
  Rng rng(7, 1);
  for (int round = 0; round < 300; ++round) {
    dag::Shape shape;
    for (uint64_t d = rng.next_u64() % 4 + 1; d > 0; --d)
      shape.push_back(static_cast<int64_t>(rng.next_u64() % 5 + 1));
    const dag::TensorSpec spec{dag::DType::F32, shape};
    std::vector<float> values(static_cast<size_t>(spec.element_count()));
    // Constant along the axes that are drawn.
    const uint64_t along = rng.next_u64() % 16;
    const uint64_t base = rng.next_u64() % 3;
    for (size_t i = 0; i < values.size(); ++i) {
      size_t rest = i, key = base;
      for (size_t d = shape.size(); d-- > 0;) {
        const size_t place = rest % static_cast<size_t>(shape[d]);
        rest /= static_cast<size_t>(shape[d]);
        if ((along >> d & 1) == 0) key = key * 7 + place;
      }
      values[i] = round % 2 ? static_cast<float>(key) : static_cast<float>(key % 2);
    }
    if (round % 5 == 0) values[values.size() / 2] = -1e4f;
    const dag::Tensor tensor = dag::make_tensor(shape, std::span<const float>(values));
    ValueReader reader(spec);
    for (size_t at = 0; at < tensor.bytes().size();) {
      const size_t size = std::min<size_t>(tensor.bytes().size() - at, (rng.next_u64() % 9 + 1) * 4);
      reader.add(tensor.bytes().subspan(at, size));
      at += size;
    }
    const ValueTraits traits = reader.traits();
    EXPECT_EQ(traits.low, round % 5 == 0);
    EXPECT_EQ(traits.all_equal, std::ranges::count(values, values[0]) == std::ssize(values));
    std::optional<int> constant;
    for (size_t d = 0, block = values.size(); d < shape.size() && !constant; ++d) {
      const size_t inner = block / static_cast<size_t>(shape[d]);
      bool equal = shape[d] > 1;
      for (size_t i = 0; i < values.size(); ++i)
        if (i % block >= inner) equal = equal && values[i] == values[i - inner];
      if (equal) constant = static_cast<int>(d);
      block = inner;
    }
    EXPECT_EQ(traits.constant_axis, constant) << to_string(spec);
  }
}

TEST(ValueTraits, AHalfIsLowWhereItsNumberIs) {
  for (const dag::DType dtype : {dag::DType::F16, dag::DType::BF16, dag::DType::F32, dag::DType::F64}) {
    const auto low = [&](double value) {
      return traits_of(dag::from_doubles({dtype, {2}}, std::vector<double>{1, value})).low;
    };
    EXPECT_TRUE(low(-10000) && low(-30000) && low(-std::numeric_limits<double>::infinity()));
    EXPECT_FALSE(low(-9000) || low(10000) || low(30000) || low(0) || low(std::nan("")));
  }
}

// ---- BatchNormalization

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
