// Operators that write and read where indices say, against loops over coordinates; sorting and selecting.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::DType;
using dag::Tensor;
using Numbers = std::vector<double>;

constexpr int32_t kInt64 = pb::TensorProto::INT64;

Tensor counting(const dag::Shape& shape, double start = 0) {
  const dag::TensorSpec spec{DType::F32, shape};
  Numbers values(static_cast<size_t>(spec.element_count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = start + static_cast<double>(i);
  return dag::from_doubles(spec, values);
}
Tensor wholes(const dag::Shape& shape, const std::vector<int64_t>& values) {
  return dag::from_int64s({DType::I64, shape}, values);
}

struct Operand {
  std::string name;
  Tensor value;
};
// One node over operands that are all inputs of the model.
struct Node {
  std::string op;
  std::vector<Operand> operands;
  std::vector<std::string> results{"y"};
  std::vector<std::pair<std::string, int64_t>> integers = {};
  std::vector<std::pair<std::string, std::string>> texts = {};
  bool operands_known = false;  // bound, as what decides shapes has to be
  int64_t opset = 17;
};

Result<std::map<std::string, Tensor>> run(const Node& form) {
  ModelMaker maker(form.opset);
  ImportOptions options = training_options();
  std::map<std::string, Tensor> inputs;
  std::vector<std::string> names;
  for (const Operand& operand : form.operands) {
    names.push_back(operand.name);
    const bool is_whole = operand.value.dtype() == DType::I64;
    const bool is_bool = operand.value.dtype() == DType::Bool;
    maker.input(operand.name, operand.value.shape(),
                is_whole  ? kInt64
                : is_bool ? int32_t{pb::TensorProto::BOOL}
                          : int32_t{pb::TensorProto::FLOAT});
    inputs[operand.name] = operand.value;
    if (form.operands_known) options.bound_inputs[operand.name] = operand.value;
  }
  for (const std::string& result : form.results) maker.output(result, 0);
  auto& node = maker.node(form.op, names, form.results);
  for (const auto& [name, value] : form.integers) attribute(node, name, value);
  for (const auto& [name, value] : form.texts) attribute(node, name, value);
  WEFT_TRY(const ImportedModel model, import_bytes(maker.bytes(), options));
  return run_graph(model.graph, model.weights, inputs);
}

Numbers numbers_of(const Result<std::map<std::string, Tensor>>& results, const std::string& name = "y") {
  if (!results) {
    ADD_FAILURE() << results.error().message;
    return {};
  }
  return to_doubles(results->at(name));
}

TEST(Scatter, ElementsOfEqualPlacesCombineInOrder) {
  const std::map<std::string, Numbers> expected{{"none", {0, 12, 11, 3}},
                                                {"add", {0, 23, 13, 3}},
                                                {"mul", {0, 120, 22, 3}},
                                                {"min", {0, 1, 2, 3}},
                                                {"max", {0, 12, 11, 3}}};
  for (const auto& [reduction, want] : expected) {
    const Node node{
        "ScatterElements",
        {{"data", counting({4})}, {"at", wholes({4}, {1, -2, 1, 9})}, {"with", counting({4}, 10)}},
        {"y"},
        {},
        {{"reduction", reduction}}};
    EXPECT_EQ(numbers_of(run(node)), want) << reduction;
  }
}

TEST(Scatter, TheOldNameWorks) {
  const Node node{
      "Scatter", {{"data", counting({1, 5})}, {"at", wholes({1, 2}, {1, 3})}, {"with", counting({1, 2}, 20)}},
      {"y"},     {{"axis", 1}},
      {},        false,
      9};
  EXPECT_EQ(numbers_of(run(node)), (Numbers{0, 20, 2, 21, 4}));
}

TEST(Scatter, NdWritesSlicesAndIgnoresWhatLiesOutside) {
  // (0,1), (1,-1) = (1,2), and (0,5), which is outside though its flat place 5 would not be.
  const Node node{"ScatterND",
                  {{"data", counting({2, 3, 2})},
                   {"at", wholes({3, 2}, {0, 1, 1, -1, 0, 5})},
                   {"with", counting({3, 2}, 100)}},
                  {"y"},
                  {},
                  {{"reduction", "add"}}};
  EXPECT_EQ(numbers_of(run(node)), (Numbers{0, 1, 102, 104, 4, 5, 6, 7, 8, 9, 112, 114}));
}

TEST(Scatter, NdRefusesWhatDoesNotFit) {
  for (const dag::Shape& shape : {dag::Shape{3, 4}, dag::Shape{3, 0}}) {
    const Node node{"ScatterND",
                    {{"data", counting({2, 3, 2})},
                     {"at", wholes(shape, std::vector<int64_t>(static_cast<size_t>(3 * shape[1])))},
                     {"with", counting({3, 2})}}};
    EXPECT_FALSE(run(node).has_value());
  }
}

TEST(Gather, NdReadsWithinItsBatchOnly) {
  const Node node{"GatherND",
                  {{"data", counting({2, 3, 2})}, {"at", wholes({2, 2, 1}, {2, 3, -1, -4})}},
                  {"y"},
                  {{"batch_dims", 1}}};
  const Numbers y = numbers_of(run(node));
  ASSERT_EQ(y.size(), 8u);
  EXPECT_EQ((Numbers{y[0], y[1], y[4], y[5]}), (Numbers{4, 5, 10, 11}));
  for (const size_t outside : {2, 3, 6, 7}) EXPECT_TRUE(std::isnan(y[outside])) << outside;
}

TEST(Scatter, TensorScatterWritesFromWhereEachBatchStands) {
  const auto cache = [](const std::string& mode, std::vector<int64_t> from) {
    return Node{
        "TensorScatter",
        {{"cache", counting({2, 4, 1})}, {"update", counting({2, 2, 1}, 50)}, {"from", wholes({2}, from)}},
        {"y"},
        {{"axis", 1}},
        {{"mode", mode}}};
  };
  EXPECT_EQ(numbers_of(run(cache("linear", {1, 2}))), (Numbers{0, 50, 51, 3, 4, 5, 52, 53}));
  EXPECT_EQ(numbers_of(run(cache("circular", {3, 0}))), (Numbers{51, 1, 2, 50, 52, 53, 6, 7}));
}

TEST(Gather, ReverseSequenceTurnsTheFirstStepsOfEachRow) {
  const Node time_first{"ReverseSequence", {{"x", counting({3, 2})}, {"lengths", wholes({2}, {2, 9})}}};
  EXPECT_EQ(numbers_of(run(time_first)), (Numbers{2, 5, 0, 3, 4, 1}));
  const Node batch_first{"ReverseSequence",
                         {{"x", counting({2, 3})}, {"lengths", wholes({2}, {2, 0})}},
                         {"y"},
                         {{"batch_axis", 0}, {"time_axis", 1}}};
  EXPECT_EQ(numbers_of(run(batch_first)), (Numbers{1, 0, 2, 3, 4, 5}));
}

TEST(Selection, TopKOfEveryOpset) {
  const Tensor x = dag::from_doubles({DType::F32, {5}}, Numbers{3, 7, 7, -1, 5});
  const Node attribute_k{"TopK", {{"x", x}}, {"y", "at"}, {{"k", 3}}, {}, false, 9};
  EXPECT_EQ(numbers_of(run(attribute_k)), (Numbers{7, 7, 5}));
  EXPECT_EQ(numbers_of(run(attribute_k), "at"), (Numbers{1, 2, 4}));
  const Node operand_k{
      "TopK", {{"x", x}, {"k", wholes({1}, {2})}}, {"y", "at"}, {{"largest", 0}, {"sorted", 0}}, {}, true};
  EXPECT_EQ(numbers_of(run(operand_k), "at"), (Numbers{3, 0}));
  const Node too_many{"TopK", {{"x", x}, {"k", wholes({1}, {6})}}, {"y", "at"}, {}, {}, true};
  EXPECT_FALSE(run(too_many).has_value());
}

TEST(Selection, ShapesThatDependOnDataAreRefusedByName) {
  const Tensor x = counting({3}), mask = dag::from_int64s({DType::Bool, {3}}, std::vector<int64_t>{1, 0, 1});
  const std::vector<Node> nodes{
      {"NonZero", {{"x", x}}}, {"Unique", {{"x", x}}}, {"Compress", {{"x", x}, {"mask", mask}}}};
  for (Node node : nodes) {
    const auto refused = run(node);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
    EXPECT_NE(refused.error().message.find("depends on data"), std::string::npos) << refused.error().message;
    node.operands_known = true;
    EXPECT_TRUE(run(node).has_value()) << node.op;
  }
  EXPECT_EQ(numbers_of(run({"NonZero", {{"x", x}}, {"y"}, {}, {}, true})), (Numbers{1, 2}));
  EXPECT_EQ(numbers_of(run({"Compress", {{"x", x}, {"mask", mask}}, {"y"}, {}, {}, true})), (Numbers{0, 2}));
}

TEST(Selection, UniqueKeepsTheOrderItIsAskedFor) {
  const Tensor x = dag::from_doubles({DType::F32, {5}}, Numbers{2, 1, 2, 3, 1});
  for (const int64_t sorted : {0, 1}) {
    const auto results =
        run({"Unique", {{"x", x}}, {"y", "first", "inverse", "counts"}, {{"sorted", sorted}}, {}, true});
    EXPECT_EQ(numbers_of(results), sorted ? (Numbers{1, 2, 3}) : (Numbers{2, 1, 3}));
    EXPECT_EQ(numbers_of(results, "first"), sorted ? (Numbers{1, 0, 3}) : (Numbers{0, 1, 3}));
    EXPECT_EQ(numbers_of(results, "inverse"), sorted ? (Numbers{1, 0, 1, 2, 0}) : (Numbers{0, 1, 0, 2, 1}));
    EXPECT_EQ(numbers_of(results, "counts"), sorted ? (Numbers{2, 2, 1}) : (Numbers{2, 2, 1}));
  }
}

}  // namespace
}  // namespace weft::onnx::testing
