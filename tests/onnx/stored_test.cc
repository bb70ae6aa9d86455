// Weights that a file keeps in fewer bits: read as the operators define them, kept so in the graph, made
// whole again, and written so.
#include "dag/onnx/stored_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "dag/onnx/fewer_bits.h"
#include "dag/op_table.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

using dag::DType;
using dag::OpKind;

constexpr int32_t kFloat16 = 10, kUint8 = 2, kInt8 = 3, kUint4 = 21, kInt4 = 22;

pb::TensorProto& add_raw(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims,
                         int32_t type, const std::string& bytes) {
  pb::TensorProto& proto = *maker.graph().add_initializer();
  proto.set_name(name);
  proto.set_data_type(type);
  for (const int64_t dim : dims) proto.add_dims(dim);
  proto.set_raw_data(bytes);
  return proto;
}
pb::TensorProto& add_tensor(ModelMaker& maker, const std::string& name, const dag::Tensor& tensor) {
  const auto bytes = tensor.bytes();
  return add_raw(maker, name, tensor.shape(),
                 tensor.dtype() == DType::F16 ? kFloat16 : pb::TensorProto::FLOAT,
                 std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}
std::string random_bytes(size_t count, uint64_t seed) {
  Rng rng(seed, /*stream=*/3);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(rng.below(256));
  return bytes;
}
int nibble(const std::string& bytes, size_t i) {
  return static_cast<uint8_t>(bytes[i / 2]) >> (i % 2 * 4) & 15;
}

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
void expect_near(const std::vector<double>& have, const std::vector<double>& want, double tolerance = 1e-5) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < have.size(); ++i) ASSERT_NEAR(have[i], want[i], tolerance) << "element " << i;
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

// What is rounded is within half a step, and products are those of what is rounded.
dag::Tensor drawn(const dag::Shape& shape, uint64_t seed) {
  Rng rng(seed, /*stream=*/4);
  dag::Tensor tensor({DType::F32, shape});
  for (float& number : tensor.mutable_as<float>()) number = static_cast<float>(2 * rng.uniform() - 1);
  return tensor;
}

TEST(FewerBits, EachNumberIsTheNearestStep) {
  ModelMaker maker(17);
  maker.input("x", {2, 3}, pb::TensorProto::INT64).output("y");
  add_tensor(maker, "table", drawn({10, 32}, 5));
  add_tensor(maker, "up", drawn({32, 48}, 2));
  add_tensor(maker, "down", drawn({32, 48}, 4));
  add_tensor(maker, "odd", drawn({32, 7}, 3));
  maker.node("Gather", {"table", "x"}, {"rows"});
  maker.node("MatMul", {"rows", "up"}, {"wide"});
  maker.node("Transpose", {"down"}, {"turned"});
  maker.node("MatMul", {"wide", "turned"}, {"narrow"});
  maker.node("MatMul", {"narrow", "odd"}, {"seven"});
  add_tensor(maker, "last", drawn({7, 5}, 4));
  maker.node("MatMul", {"seven", "last"}, {"y"});
  const auto folder = fresh_folder("fewer_bits");
  const auto model = read_bytes(maker.bytes());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  for (const int bits : {4, 8, 16}) {
    SCOPED_TRACE(bits);
    const auto written = write_in_fewer_bits(
        *model, {.bits = bits, .block = 32, .takes = [](const std::string&) { return true; }},
        folder / "q.onnx");
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_EQ(written->matrices, bits == 16 ? 5u : 4u);
    EXPECT_EQ(written->passed.size(), bits == 16 ? 0u : 1u) << "16 does not divide 7";
    EXPECT_LT(written->after, written->before * static_cast<uint64_t>(bits == 16 ? 18 : bits + 3) / 32);
    const auto again = read_model(folder / "q.onnx");
    ASSERT_TRUE(again.has_value()) << again.error().message;
    const auto tensors = widened(*again);
    EXPECT_EQ(tensors.specs.size(), written->matrices);
    for (const auto& [name, turned] : {std::pair("table", false), {"up", true}, {"down", false}}) {
      // A product's rows are the columns of what it multiplies with; a Cast leaves all as it was.
      const bool is_turned = turned && bits < 16;
      const auto before = to_doubles(model->weights().at(name));
      const dag::Shape shape = model->weights().at(name).shape();
      std::vector<float> after(before.size());
      size_t at = 0;
      ASSERT_TRUE(tensors
                      .read(name,
                            [&](std::span<const std::byte> piece) -> Status {
                              std::memcpy(reinterpret_cast<std::byte*>(after.data()) + at, piece.data(),
                                          piece.size());
                              at += piece.size();
                              return {};
                            })
                      .has_value());
      const double step = bits == 16 ? 1.0 / 256 : 1.0 / (bits == 4 ? 8 : 128);
      for (size_t i = 0; i < before.size(); ++i) {
        const auto columns = static_cast<size_t>(shape[1]), rows = static_cast<size_t>(shape[0]);
        const size_t from = is_turned ? i % columns * rows + i / columns : i;
        // The largest step of a block rounds down to the one below it.
        ASSERT_NEAR(after[from], before[i], step * 1.01) << name << " " << i;
      }
    }
    ImportOptions options = training_options();
    const dag::Tensor ids = from_list({DType::I64, {2, 3}}, {0, 9, 3, 3, 1, 7});
    ModelMaker rounded;
    rounded.proto.ParseFromString(read_all(folder / "q.onnx"));
    const auto as_it_is = run_model(maker, {{"x", ids}}), in_bits = run_model(rounded, {{"x", ids}});
    ASSERT_TRUE(in_bits.has_value()) << in_bits.error().message;
    const auto a = to_doubles(as_it_is->at("y")), b = to_doubles(in_bits->at("y"));
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += a[i] * a[i];
    EXPECT_LT(std::sqrt(difference / size), bits == 4 ? 0.4 : 0.1);
    EXPECT_GT(difference, 0);
  }
  std::filesystem::remove_all(folder);
}

// A table whose transpose multiplies, as language models end: its numbers are there once.
TEST(FewerBits, ATableThatIsMultipliedWithIsKeptOnce) {
  ModelMaker maker(17);
  maker.input("x", {2, 3}, pb::TensorProto::INT64).output("y");
  add_tensor(maker, "table", drawn({10, 32}, 5));
  maker.node("Gather", {"table", "x"}, {"rows"});
  maker.node("Gather", {"table", "x"}, {"same_rows"});
  maker.node("Transpose", {"table"}, {"turned"});
  maker.node("Add", {"rows", "same_rows"}, {"twice"});
  maker.node("MatMul", {"twice", "turned"}, {"y"});
  const auto folder = fresh_folder("tied_table");
  for (const int bits : {4, 8}) {
    SCOPED_TRACE(bits);
    ASSERT_TRUE(
        write_in_fewer_bits(*read_bytes(maker.bytes()),
                            {.bits = bits, .block = 32, .takes = [](const std::string&) { return true; }},
                            folder / "q.onnx")
            .has_value());
    ModelMaker rounded;
    rounded.proto.ParseFromString(read_all(folder / "q.onnx"));
    EXPECT_EQ(rounded.graph().initializer_size(), 3) << "numbers, scales and a shape";
    const dag::Tensor ids = from_list({DType::I64, {2, 3}}, {0, 9, 3, 3, 1, 7});
    const auto by_ops = run_model(rounded, {{"x", ids}});
    ASSERT_TRUE(by_ops.has_value()) << by_ops.error().message;

    ImportOptions options = training_options();
    options.keep_stored = true;
    const auto imported = import_bytes(rounded.bytes(), options);
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    ASSERT_EQ(imported->stored.size(), 1u);
    EXPECT_EQ(imported->stored.begin()->first, "table");
    const dag::Graph graph = store(imported->graph, imported->stored, dag::op_table());
    EXPECT_EQ(count_kind(graph, OpKind::StoredMatMul), 1);
    const auto kept = run_graph(graph, imported->weights, {{"x", ids}});
    ASSERT_TRUE(kept.has_value()) << kept.error().message;
    expect_near(to_doubles(kept->at("y")), to_doubles(by_ops->at("y")), 1e-6);

    // Whole again, with the values that it has anyway.
    const auto model = read_bytes(rounded.bytes());
    const auto whole = with_whole_weights(*model, {{"table", DType::F32}});
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    dag::Tensor table({DType::F32, {10, 32}});
    ASSERT_TRUE(widened(*model)
                    .read("table",
                          [&](std::span<const std::byte> piece) -> Status {
                            std::copy(piece.begin(), piece.end(), table.mutable_bytes().begin());
                            return {};
                          })
                    .has_value());
    const auto written = trained_bytes(*whole, dag::Weights{{"table", table}});
    ASSERT_TRUE(written.has_value()) << written.error().message;
    ModelMaker again;
    ASSERT_TRUE(again.proto.ParseFromString(*written));
    EXPECT_EQ(again.graph().initializer_size(), 1) << "numbers, scales and the shape are gone";
    const auto result = run_model(again, {{"x", ids}});
    ASSERT_TRUE(result.has_value()) << result.error().message;
    expect_near(to_doubles(result->at("y")), to_doubles(by_ops->at("y")), 1e-6);
  }
  std::filesystem::remove_all(folder);
}

// Which way round a matrix lies, whoever reads it; and that it was exchanged.
TEST(FewerBits, SaysWhichMatricesItExchanged) {
  ModelMaker maker(17);
  maker.input("x", {2, 32}).output("y");
  for (const char* name : {"plain", "behind", "gemm", "turned_gemm", "both"})
    add_tensor(maker, name, drawn({32, 32}, 2));
  maker.node("MatMul", {"x", "plain"}, {"a"});
  maker.node("Transpose", {"behind"}, {"t"});
  maker.node("MatMul", {"a", "t"}, {"b"});
  maker.node("Gemm", {"b", "gemm"}, {"c"});
  attribute(maker.node("Gemm", {"c", "turned_gemm"}, {"d"}), "transB", int64_t{1});
  maker.node("MatMul", {"d", "both"}, {"e"});
  attribute(maker.node("Gemm", {"e", "both"}, {"y"}), "transB", int64_t{1});
  const auto model = read_bytes(maker.bytes());
  const auto first = [](const OnnxModel& of, const char* name) -> std::optional<bool> {
    const std::map<std::string, bool> all = inputs_first(of);
    const auto at = all.find(name);
    return at == all.end() ? std::nullopt : std::optional(at->second);
  };
  EXPECT_EQ(first(*model, "plain"), true);
  EXPECT_EQ(first(*model, "behind"), false);
  EXPECT_EQ(first(*model, "gemm"), true);
  EXPECT_EQ(first(*model, "turned_gemm"), false);
  EXPECT_EQ(first(*model, "both"), std::nullopt);
  EXPECT_EQ(first(*model, "none"), std::nullopt);
  EXPECT_TRUE(exchanged_weights(*model).empty());
  const auto folder = fresh_folder("exchanged");
  ASSERT_TRUE(write_in_fewer_bits(*model,
                                  {.bits = 4, .block = 32, .takes = [](const std::string&) { return true; }},
                                  folder / "q.onnx")
                  .has_value());
  const auto rounded = read_model(folder / "q.onnx");
  ASSERT_TRUE(rounded.has_value()) << rounded.error().message;
  EXPECT_EQ(exchanged_weights(*rounded), (std::set<std::string>{"gemm", "plain"}));
  for (const char* name : {"plain", "behind", "gemm", "turned_gemm"})
    EXPECT_EQ(first(*rounded, name), false) << name;
  std::filesystem::remove_all(folder);
}

// What cannot be said of one set of blocks, or would take a name that is there, or is read in a subgraph.
TEST(FewerBits, WhatHasNoOneFormStays) {
  const auto passed_of = [](ModelMaker& maker) {
    const auto folder = fresh_folder("stays");
    const auto written = write_in_fewer_bits(
        *read_bytes(maker.bytes()),
        {.bits = 4, .block = 16, .takes = [](const std::string&) { return true; }}, folder / "q.onnx");
    std::filesystem::remove_all(folder);
    return written ? written->passed : std::vector<std::string>{written.error().message};
  };
  ModelMaker maker(17);
  maker.input("x", {2, 16}).output("y").output("z");
  add_tensor(maker, "both", drawn({16, 16}, 5));
  maker.node("Transpose", {"both"}, {"turned"});
  maker.node("MatMul", {"x", "both"}, {"y"});
  maker.node("MatMul", {"x", "turned"}, {"z"});
  add_tensor(maker, "first", drawn({16, 16}, 5));
  add_tensor(maker, "first_scales", drawn({16, 16}, 5));
  maker.node("MatMul", {"x", "first"}, {"a"});
  maker.node("MatMul", {"x", "first_scales"}, {"b"});
  EXPECT_EQ(passed_of(maker), (std::vector<std::string>{"'both': it is read as it is and transposed",
                                                        "'first': there is a 'first_scales' already"}));

  ModelMaker branching(17);
  branching.input("x", {2, 16}).output("y").output("z");
  add_tensor(branching, "w", drawn({16, 16}, 5));
  branching.node("MatMul", {"x", "w"}, {"z"});
  pb::NodeProto& choice = branching.node("If", {"yes"}, {"y"});
  add_raw(branching, "yes", {}, pb::TensorProto::BOOL, std::string(1, '\1'));
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto& body = *choice.add_attribute();
    body.set_name(branch);
    body.set_type(pb::AttributeProto::GRAPH);
    body.mutable_g()->set_name(branch);
    pb::NodeProto& node = *body.mutable_g()->add_node();
    node.set_op_type("MatMul");
    node.add_input("x");
    node.add_input("w");
    node.add_output(std::string(branch) + "/y");
    body.mutable_g()->add_output()->set_name(std::string(branch) + "/y");
  }
  EXPECT_EQ(passed_of(branching), (std::vector<std::string>{"'w': a subgraph reads it"}));
}

}  // namespace
}  // namespace weft::onnx::testing
