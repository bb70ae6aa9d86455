#include "dag/onnx/batch_axis.h"

#include <gtest/gtest.h>

#include "dag/onnx/inspect.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using Dims = std::vector<std::string>;  // a number, a symbol, or "-1"

void set_shape(pb::ValueInfoProto& info, const Dims& dims) {
  auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
  shape.Clear();
  for (const std::string& dim : dims) {
    auto& entry = *shape.add_dim();
    if (dim == "-1" || dim.find_first_not_of("0123456789") == std::string::npos)
      entry.set_dim_value(std::stoll(dim));
    else
      entry.set_dim_param(dim);
  }
}

// A model that has these inputs and does nothing with them.
OnnxModel with_inputs(const std::vector<Dims>& inputs) {
  ModelMaker maker;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    maker.input(name, {}).output("y" + std::to_string(i));
    set_shape(*maker.graph().mutable_input(static_cast<int>(i)), inputs[i]);
    maker.node("Identity", {name}, {"y" + std::to_string(i)});
  }
  return read_bytes(maker.bytes()).value();
}

TEST(BatchAxis, TheSymbolSaysWhereTheBatchIs) {
  struct Case {
    std::vector<Dims> inputs;
    std::string symbol;
    std::vector<size_t> axes;
  };
  for (const auto& [inputs, symbol, axes] :
       std::vector<Case>{{{{"batch", "16"}, {"2", "batch", "128"}}, "batch", {0, 1}},
                         {{{"2", "batch", "128"}, {"batch", "16"}}, "batch", {1, 0}},
                         {{{"sequence", "batch_size", "16"}}, "batch_size", {1}},
                         {{{"unk__1", "4"}, {"2", "unk__1", "3"}}, "unk__1", {0, 1}},
                         {{{"N", "3", "h", "w"}, {"1", "N"}}, "N", {0, 1}},
                         {{{"rows", "batch*heads", "4"}}, "rows", {0}},
                         {{{"batch", "tokens"}, {"batch", "1", "tokens", "tokens"}}, "batch", {0, 0}},
                         {{{"1", "3", "points"}}, "", {0}},
                         {{{"4", "3"}, {"-1", "3"}}, "", {0, 0}}}) {
    const OnnxModel model = with_inputs(inputs);
    SCOPED_TRACE(symbol);
    EXPECT_EQ(batch_symbol(model), symbol);
    for (size_t i = 0; i < axes.size(); ++i) EXPECT_EQ(batch_axis(model.inputs()[i], symbol), axes[i]) << i;
  }
}

// y = x + state[0], next = state, state of [2, batch, 3].
ModelMaker recurrent() {
  ModelMaker maker;
  maker.input("state", {2, -1, 3}).input("x", {-1, 3}).output("y").output("next");
  maker.ints("zero", {0}).clear_dims();
  attribute(maker.node("Gather", {"state", "zero"}, {"first"}), "axis", int64_t{0});
  maker.node("Add", {"x", "first"}, {"y"});
  maker.node("Relu", {"state"}, {"next"});
  set_shape(*maker.graph().mutable_output(1), {"2", "batch", "3"});
  return maker;
}

dag::Shape output_shape(const dag::Graph& graph, const std::string& name) {
  return graph.spec(graph.find_output(dag::OutputRole::Prediction, name)->value).shape;
}

TEST(BatchAxis, IsTheFirstOfTheGraphWhereThatIsAskedFor) {
  ImportOptions options = training_options();
  options.batch = 5;
  const auto as_it_is = import_bytes(recurrent().bytes(), options);
  ASSERT_TRUE(as_it_is.has_value()) << as_it_is.error().message;
  EXPECT_EQ(as_it_is->graph.spec(as_it_is->graph.inputs()[0]).shape, (dag::Shape{2, 5, 3}));
  EXPECT_EQ(output_shape(as_it_is->graph, "next"), (dag::Shape{2, 5, 3}));
  EXPECT_EQ(count_kind(as_it_is->graph, dag::OpKind::Transpose), 0);

  options.batch_first = true;
  for (const bool given : {false, true}) {
    if (given) options.input_shapes["state"] = {5, 2, 3};
    const auto turned = import_bytes(recurrent().bytes(), options);
    ASSERT_TRUE(turned.has_value()) << turned.error().message;
    EXPECT_EQ(turned->graph.spec(turned->graph.inputs()[0]).shape, (dag::Shape{5, 2, 3}));
    EXPECT_EQ(turned->graph.value(turned->graph.inputs()[0]).name, "state");
    EXPECT_EQ(output_shape(turned->graph, "next"), (dag::Shape{5, 2, 3}));
    EXPECT_EQ(output_shape(turned->graph, "y"), (dag::Shape{5, 3}));
  }
}

TEST(BatchAxis, ASizeOfMinusOneIsNotKnown) {
  const OnnxModel model = with_inputs({{"-1", "3", "-1"}});
  EXPECT_EQ(model.inputs()[0].dims, (Dims{"?", "3", "?"}));
  ImportOptions options = training_options();
  const auto refused = import_model(model, options, dag::op_table());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("dim 2 is unknown"), std::string::npos) << refused.error().message;
  options.input_shapes["x0"] = {2, 3, 7};
  EXPECT_TRUE(import_model(model, options, dag::op_table()).has_value());
}

TEST(BatchAxis, InspectNamesSizesThatAreOpen) {
  const OnnxModel model = with_inputs({{"batch", "tokens"}, {"batch", "tokens", "width"}});
  ImportOptions options = training_options();
  options.batch.reset();
  const ModelInfo info = inspect_model(model, options, dag::op_table());
  EXPECT_TRUE(info.problem.empty()) << info.problem;
  EXPECT_EQ(info.open_sizes, (Dims{"tokens", "width"}));
  options.sizes = {{"tokens", 4}, {"width", 8}};
  EXPECT_TRUE(inspect_model(model, options, dag::op_table()).open_sizes.empty());
}

}  // namespace
}  // namespace weft::onnx::testing
