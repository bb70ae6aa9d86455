// The file's own functions, as torch.onnx's exporters write them.
#include <gtest/gtest.h>

#include <stdexcept>

#include "dag/onnx/export.h"
#include "dag/onnx/inspect.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::OpKind;

constexpr char kDomain[] = "pkg.onnxscript.torch_lib";

pb::FunctionProto& function(ModelMaker& maker, const std::string& name,
                            const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  auto& added = *maker.proto.add_functions();
  added.set_domain(kDomain);
  added.set_name(name);
  for (const auto& input : inputs) added.add_input(input);
  for (const auto& output : outputs) added.add_output(output);
  added.add_opset_import()->set_version(18);
  return added;
}
pb::NodeProto& node_in(pb::FunctionProto& function, const std::string& op,
                       const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  auto& node = *function.add_node();
  node.set_op_type(op);
  node.set_name("n" + std::to_string(function.node_size()));
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}
pb::NodeProto& call(ModelMaker& maker, const std::string& name, const std::vector<std::string>& inputs,
                    const std::vector<std::string>& outputs) {
  auto& node = maker.node(name, inputs, outputs);
  node.set_domain(kDomain);
  return node;
}
void refer(pb::NodeProto& node, const std::string& name, const std::string& to,
           pb::AttributeProto::AttributeType type) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_ref_attr_name(to);
  attribute.set_type(type);
}

// y = Relu(linear(linear(x))), each linear a call whose body uses the same names.
ModelMaker two_layers() {
  ModelMaker maker(18);
  maker.proto.set_ir_version(10);
  maker.input("x", {-1, 4}).output("y");
  maker.weight("l1.w", {4, 4});
  maker.weight("l1.b", {4});
  maker.weight("l2.w", {4, 4}, -0.3f);
  maker.weight("l2.b", {4}, 0.1f);
  auto& linear = function(maker, "linear", {"input", "w", "b"}, {"result"});
  node_in(linear, "MatMul", {"input", "w"}, {"tmp"});
  node_in(linear, "Add", {"tmp", "b"}, {"result"});
  call(maker, "linear", {"x", "l1.w", "l1.b"}, {"h"});
  call(maker, "linear", {"h", "l2.w", "l2.b"}, {"g"});
  maker.node("Relu", {"g"}, {"y"});
  return maker;
}

ModelMaker two_layers_plain() {
  ModelMaker maker = two_layers();
  maker.proto.clear_functions();
  maker.graph().clear_node();
  maker.node("MatMul", {"x", "l1.w"}, {"a"});
  maker.node("Add", {"a", "l1.b"}, {"h"});
  maker.node("MatMul", {"h", "l2.w"}, {"b"});
  maker.node("Add", {"b", "l2.b"}, {"g"});
  maker.node("Relu", {"g"}, {"y"});
  return maker;
}

TEST(Functions, AModelOfFunctionsIsTheModelOfItsNodes) {
  const auto called = import_bytes(two_layers().bytes());
  const auto plain = import_bytes(two_layers_plain().bytes());
  ASSERT_TRUE(called.has_value()) << called.error().message;
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(called->graph.ops().size(), plain->graph.ops().size());
  EXPECT_EQ(called->op_counts, plain->op_counts);
  for (const auto& initializer : called->graph.initializers())
    EXPECT_EQ(initializer.role, dag::InitializerRole::Parameter) << initializer.name;
  const auto a = run_graph(called->graph, called->weights, {{"x", wave({2, 4})}});
  const auto b = run_graph(plain->graph, plain->weights, {{"x", wave({2, 4})}});
  EXPECT_EQ(to_doubles(a->at("y")), to_doubles(b->at("y")));
}

TEST(Functions, TrainedFilesKeepThem) {
  const ModelMaker maker = two_layers();
  const auto model = read_bytes(maker.bytes());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(*trained_bytes(*model, {}), maker.bytes());
}

TEST(Functions, InspectShowsWhatTheyDo) {
  const auto model = read_bytes(two_layers().bytes());
  const ModelInfo info = inspect_model(*model, training_options(), dag::op_table());
  EXPECT_TRUE(info.problem.empty()) << info.problem;
  EXPECT_EQ(info.parameters.size(), 4u);
  EXPECT_EQ(info.op_counts.at("MatMul"), 2);
}

// leaky(x; alpha) with a default of its own, as FunctionProto.attribute_proto (field 11) has it.
ModelMaker with_attribute(bool given) {
  ModelMaker maker(18);
  maker.input("x", {2}).output("y");
  auto& leaky = function(maker, "leaky", {"x"}, {"r"});
  refer(node_in(leaky, "LeakyRelu", {"x"}, {"r"}), "alpha", "slope", pb::AttributeProto::FLOAT);
  pb::AttributeProto otherwise;
  otherwise.set_name("slope");
  otherwise.set_type(pb::AttributeProto::FLOAT);
  otherwise.set_f(0.25f);
  leaky.GetReflection()->MutableUnknownFields(&leaky)->AddLengthDelimited(11, otherwise.SerializeAsString());
  auto& node = call(maker, "leaky", {"x"}, {"y"});
  if (given) attribute(node, "slope", 0.5f);
  return maker;
}

TEST(Functions, AttributesComeFromTheCallOrAreTheDefaults) {
  const dag::Tensor x = from_list({dag::DType::F32, {2}}, {-4, 4});
  for (const bool given : {false, true}) {
    const auto outputs = run_model(with_attribute(given), {{"x", x}});
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    EXPECT_EQ(to_doubles(outputs->at("y")), (std::vector<double>{given ? -2.0 : -1.0, 4}));
  }
}

TEST(Functions, AttributesPassThroughNestedCalls) {
  ModelMaker maker = with_attribute(false);
  auto& outer = function(maker, "outer", {"a"}, {"b"});
  auto& inner = node_in(outer, "leaky", {"a"}, {"b"});
  inner.set_domain(kDomain);
  refer(inner, "slope", "steep", pb::AttributeProto::FLOAT);
  maker.graph().clear_node();
  attribute(call(maker, "outer", {"x"}, {"y"}), "steep", 0.125f);
  const auto outputs = run_model(maker, {{"x", from_list({dag::DType::F32, {2}}, {-4, 4})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("y"))[0], -0.5);
}

TEST(Functions, OverloadsAreToldApart) {
  ModelMaker maker(18);
  maker.input("x", {2}).output("y");
  const auto overload = [](google::protobuf::Message& message, int field, const std::string& name) {
    message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(field, name);
  };
  auto& negate = function(maker, "f", {"x"}, {"r"});
  node_in(negate, "Neg", {"x"}, {"r"});
  overload(negate, 13, "negate");
  auto& copy = function(maker, "f", {"x"}, {"r"});
  node_in(copy, "Identity", {"x"}, {"r"});
  overload(copy, 13, "copy");
  overload(call(maker, "f", {"x"}, {"y"}), 8, "negate");
  const auto outputs = run_model(maker, {{"x", wave({2}, 1)}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("y"))[0], -to_doubles(wave({2}, 1))[0]);
}

TEST(Functions, OptionalOperandsAndResultsMayBeLeftOut) {
  ModelMaker maker(18);
  maker.input("x", {2, 4}).output("y").output("same");
  auto& f = function(maker, "f", {"x", "low", "high"}, {"clipped", "x", "unused"});
  node_in(f, "Clip", {"x", "low", "high"}, {"clipped"});
  node_in(f, "Neg", {"x"}, {"unused"});
  auto& half = maker.weight("half", {}, 0.5f);
  half.clear_dims();
  call(maker, "f", {"x", "", "half"}, {"y", "same"});
  const auto outputs = run_model(maker, {{"x", wave({2, 4})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("y"))[1], 0.5);
  EXPECT_EQ(to_doubles(outputs->at("same")), to_doubles(wave({2, 4}))) << "an output that is an input";
}

TEST(Functions, TheirOwnOpsetCounts) {
  // Softmax before opset 13 takes all dims from its axis on as one.
  ModelMaker maker(18);
  maker.input("x", {1, 2, 2}).output("y");
  auto& f = function(maker, "f", {"x"}, {"r"});
  f.mutable_opset_import(0)->set_version(11);
  attribute(node_in(f, "Softmax", {"x"}, {"r"}), "axis", int64_t{1});
  call(maker, "f", {"x"}, {"y"});
  const auto outputs = run_model(maker, {{"x", wave({1, 2, 2})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  double sum = 0;
  for (const double value : to_doubles(outputs->at("y"))) sum += value;
  EXPECT_NEAR(sum, 1, 1e-6);
}

// BatchNormalization and Dropout within functions.
ModelMaker trained_by_functions() {
  ModelMaker maker(18);
  maker.input("x", {-1, 3, 4}).output("y");
  for (const char* name : {"scale", "bias", "mean", "var"}) maker.weight(name, {3}, 1.0f);
  maker.weight("ratio", {}, 0.25f);
  auto& flag = *maker.graph().add_initializer();
  flag.set_name("train");
  flag.set_data_type(pb::TensorProto::BOOL);
  flag.add_int32_data(1);
  auto& f = function(maker, "block", {"x", "s", "b", "m", "v", "ratio", "train"}, {"r"});
  attribute(node_in(f, "BatchNormalization", {"x", "s", "b", "m", "v"}, {"n", "m1", "v1"}), "training_mode",
            int64_t{1});
  node_in(f, "Dropout", {"n", "ratio", "train"}, {"d"});
  node_in(f, "Relu", {"d"}, {"r"});
  call(maker, "block", {"x", "scale", "bias", "mean", "var", "ratio", "train"}, {"y"});
  return maker;
}

TEST(Functions, TrainingModeWithinThemIsSeen) {
  const auto imported = import_bytes(trained_by_functions().bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_EQ(count_kind(imported->graph, OpKind::BatchNorm), 1);
  EXPECT_EQ(count_kind(imported->graph, OpKind::Dropout), 1);
  EXPECT_EQ(imported->graph.find_initializer("mean")->role, dag::InitializerRole::RunningStatistic);
  EXPECT_NE(imported->graph.find_output(dag::OutputRole::StateUpdate, "var"), nullptr);
}

TEST(Functions, TheTwinOfThemPredicts) {
  const auto folder = fresh_folder("function_twin");
  const auto model = read_bytes(trained_by_functions().bytes());
  ASSERT_TRUE(model.has_value());
  ASSERT_TRUE(write_trained(*model, {}, folder / "m.onnx").has_value());
  const auto twin = import_bytes(read_all(folder / "m.inference.onnx"));
  ASSERT_TRUE(twin.has_value()) << twin.error().message;
  EXPECT_EQ(count_kind(twin->graph, OpKind::BatchNorm), 0);
  EXPECT_EQ(count_kind(twin->graph, OpKind::BatchNormInference), 1);
  EXPECT_EQ(count_kind(twin->graph, OpKind::Dropout), 0);
}

TEST(Functions, ErrorsNameTheCall) {
  ModelMaker maker = two_layers();
  maker.proto.mutable_functions(0)->mutable_node(0)->set_input(1, "nowhere");
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(imported.error().message.find("linear_1/n1"), std::string::npos) << imported.error().message;
  EXPECT_NE(imported.error().message.find("nowhere"), std::string::npos) << imported.error().message;
}

// What torch.export writes around the nodes: value_info that is wrong, metadata, domains that nothing uses.
TEST(Functions, WhatExportersWriteBesideTheNodesIsIgnored) {
  ModelMaker maker = two_layers();
  for (const char* domain : {"ai.onnx.ml", kDomain, "pkg.torch.2.6.0"}) {
    auto* entry = maker.proto.add_opset_import();
    entry->set_domain(domain);
    entry->set_version(1);
  }
  auto* info = maker.graph().add_value_info();
  info->set_name("h");
  auto* type = info->mutable_type()->mutable_tensor_type();
  type->set_elem_type(pb::TensorProto::INT64);
  type->mutable_shape()->add_dim()->set_dim_value(77);
  auto* entry = maker.proto.add_metadata_props();
  entry->set_key("pkg.torch.export.graph_signature");
  entry->set_value("anything");
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_TRUE(imported->warnings.empty());
}

// y = x * scale + bias + buffer, with the signature of the program as torch.export prints it.
ModelMaker with_signature(const std::string& signature) {
  ModelMaker maker(18);
  maker.input("x", {-1, 3}).output("y");
  maker.weight("val_3", {}, 0.125f);
  maker.weight("bias", {3});
  maker.weight("table", {3});
  maker.node("Mul", {"x", "val_3"}, {"a"});
  maker.node("Add", {"a", "bias"}, {"b"});
  maker.node("Add", {"b", "table"}, {"y"});
  if (signature.empty()) return maker;
  pb::StringStringEntryProto entry;
  entry.set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry.set_value(signature);
  auto& graph = maker.graph();
  graph.GetReflection()->MutableUnknownFields(&graph)->AddLengthDelimited(16, entry.SerializeAsString());
  return maker;
}
std::vector<std::string> trained(const ModelMaker& maker) {
  const auto imported = import_bytes(maker.bytes());
  if (!imported) throw std::runtime_error(imported.error().message);
  std::vector<std::string> names;
  for (const auto& initializer : imported->graph.initializers())
    if (initializer.role == dag::InitializerRole::Parameter) names.push_back(initializer.name);
  return names;
}

TEST(Exporter, ConstantsAmongTheInitializersAreNotTrained) {
  EXPECT_EQ(trained(with_signature("")), (std::vector<std::string>{"bias", "table"})) << "by its name";
  EXPECT_EQ(
      trained(with_signature("\n# inputs\np_bias: PARAMETER target='bias'\nb_table: BUFFER target='table' "
                             "persistent=True\nx: USER_INPUT\n\n# outputs\nadd_1: USER_OUTPUT\n")),
      std::vector<std::string>{"bias"});
  EXPECT_EQ(
      trained(with_signature(
          "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument("
          "name='p_bias'), target='bias', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, "
          "arg=TensorArgument(name='b_table'), target='table', persistent=True)])")),
      std::vector<std::string>{"bias"});
}

TEST(Exporter, ParametersThatWereFoldedAwayAreNamed) {
  const ModelMaker maker =
      with_signature("p_bias: PARAMETER target='bias'\np_w: PARAMETER target='layer.weight'\n");
  EXPECT_EQ(trained(maker), (std::vector<std::string>{"bias", "table"})) << "one of them may stand for it";
  const auto imported = import_bytes(maker.bytes());
  ASSERT_EQ(imported->warnings.size(), 1u);
  EXPECT_NE(imported->warnings[0].find("'layer.weight'"), std::string::npos) << imported->warnings[0];
}

TEST(Exporter, FilesWithSignaturesAreWrittenBackWhole) {
  const ModelMaker maker = with_signature("p_bias: PARAMETER target='bias'\n");
  EXPECT_EQ(*trained_bytes(*read_bytes(maker.bytes()), {}), maker.bytes());
}

}  // namespace
}  // namespace weft::onnx::testing
