// What is trained of a model, by the operators that read a tensor and as which operand they do.
#include <gtest/gtest.h>

#include <numeric>

#include "dag/onnx/operand_meaning.h"
#include "tests/onnx/exporters.h"
#include "tests/onnx/judged.h"

namespace weft::onnx::testing {
namespace {

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

}  // namespace
}  // namespace weft::onnx::testing
