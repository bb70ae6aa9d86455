// Weights that a file keeps in fewer bits: read as the operators define them, kept so in the graph, made
// whole again, and written so.
#include "dag/onnx/stored_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dag/op_table.h"
#include "tests/onnx/stored_models.h"

namespace weft::onnx::testing {
namespace {

using dag::DType;
using dag::OpKind;

// y = x W^T of W [6, 64] in blocks of 32, four bits.
struct Product {
  ModelMaker maker{21};
  std::string numbers = random_bytes(6 * 32, 5), zeros = random_bytes(6, 6);
  dag::Tensor scales = wave({6, 2}, 1, 0.1);

  explicit Product(bool has_zeros = false) {
    auto& entry = *maker.proto.add_opset_import();
    entry.set_domain("com.microsoft");
    entry.set_version(1);
    maker.input("x", {2, 3, 64}).output("y");
    add_raw(maker, "layer.weight_Q4", {6, 2, 16}, kUint8, numbers);
    add_tensor(maker, "layer.weight_scales", scales);
    std::vector<std::string> inputs{"x", "layer.weight_Q4", "layer.weight_scales"};
    if (has_zeros) {
      add_raw(maker, "layer.weight_zeros", {6}, kUint8, zeros);
      inputs.push_back("layer.weight_zeros");
    }
    pb::NodeProto& node = maker.node("MatMulNBits", inputs, {"y"});
    node.set_domain("com.microsoft");
    attribute(node, "K", int64_t{64});
    attribute(node, "N", int64_t{6});
    attribute(node, "bits", int64_t{4});
    attribute(node, "block_size", int64_t{32});
  }
  // Row-major, as the operator's definition has it.
  std::vector<double> weight(bool has_zeros) const {
    std::vector<double> w;
    for (size_t i = 0; i < 6 * 64; ++i) {
      const size_t block = i / 32;
      const int zero = has_zeros ? nibble(zeros, block) : 8;
      w.push_back(static_cast<float>(nibble(numbers, i) - zero) * scales.as<float>()[block]);
    }
    return w;
  }
};

std::vector<double> product(const dag::Tensor& x, const std::vector<double>& w, size_t rows, size_t inner) {
  const auto from = to_doubles(x);
  std::vector<double> y;
  for (size_t i = 0; i < from.size() / inner; ++i)
    for (size_t j = 0; j < rows; ++j) {
      double sum = 0;
      for (size_t k = 0; k < inner; ++k) sum += from[i * inner + k] * w[j * inner + k];
      y.push_back(sum);
    }
  return y;
}
TEST(StoredWeights, AProductOfFourBitsIsWhatItsOperatorSays) {
  const dag::Tensor x = wave({2, 3, 64});
  for (const bool has_zeros : {false, true}) {
    const Product made(has_zeros);
    const auto values = run_model(made.maker, {{"x", x}});
    ASSERT_TRUE(values.has_value()) << values.error().message;
    expect_near(to_doubles(values->at("y")), product(x, made.weight(has_zeros), 6, 64));
  }
}

// As jobs import it: an initializer by the weight's own name, and then again what the file has.
TEST(StoredWeights, AnImportKeepsThemAsInitializers) {
  const Product made;
  ImportOptions options = training_options();
  options.keep_stored = true;
  const auto imported = import_bytes(made.maker.bytes(), options);
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  const dag::Initializer* weight = imported->graph.find_initializer("layer.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->role, dag::InitializerRole::Frozen);
  EXPECT_EQ(imported->graph.spec(weight->value), (dag::TensorSpec{DType::F32, {6, 64}}));
  const dag::Graph graph = store(imported->graph, imported->stored, dag::op_table());
  EXPECT_EQ(count_kind(graph, OpKind::StoredMatMul), 1);
  EXPECT_EQ(graph.find_initializer("layer.weight"), nullptr);
  const dag::Tensor x = wave({2, 3, 64});
  const auto values = run_graph(graph, imported->weights, {{"x", x}});
  ASSERT_TRUE(values.has_value()) << values.error().message;
  expect_near(to_doubles(values->at("y")), product(x, made.weight(false), 6, 64));
}

// ONNX's own, by channel, by tensor and in blocks of either axis; large ones of four bits stay packed.
TEST(StoredWeights, DequantizeLinearInEveryArrangement) {
  struct Case {
    const char* name;
    int32_t type;
    int64_t axis, block;
    dag::Shape scale;
    int64_t rows = 96, columns = 100;
  };
  const Case cases[] = {{"one for all", kInt8, 1, 0, {}},        {"rows", kUint8, 0, 0, {96}},
                        {"columns", kInt4, 1, 0, {100}},         {"blocks down", kUint4, 0, 32, {3, 100}},
                        {"blocks along", kInt4, 1, 50, {96, 2}}, {"odd", kUint4, 0, 32, {1, 7}, 31, 7},
                        {"one number", kInt8, 0, 0, {1}, 3, 5}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const bool is_four = c.type == kInt4 || c.type == kUint4, is_signed = c.type == kInt4 || c.type == kInt8;
    const auto count = static_cast<size_t>(c.rows * c.columns);
    std::string bytes = random_bytes(is_four ? (count + 1) / 2 : count, 9);
    if (is_four && count % 2 != 0) bytes.back() = static_cast<char>(bytes.back() & 15);
    ModelMaker maker(21);
    maker.input("x", {2, c.rows}).output("y");
    add_raw(maker, "q", {c.rows, c.columns}, c.type, bytes);
    const dag::Tensor scale = wave(c.scale, 1, 0.1);
    add_tensor(maker, "scale", scale);
    pb::NodeProto& node = maker.node("DequantizeLinear", {"q", "scale"}, {"w"});
    attribute(node, "axis", c.axis);
    if (c.block > 0) attribute(node, "block_size", c.block);
    maker.node("MatMul", {"x", "w"}, {"y"});
    std::vector<double> want(static_cast<size_t>(2 * c.columns));
    const dag::Tensor x = wave({2, c.rows});
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t k = 0; k < c.columns; ++k) {
        const auto i = static_cast<size_t>(r * c.columns + k);
        int q = is_four ? nibble(bytes, i) : static_cast<uint8_t>(bytes[i]);
        if (is_signed && q >= (is_four ? 8 : 128)) q -= is_four ? 16 : 256;
        const int64_t along = c.axis == 0 ? r : k;
        int64_t at = scale.element_count() == 1 ? 0 : along;
        if (c.block > 0) at = c.axis == 0 ? r / c.block * c.columns + k : r * c.scale[1] + k / c.block;
        const double w = static_cast<float>(q) * scale.as<float>()[at];
        for (int64_t b = 0; b < 2; ++b)
          want[static_cast<size_t>(b * c.columns + k)] += double{x.as<float>()[b * c.rows + r]} * w;
      }
    for (const bool keeps : {false, true}) {
      ImportOptions options = training_options();
      options.keep_stored = keeps;
      const auto imported = import_bytes(maker.bytes(), options);
      ASSERT_TRUE(imported.has_value()) << imported.error().message;
      EXPECT_EQ(imported->stored.contains("w"), keeps);
      const dag::Graph graph = store(imported->graph, imported->stored, dag::op_table());
      const auto values = run_graph(graph, imported->weights, {{"x", x}});
      ASSERT_TRUE(values.has_value()) << values.error().message;
      expect_near(to_doubles(values->at("y")), want, 1e-4);
    }
    // Written again as it was.
    const auto model = read_bytes(maker.bytes());
    const auto written = trained_bytes(*model, {});
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_EQ(*written, maker.bytes());
    // And whole, as whoever merges into it reads it.
    dag::Tensor whole({DType::F32, {c.rows, c.columns}});
    std::span<std::byte> rest = whole.mutable_bytes();
    ASSERT_TRUE(widened(*model)
                    .read("w",
                          [&](std::span<const std::byte> piece) -> Status {
                            std::copy(piece.begin(), piece.end(), rest.begin());
                            rest = rest.subspan(piece.size());
                            return {};
                          })
                    .has_value());
    EXPECT_TRUE(rest.empty());
    std::vector<double> y(want.size());
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t r = 0; r < c.rows; ++r)
        for (int64_t k = 0; k < c.columns; ++k)
          y[static_cast<size_t>(b * c.columns + k)] +=
              double{x.as<float>()[b * c.rows + r]} * whole.as<float>()[r * c.columns + k];
    expect_near(y, want, 1e-4);
  }
}

// Numbers whose name says nothing of bits, and that something else reads, too.
TEST(StoredWeights, NamesOfAllKindsAreTakenApart) {
  for (const bool keeps : {false, true}) {
    Product made;
    for (auto& proto : *made.maker.graph().mutable_initializer())
      if (proto.name() == "layer.weight_Q4") proto.set_name("numbers");
    made.maker.graph().mutable_node(0)->set_input(1, "numbers");
    attribute(made.maker.node("Cast", {"numbers"}, {"seen"}), "to", int64_t{pb::TensorProto::FLOAT});
    made.maker.output("seen");
    ImportOptions options = training_options();
    options.keep_stored = keeps;
    const auto imported = import_bytes(made.maker.bytes(), options);
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    EXPECT_EQ(imported->stored.contains("numbers_whole"), keeps);
    const dag::Graph graph = store(imported->graph, imported->stored, dag::op_table());
    dag::Weights weights = imported->weights;
    const dag::Tensor x = wave({2, 3, 64});
    const auto values = run_graph(graph, weights, {{"x", x}});
    ASSERT_TRUE(values.has_value()) << values.error().message;
    expect_near(to_doubles(values->at("y")), product(x, made.weight(false), 6, 64));
    EXPECT_EQ(to_doubles(values->at("seen"))[5], static_cast<uint8_t>(made.numbers[5]));
  }
}

// One name for two weights: each node has its own, and what is kept by the name is the first's.
TEST(StoredWeights, ScalesOfAnotherNodeAreNotTaken) {
  Product made;
  add_tensor(made.maker, "other_scales", wave({6, 2}, 5, 0.1));
  pb::NodeProto& other = made.maker.node("MatMulNBits", {}, {"z"});
  other = made.maker.graph().node(0);
  other.set_input(2, "other_scales");
  other.set_output(0, "z");
  made.maker.output("z");
  ImportOptions options = training_options();
  options.keep_stored = true;
  const auto imported = import_bytes(made.maker.bytes(), options);
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_EQ(imported->stored.size(), 1u);
  const dag::Graph graph = store(imported->graph, imported->stored, dag::op_table());
  const dag::Tensor x = wave({2, 3, 64});
  const auto values = run_graph(graph, imported->weights, {{"x", x}});
  ASSERT_TRUE(values.has_value()) << values.error().message;
  expect_near(to_doubles(values->at("y")), product(x, made.weight(false), 6, 64));
  made.scales = wave({6, 2}, 5, 0.1);
  expect_near(to_doubles(values->at("z")), product(x, made.weight(false), 6, 64));
  // Made whole, the first is; the other still reads its numbers.
  const auto whole = with_whole_weights(*read_bytes(made.maker.bytes()), {{"layer.weight", DType::F32}});
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  const auto written = trained_bytes(*whole, dag::Weights{{"layer.weight", wave({6, 64}, 2)}});
  ASSERT_TRUE(written.has_value()) << written.error().message;
  ModelMaker again;
  ASSERT_TRUE(again.proto.ParseFromString(*written));
  const auto result = run_model(again, {{"x", x}});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  expect_near(to_doubles(result->at("y")), product(x, to_doubles(wave({6, 64}, 2)), 6, 64));
  expect_near(to_doubles(result->at("z")), product(x, made.weight(false), 6, 64));
}

TEST(StoredWeights, ANameThatTheGraphHasIsNotTaken) {
  Product made;
  made.maker.graph().mutable_input(0)->set_name("layer.weight");
  made.maker.graph().mutable_node(0)->set_input(0, "layer.weight");
  ImportOptions options = training_options();
  options.keep_stored = true;
  const auto imported = import_bytes(made.maker.bytes(), options);
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  EXPECT_TRUE(imported->stored.contains("layer.weight_Q4_whole"));
}

TEST(StoredWeights, SizesBeyondAllMeasureAreRefused) {
  for (const int64_t huge : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()})
    for (const char* name : {"K", "N", "block_size"}) {
      Product made;
      for (auto& given : *made.maker.graph().mutable_node(0)->mutable_attribute())
        if (given.name() == name) given.set_i(huge);
      const auto imported = import_bytes(made.maker.bytes(), training_options());
      ASSERT_FALSE(imported.has_value());
      EXPECT_EQ(imported.error().code, ErrorCode::Unsupported);
    }
}

TEST(StoredWeights, AChangedOneIsWholeInTheFileThatIsWritten) {
  const Product made(true);
  const auto model = read_bytes(made.maker.bytes());
  const auto whole = with_whole_weights(*model, {{"layer.weight", DType::F32}});
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  dag::Weights values{{"layer.weight", wave({6, 64}, 2)}};
  const auto written = trained_bytes(*whole, values);
  ASSERT_TRUE(written.has_value()) << written.error().message;
  ModelMaker again;
  ASSERT_TRUE(again.proto.ParseFromString(*written));
  EXPECT_EQ(again.graph().initializer_size(), 1) << "numbers, scales and zeros are gone";
  const dag::Tensor x = wave({2, 3, 64});
  const auto result = run_model(again, {{"x", x}});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  expect_near(to_doubles(result->at("y")), product(x, to_doubles(values.at("layer.weight")), 6, 64));
}

}  // namespace
}  // namespace weft::onnx::testing
