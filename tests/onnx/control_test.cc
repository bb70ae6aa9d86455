// If, Loop and Scan, written out.
#include <gtest/gtest.h>

#include "dag/onnx/export.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;
using Names = std::vector<std::string>;
using Values = std::vector<double>;

pb::GraphProto& body(pb::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::GRAPH);
  attribute.mutable_g()->set_name(name);
  return *attribute.mutable_g();
}
void ports(pb::GraphProto& graph, const Names& inputs, const Names& outputs) {
  for (const auto& name : inputs) graph.add_input()->set_name(name);
  for (const auto& name : outputs) graph.add_output()->set_name(name);
}
pb::NodeProto& node_in(pb::GraphProto& graph, const std::string& op, const Names& inputs,
                       const Names& outputs) {
  auto& node = *graph.add_node();
  node.set_op_type(op);
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}
dag::Tensor floats(const dag::Shape& shape, const Values& values) {
  return from_list({dag::DType::F32, shape}, values);
}
void scalar_bool(pb::TensorProto& tensor, bool value) {
  tensor.set_data_type(pb::TensorProto::BOOL);
  tensor.add_int32_data(value);
}

// y = condition ? x * w : -x, with the same names within both branches.
ModelMaker choice() {
  ModelMaker maker;
  maker.input("x", {2}).output("y");
  maker.weight("w", {2}, 3.0f);
  auto& node = maker.node("If", {"c"}, {"y"});
  auto& yes = body(node, "then_branch");
  ports(yes, {}, {"r"});
  node_in(yes, "Mul", {"x", "w"}, {"r"});
  auto& no = body(node, "else_branch");
  ports(no, {}, {"r"});
  node_in(no, "Neg", {"x"}, {"r"});
  return maker;
}

TEST(ControlFlow, AKnownConditionLeavesOneBranch) {
  for (const bool value : {true, false}) {
    ModelMaker maker = choice();
    auto& c = *maker.graph().add_initializer();
    c.set_name("c");
    scalar_bool(c, value);
    const auto imported = import_bytes(maker.bytes());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    EXPECT_EQ(count_kind(imported->graph, OpKind::Mul), value);
    EXPECT_EQ(count_kind(imported->graph, OpKind::Neg), !value);
    const auto outputs = run_graph(imported->graph, imported->weights, {{"x", floats({2}, {1, 2})}});
    EXPECT_EQ(to_doubles(outputs->at("y"))[0], value ? 3 : -1);
    if (value) {
      EXPECT_EQ(imported->graph.find_initializer("w")->role, dag::InitializerRole::Parameter);
    }
  }
}

TEST(ControlFlow, AnUnknownConditionChoosesBetweenBothBranches) {
  ModelMaker maker = choice();
  maker.input("c", {}, pb::TensorProto::BOOL);
  for (const bool value : {true, false}) {
    const dag::Tensor c = dag::make_scalar(dag::DType::Bool, value);
    const auto outputs = run_model(maker, {{"x", floats({2}, {1, 2})}, {"c", c}});
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    EXPECT_EQ(to_doubles(outputs->at("y"))[0], value ? 3 : -1);
  }
}

TEST(ControlFlow, BranchesOfDifferentShapesNeedAKnownCondition) {
  ModelMaker maker = choice();
  maker.input("c", {}, pb::TensorProto::BOOL);
  auto& no = *maker.graph().mutable_node(0)->mutable_attribute(1)->mutable_g();
  no.clear_node();
  attribute(node_in(no, "Concat", {"x", "x"}, {"r"}), "axis", int64_t{0});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("If 'If_1'"), std::string::npos) << imported.error().message;
}

// for i in 0..trips: h = h * w + x; scanned: h of each iteration.
ModelMaker recurrence(int64_t trips) {
  ModelMaker maker;
  maker.input("x", {2}).output("last").output("all");
  maker.weight("w", {2}, 2.0f).set_raw_data(std::string("\0\0\0\x40\0\0\0\x40", 8));
  maker.weight("h0", {2}, 0.0f).set_raw_data(std::string(8, '\0'));
  maker.ints("trips", {trips}).clear_dims();
  auto& node = maker.node("Loop", {"trips", "", "h0"}, {"last", "all"});
  auto& loop = body(node, "body");
  ports(loop, {"i", "go", "h"}, {"go", "h_next", "copy"});
  node_in(loop, "Mul", {"h", "w"}, {"scaled"});
  node_in(loop, "Add", {"scaled", "x"}, {"h_next"});
  node_in(loop, "Identity", {"h_next"}, {"copy"});
  return maker;
}

TEST(ControlFlow, ALoopIsWrittenOut) {
  const auto imported = import_bytes(recurrence(3).bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_EQ(count_kind(imported->graph, OpKind::Mul), 3);
  EXPECT_EQ(imported->graph.find_initializer("w")->role, dag::InitializerRole::Parameter)
      << "read from outside";
  EXPECT_EQ(imported->graph.find_initializer("h0")->role, dag::InitializerRole::Parameter);
  const auto outputs = run_graph(imported->graph, imported->weights, {{"x", floats({2}, {1, 10})}});
  EXPECT_EQ(to_doubles(outputs->at("last")), (Values{7, 70}));
  EXPECT_EQ(outputs->at("all").shape(), (dag::Shape{3, 2}));
  EXPECT_EQ(to_doubles(outputs->at("all")), (Values{1, 10, 3, 30, 7, 70}));
}

TEST(ControlFlow, ALoopStopsWhenItsConditionSaysSo) {
  ModelMaker maker = recurrence(int64_t{1} << 62);
  auto& loop = *maker.graph().mutable_node(0)->mutable_attribute(0)->mutable_g();
  loop.mutable_output(0)->set_name("more");
  auto& limit = *loop.add_initializer();
  limit.set_name("limit");
  limit.set_data_type(pb::TensorProto::INT64);
  limit.add_int64_data(3);
  node_in(loop, "Less", {"i", "limit"}, {"more"});
  const auto outputs = run_model(maker, {{"x", floats({2}, {1, 10})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(outputs->at("all").shape(), (dag::Shape{4, 2})) << "asked after the iterations 0 to 3";
}

TEST(ControlFlow, ALoopThatDependsOnDataIsRefusedByName) {
  ModelMaker maker = recurrence(3);
  maker.graph().mutable_initializer()->RemoveLast();
  maker.input("trips", {}, pb::TensorProto::INT64);
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("Loop 'Loop_1': its trip count"), std::string::npos)
      << imported.error().message;
  EXPECT_EQ(shape_inputs(*read_bytes(maker.bytes())), Names{"trips"});
}

TEST(ControlFlow, ALoopWithoutIterationsHandsOnWhatItGot) {
  ModelMaker maker = recurrence(0);
  maker.graph().mutable_output()->RemoveLast();
  const auto outputs = run_model(maker, {{"x", floats({2}, {1, 10})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("last")), (Values{0, 0}));
}

TEST(ControlFlow, NamesOfSubgraphsHideOuterOnes) {
  ModelMaker maker = recurrence(2);
  maker.node("Neg", {"x"}, {"scaled"});  // a value of the outer graph, named as one within the body
  maker.output("scaled");
  const auto outputs = run_model(maker, {{"x", floats({2}, {1, 10})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("scaled")), (Values{-1, -10}));
  EXPECT_EQ(to_doubles(outputs->at("last")), (Values{3, 30}));
}

// Running sums of x [3, 2], forwards or backwards.
ModelMaker running_sum(bool backwards) {
  ModelMaker maker;
  maker.input("x", {3, 2}).output("last").output("all");
  maker.weight("start", {2}, 0.0f).set_raw_data(std::string(8, '\0'));
  auto& node = maker.node("Scan", {"start", "x"}, {"last", "all"});
  attribute(node, "num_scan_inputs", int64_t{1});
  if (backwards) attribute(node, "scan_input_directions", std::vector<int64_t>{1});
  if (backwards) attribute(node, "scan_output_directions", std::vector<int64_t>{1});
  auto& scan = body(node, "body");
  ports(scan, {"sum", "row"}, {"next", "out"});
  node_in(scan, "Add", {"sum", "row"}, {"next"});
  node_in(scan, "Identity", {"next"}, {"out"});
  return maker;
}

TEST(ControlFlow, AScanGoesBothWays) {
  const dag::Tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  const auto forwards = run_model(running_sum(false), {{"x", x}});
  ASSERT_TRUE(forwards.has_value()) << forwards.error().message;
  EXPECT_EQ(to_doubles(forwards->at("all")), (Values{1, 2, 4, 6, 9, 12}));
  const auto backwards = run_model(running_sum(true), {{"x", x}});
  ASSERT_TRUE(backwards.has_value()) << backwards.error().message;
  EXPECT_EQ(to_doubles(backwards->at("all")), (Values{9, 12, 8, 10, 5, 6}));
  EXPECT_EQ(to_doubles(backwards->at("last")), (Values{9, 12}));
}

TEST(ControlFlow, AScanRunsOverAnyAxis) {
  ModelMaker maker = running_sum(false);
  auto& node = *maker.graph().mutable_node(0);
  attribute(node, "scan_input_axes", std::vector<int64_t>{-1});
  attribute(node, "scan_output_axes", std::vector<int64_t>{1});
  maker.graph().mutable_initializer(0)->set_dims(0, 3);
  maker.graph().mutable_initializer(0)->set_raw_data(std::string(12, '\0'));
  const auto outputs = run_model(maker, {{"x", floats({3, 2}, {1, 2, 3, 4, 5, 6})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(outputs->at("all").shape(), (dag::Shape{3, 2}));
  EXPECT_EQ(to_doubles(outputs->at("all")), (Values{1, 3, 3, 7, 5, 11}));
}

TEST(ControlFlow, LoopsStandInLoops) {
  // Three times: (four times: h += x).
  ModelMaker maker;
  maker.input("x", {2}).output("y");
  maker.weight("h0", {2}, 0.0f).set_raw_data(std::string(8, '\0'));
  maker.ints("three", {3}).clear_dims();
  maker.ints("four", {4}).clear_dims();
  auto& outer = body(maker.node("Loop", {"three", "", "h0"}, {"y"}), "body");
  ports(outer, {"i", "go", "h"}, {"go", "r"});
  auto& inner = body(node_in(outer, "Loop", {"four", "", "h"}, {"r"}), "body");
  ports(inner, {"i", "go", "h"}, {"go", "r"});  // the same names again
  node_in(inner, "Add", {"h", "x"}, {"r"});
  const auto outputs = run_model(maker, {{"x", floats({2}, {1, 10})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("y")), (Values{12, 120}));
}

TEST(ControlFlow, StatisticsOfABodyAreUpdatedOncePerIteration) {
  ModelMaker maker;
  maker.input("x", {4, 3}).output("y");
  for (const char* name : {"scale", "bias", "mean", "var"}) maker.weight(name, {3}, 1.0f);
  maker.ints("trips", {2}).clear_dims();
  auto& loop = body(maker.node("Loop", {"trips", "", "x"}, {"y"}), "body");
  ports(loop, {"i", "go", "h"}, {"go", "r"});
  attribute(node_in(loop, "BatchNormalization", {"h", "scale", "bias", "mean", "var"}, {"r", "m", "v"}),
            "training_mode", int64_t{1});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_EQ(count_kind(imported->graph, OpKind::BatchNorm), 2);
  int updates = 0;
  for (const auto& output : imported->graph.outputs()) updates += output.role == dag::OutputRole::StateUpdate;
  EXPECT_EQ(updates, 2) << "the mean and the variance, each once";

  const auto folder = fresh_folder("loop_twin");
  ASSERT_TRUE(write_trained(*read_bytes(maker.bytes()), {}, folder / "m.onnx").has_value());
  const auto twin = import_bytes(read_all(folder / "m.inference.onnx"));
  ASSERT_TRUE(twin.has_value()) << twin.error().message;
  EXPECT_EQ(count_kind(twin->graph, OpKind::BatchNormInference), 2);
}

TEST(ControlFlow, ADropoutThatABodyReadsBecomesACopyInTheTwin) {
  ModelMaker maker = recurrence(2);
  auto nodes = maker.graph().node();
  maker.graph().clear_node();
  maker.graph().mutable_input(0)->set_name("raw");
  maker.node("Dropout", {"raw"}, {"x"});
  for (const auto& node : nodes) *maker.graph().add_node() = node;
  const auto folder = fresh_folder("captured");
  ASSERT_TRUE(write_trained(*read_bytes(maker.bytes()), {}, folder / "m.onnx").has_value());
  const auto twin = import_bytes(read_all(folder / "m.inference.onnx"));
  EXPECT_TRUE(twin.has_value()) << twin.error().message;
}

TEST(ControlFlow, WeightsOfABodyAreNamedAsNotTrained) {
  ModelMaker maker = choice();
  auto& c = *maker.graph().add_initializer();
  c.set_name("c");
  scalar_bool(c, true);
  auto& yes = *maker.graph().mutable_node(0)->mutable_attribute(0)->mutable_g();
  *yes.add_initializer() = maker.graph().initializer(0);
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  ASSERT_EQ(imported->warnings.size(), 1u);
  EXPECT_NE(imported->warnings[0].find("not trained"), std::string::npos);
}

}  // namespace
}  // namespace weft::onnx::testing
