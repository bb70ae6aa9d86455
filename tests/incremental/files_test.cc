// Language models in files: as PyTorch exports them, with a cache of their own and without, and with the
// fused operators that optimisers put in.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "dag/onnx/decoder.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/incremental/compare.h"
#include "tests/onnx/models.h"

namespace weft::incremental::testing {

using onnx::DecoderPorts;
using onnx::testing::attribute;
using onnx::testing::ModelMaker;
namespace pb = onnx::pb;

namespace {

struct Imported {
  DecoderPorts ports;
  Model model;
};

Result<Imported> import(const onnx::OnnxModel& file, std::optional<int64_t> length) {
  WEFT_TRY(DecoderPorts ports, onnx::find_decoder(file, length));
  const onnx::ImportOptions options = onnx::import_options(ports, peer::evaluate_reference);
  WEFT_TRY(onnx::ImportedModel imported, onnx::import_model(file, options, dag::op_table()));
  WEFT_TRY(dag::Graph graph, dag::canonicalise(imported.graph, dag::op_table()));
  Model model{std::make_shared<const dag::Graph>(std::move(graph)), std::move(imported.weights),
              ports.tokens};
  return Imported{std::move(ports), std::move(model)};
}

// ---- what PyTorch exports: exports/make_exports.py ----

constexpr int64_t kLength = 48, kVocabulary = 61;

std::filesystem::path export_path(const std::string& name) { return "tests/incremental/exports/" + name; }

class Exports : public ::testing::TestWithParam<std::string> {
 protected:
  static Result<Imported> imported(int64_t length) {
    WEFT_TRY(const onnx::OnnxModel file,
             onnx::testing::read_bytes(onnx::testing::gunzip(export_path(GetParam() + ".onnx.gz"))));
    return import(file, length);
  }
  static bool has_past() { return GetParam().ends_with("_with_past"); }
};

TEST_P(Exports, MakeTheLogitsOfPyTorch) {
  const auto made = imported(kLength);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->ports.tokens, "input_ids");
  EXPECT_EQ(made->ports.logits, "logits");
  EXPECT_EQ(made->ports.has_past, has_past());
  EXPECT_EQ(made->model.graph->outputs().size(), 1u);
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false}).value();
  const auto window = serve::make_window_decoder(*made->model.graph, made->model.weights, "input_ids", {},
                                                 std::make_shared<peer::State>(*backend));
  ASSERT_TRUE(window) << window.error().message;
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < kLength; ++i) tokens.push_back((7 * i + 3) % kVocabulary);
  const auto sequence = (*window)->begin();
  const serve::Piece piece{sequence.get(), tokens, kLength};
  const auto logits = (*window)->pass({&piece, 1});
  ASSERT_TRUE(logits) << logits.error().message;
  const std::string name = GetParam().substr(0, GetParam().find('_'));
  const std::string bytes = onnx::testing::read_all(export_path(name + ".logits"));
  ASSERT_EQ(bytes.size(), logits->bytes().size());
  const dag::Tensor wanted(logits->spec(), std::as_bytes(std::span(bytes)));
  for (size_t i = 0; i < static_cast<size_t>(kLength * kVocabulary); ++i)
    ASSERT_NEAR(logits->as<float>()[i], wanted.as<float>()[i], 2e-4) << "element " << i;
}

TEST_P(Exports, HaveTheBitsOfTheWindow) {
  const auto made = imported(64);
  ASSERT_TRUE(made) << made.error().message;
  const auto backend = peer::make_cpu_backend({.threads = 2, .pin = false}).value();
  expect_equal_bits(made->model, *backend, 21, {.sequences = 4, .passes = 20});
}

INSTANTIATE_TEST_SUITE_P(All, Exports,
                         ::testing::Values("gpt2", "gpt2_with_past", "llama", "llama_with_past"),
                         [](const auto& test) { return test.param; });

// ---- fused operators ----

constexpr int64_t kWidth = 16, kHeads = 4, kGroups = 2, kSize = 4, kWords = 19, kContext = 80;

// Tokens [1, T] as "x" [1, T, W], of which `attention` makes "y" [1, T, W].
struct Operator {
  std::string name;
  std::function<void(ModelMaker&)> attention;
  int64_t opset = 23;
};
void PrintTo(const Operator& op, std::ostream* out) { *out << op.name; }

void random_weight(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims) {
  pb::TensorProto& tensor = maker.weight(name, dims);
  Rng rng(name.size() + static_cast<uint64_t>(dims[0]), 3);
  std::vector<float> values(tensor.raw_data().size() / sizeof(float));
  for (float& value : values) value = static_cast<float>(0.3 * rng.normal());
  tensor.set_raw_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}
void project(ModelMaker& maker, const std::string& result, int64_t columns) {
  random_weight(maker, "w_" + result, {kWidth, columns});
  maker.node("MatMul", {"x", "w_" + result}, {result});
}
void project_all(ModelMaker& maker, int64_t groups) {
  project(maker, "q", kWidth);
  project(maker, "key", groups * kSize);
  project(maker, "values", groups * kSize);
}
pb::NodeProto& microsoft(ModelMaker& maker, const std::string& op, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs) {
  pb::NodeProto& node = maker.node(op, inputs, outputs);
  node.set_domain("com.microsoft");
  return node;
}
void add_angles(ModelMaker& maker) {
  for (const bool sine : {false, true}) {
    pb::TensorProto& table = maker.weight(sine ? "sines" : "cosines", {kContext + 4, kSize / 2});
    std::vector<float> values;
    for (int64_t i = 0; i < (kContext + 4) * kSize / 2; ++i) {
      const double angle = static_cast<double>(i / 2) * (i % 2 == 0 ? 1 : 0.1);
      values.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
    }
    table.set_raw_data(
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
}

std::vector<Operator> operators() {
  return {
      {"Attention",
       [](ModelMaker& m) {
         project_all(m, kHeads);
         pb::NodeProto& node = m.node("Attention", {"q", "key", "values"}, {"y"});
         attribute(node, "is_causal", int64_t{1});
         attribute(node, "q_num_heads", kHeads), attribute(node, "kv_num_heads", kHeads);
       }},
      {"AttentionOfGroups",
       [](ModelMaker& m) {
         project_all(m, kGroups);
         pb::NodeProto& node = m.node("Attention", {"q", "key", "values"}, {"y"});
         attribute(node, "is_causal", int64_t{1});
         attribute(node, "softcap", 8.0f);
         attribute(node, "q_num_heads", kHeads), attribute(node, "kv_num_heads", kGroups);
       }},
      {"RotaryEmbeddingAndRmsNormalization",
       [](ModelMaker& m) {
         random_weight(m, "scale", {kWidth});
         attribute(m.node("RMSNormalization", {"x", "scale"}, {"z"}), "axis", int64_t{-1});
         project_all(m, kHeads);
         add_angles(m);
         std::vector<int64_t> places;
         for (int64_t i = 0; i < kContext; ++i) places.push_back(i);
         m.ints("places", places), m.ints("axis0", {0});
         m.node("Unsqueeze", {"places", "axis0"}, {"positions"});
         for (const std::string side : {"q", "key"})
           attribute(m.node("RotaryEmbedding", {side, "cosines", "sines", "positions"}, {"turned_" + side}),
                     "num_heads", kHeads);
         pb::NodeProto& node = m.node("Attention", {"turned_q", "turned_key", "values"}, {"mixed"});
         attribute(node, "is_causal", int64_t{1});
         attribute(node, "q_num_heads", kHeads), attribute(node, "kv_num_heads", kHeads);
         m.node("Add", {"mixed", "z"}, {"y"});
       }},
      {"GroupQueryAttention",
       [](ModelMaker& m) {
         project_all(m, kGroups);
         add_angles(m);
         pb::NodeProto& node =
             microsoft(m, "GroupQueryAttention",
                       {"q", "key", "values", "", "", "lengths", "total", "cosines", "sines"}, {"y"});
         attribute(node, "num_heads", kHeads), attribute(node, "kv_num_heads", kGroups);
         attribute(node, "do_rotary", int64_t{1});
         for (const std::string name : {"lengths", "total"}) {
           pb::TensorProto& tensor = *m.graph().add_initializer();
           tensor.set_name(name), tensor.set_data_type(pb::TensorProto::INT32), tensor.add_dims(1);
           tensor.add_int32_data(name == "total" ? kContext : kContext - 1);
         }
       }},
      {"MultiHeadAttention",
       [](ModelMaker& m) {
         project_all(m, kHeads);
         pb::NodeProto& node = microsoft(m, "MultiHeadAttention", {"q", "key", "values"}, {"y"});
         attribute(node, "num_heads", kHeads), attribute(node, "unidirectional", int64_t{1});
       }},
      {"PackedAttention",
       [](ModelMaker& m) {
         random_weight(m, "packed", {kWidth, 3 * kWidth}), random_weight(m, "bias", {3 * kWidth});
         pb::NodeProto& node = microsoft(m, "Attention", {"x", "packed", "bias"}, {"y"});
         attribute(node, "num_heads", kHeads), attribute(node, "unidirectional", int64_t{1});
       }},
  };
}

std::string model_with(const Operator& op) {
  ModelMaker maker(op.opset);
  maker.input("input_ids", {1, kContext}, pb::TensorProto::INT64);
  maker.output("logits");
  auto* domain = maker.proto.add_opset_import();
  domain->set_domain("com.microsoft"), domain->set_version(1);
  random_weight(maker, "embedding", {kWords, kWidth});
  random_weight(maker, "head", {kWidth, kWords});
  maker.node("Gather", {"embedding", "input_ids"}, {"x"});
  op.attention(maker);
  maker.node("Add", {"x", "y"}, {"sum"});
  maker.node("MatMul", {"sum", "head"}, {"logits"});
  return maker.bytes();
}

class Operators : public ::testing::TestWithParam<Operator> {};

TEST_P(Operators, HaveTheBitsOfTheWindow) {
  const auto file = onnx::testing::read_bytes(model_with(GetParam()));
  ASSERT_TRUE(file) << file.error().message;
  const auto made = import(*file, std::nullopt);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->ports.length, kContext);
  const auto backend = peer::make_cpu_backend({.threads = 2, .pin = false}).value();
  expect_equal_bits(made->model, *backend, 31, {.chunks = {1, 7}, .sequences = 4, .passes = 20});
}
INSTANTIATE_TEST_SUITE_P(All, Operators, ::testing::ValuesIn(operators()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace weft::incremental::testing
