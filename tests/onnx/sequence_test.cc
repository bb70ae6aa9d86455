// Sequences between nodes, of which nothing is left.
#include <gtest/gtest.h>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using Values = std::vector<double>;

// y: part `number` of x [5, 2], split as torch.split writes it.
ModelMaker split_and_pick(int64_t number) {
  ModelMaker maker;
  maker.input("x", {5, 2}).output("y");
  maker.ints("two", {2}).clear_dims();
  maker.ints("number", {number}).clear_dims();
  maker.node("SplitToSequence", {"x", "two"}, {"parts"});
  maker.node("SequenceAt", {"parts", "number"}, {"y"});
  return maker;
}

TEST(Sequences, PartsArePicked) {
  const dag::Tensor x = wave({5, 2});
  const auto last = run_model(split_and_pick(-1), {{"x", x}});
  ASSERT_TRUE(last.has_value()) << last.error().message;
  EXPECT_EQ(to_doubles(last->at("y")), (Values{to_doubles(x)[8], to_doubles(x)[9]}));
  const auto imported = import_bytes(split_and_pick(1).bytes());
  ASSERT_TRUE(imported.has_value());
  EXPECT_EQ(imported->graph.spec(imported->graph.outputs()[0].value).shape, (dag::Shape{2, 2}));
  EXPECT_FALSE(import_bytes(split_and_pick(3).bytes()).has_value()) << "there are three parts";
}

TEST(Sequences, TensorsAreStackedAndConcatenated) {
  for (const int64_t new_axis : {0, 1}) {
    ModelMaker maker;
    maker.input("a", {2}).input("b", {2}).output("y").output("n", pb::TensorProto::INT64);
    maker.ints("zero", {0}).clear_dims();
    maker.node("SequenceConstruct", {"a", "a"}, {"s"});
    maker.node("SequenceInsert", {"s", "b", "zero"}, {"t"});
    maker.node("SequenceErase", {"t"}, {"u"});
    maker.node("SequenceLength", {"u"}, {"n"});
    auto& node = maker.node("ConcatFromSequence", {"u"}, {"y"});
    attribute(node, "axis", new_axis);
    attribute(node, "new_axis", new_axis);
    const auto outputs = run_model(maker, {{"a", from_list({dag::DType::F32, {2}}, {1, 2})},
                                           {"b", from_list({dag::DType::F32, {2}}, {3, 4})}});
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    EXPECT_EQ(to_doubles(outputs->at("n")), Values{2});
    EXPECT_EQ(to_doubles(outputs->at("y")), new_axis ? (Values{3, 1, 4, 2}) : (Values{3, 4, 1, 2}));
  }
}

// A scripted recurrence: states are appended in a loop, and stacked behind it.
TEST(Sequences, ALoopMayCarryOne) {
  ModelMaker maker;
  maker.input("x", {2}).output("y");
  maker.ints("trips", {3}).clear_dims();
  maker.node("SequenceEmpty", {}, {"none"});
  auto& node = maker.node("Loop", {"trips", "", "x", "none"}, {"last", "all"});
  auto& attribute_of_body = *node.add_attribute();
  attribute_of_body.set_name("body");
  attribute_of_body.set_type(pb::AttributeProto::GRAPH);
  auto& body = *attribute_of_body.mutable_g();
  for (const char* name : {"i", "go", "h", "list"}) body.add_input()->set_name(name);
  body.mutable_input(3)->mutable_type()->mutable_sequence_type();
  for (const char* name : {"go", "next", "longer"}) body.add_output()->set_name(name);
  auto& add = *body.add_node();
  add.set_op_type("Add");
  add.add_input("h");
  add.add_input("h");
  add.add_output("next");
  auto& insert = *body.add_node();
  insert.set_op_type("SequenceInsert");
  insert.add_input("list");
  insert.add_input("next");
  insert.add_output("longer");
  attribute(maker.node("ConcatFromSequence", {"all"}, {"y"}), "axis", int64_t{0});
  const auto outputs = run_model(maker, {{"x", from_list({dag::DType::F32, {2}}, {1, 3})}});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  EXPECT_EQ(to_doubles(outputs->at("y")), (Values{2, 6, 4, 12, 8, 24}));
}

TEST(Sequences, NoOtherOperatorSeesOne) {
  ModelMaker maker = split_and_pick(0);
  maker.node("Relu", {"parts"}, {"r"});
  maker.output("r", 0);
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
  EXPECT_NE(imported.error().message.find("Relu 'Relu_3'"), std::string::npos) << imported.error().message;
}

TEST(Sequences, AnOutputIsNone) {
  ModelMaker maker = split_and_pick(0);
  maker.output("parts", 0);
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
}

TEST(Sequences, TheirSizeIsBounded) {
  ModelMaker maker;
  maker.input("x", {2}).output("n", pb::TensorProto::INT64);
  maker.node("SequenceEmpty", {}, {"s0"});
  constexpr int kCount = 4000;  // each sequence is one longer, and every one of them is named
  for (int i = 0; i < kCount; ++i)
    maker.node("SequenceInsert", {"s" + std::to_string(i), "x"}, {"s" + std::to_string(i + 1)});
  maker.node("SequenceLength", {"s" + std::to_string(kCount)}, {"n"});
  const auto imported = import_bytes(maker.bytes());
  ASSERT_FALSE(imported.has_value());
  EXPECT_EQ(imported.error().code, ErrorCode::ResourceExhausted);
}

}  // namespace
}  // namespace weft::onnx::testing
