// Matrices kept in fewer bits than a file has them: what is written, and what it computes.
#include "dag/onnx/fewer_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "dag/onnx/stored_weights.h"
#include "dag/op_table.h"
#include "tests/onnx/stored_models.h"

namespace weft::onnx::testing {
namespace {

using dag::DType;
using dag::OpKind;

// What is rounded is within half a step, and products are those of what is rounded.
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

// Whatever is in such steps already: as weft rounds, the one of largest magnitude at the end of the longer
// side (also Q4_0 of llama.cpp), or with as many steps to either side (Q8_0).
TEST(FewerBits, NumbersInStepsStayWhatTheyAre) {
  const auto folder = fresh_folder("steps");
  for (const int bits : {4, 8})
    for (const bool is_even : {false, true}) {
      SCOPED_TRACE(std::to_string(bits) + (is_even ? ", even" : ""));
      const int most = (1 << (bits - 1)) - (is_even ? 1 : 0);
      dag::Tensor table({DType::F32, {16, 64}});
      const auto numbers = table.mutable_as<float>();
      for (size_t i = 0; i < numbers.size(); ++i) {
        const size_t block = i / 32;  // each of a scale of its own, as float16 has it; one is of zeros
        const float scale = block == 3 ? 0 : (1 + static_cast<float>(block * 37 % 1024) / 1024) / 256;
        int number = static_cast<int>(i * 7919 % static_cast<size_t>(2 * most)) - most + (is_even ? 1 : 0);
        if (i % 32 == block % 32) number = is_even && block % 2 == 0 ? most : -most;
        numbers[i] = static_cast<float>(number) * scale * (!is_even && block % 3 == 0 ? -1.0f : 1.0f);
      }
      ModelMaker maker(17);
      maker.input("x", {2}, pb::TensorProto::INT64).output("y");
      add_tensor(maker, "table", table);
      maker.node("Gather", {"table", "x"}, {"y"});
      const FewerBits how{.bits = bits, .block = 32, .takes = [](const std::string&) { return true; }};
      ASSERT_TRUE(write_in_fewer_bits(*read_bytes(maker.bytes()), how, folder / "q.onnx").has_value());
      const auto rounded = read_model(folder / "q.onnx");
      ASSERT_TRUE(rounded.has_value()) << rounded.error().message;
      std::vector<std::byte> after;
      ASSERT_TRUE(widened(*rounded)
                      .read("table",
                            [&](std::span<const std::byte> piece) -> Status {
                              after.insert(after.end(), piece.begin(), piece.end());
                              return {};
                            })
                      .has_value());
      ASSERT_EQ(after.size(), table.bytes().size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        float number = 0;
        std::memcpy(&number, after.data() + i * sizeof number, sizeof number);
        ASSERT_EQ(number, numbers[i]) << i;
      }
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
