// NVRTC, which needs no GPU, takes the sources of elementwise groups for every generation of cards: those of
// networks in training, small ones and those that people train, and of what no network has all at once.
#include "peer/backend/cuda/nvrtc_compile.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

#include "cli/coverage_report.h"
#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/backend/cuda/fused_source.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/program.h"
#include "tests/cuda/packed_model.h"
#include "tests/support/models.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Family;
using dag::Graph;
using dag::GraphBuilder;
using dag::OpKind;
using dag::OutputRole;
using dag::Shape;
using dag::ValueId;

using Sources = std::map<std::string, KernelSource>;  // by name: equal kernels are one

void collect(const Graph& graph, Sources& sources) {
  for (const GroupSignature& group : group_signatures(graph)) {
    const Family family = dag::op_table().row(graph.op(group.ops.front()).kind).family;
    if (family != Family::Elementwise && family != Family::Random) continue;
    auto made = make_fused_source(graph, group);
    ASSERT_TRUE(made.has_value()) << to_string(graph.op(group.ops.front()).kind);
    sources.emplace(made->source.name, std::move(made->source));
  }
}

void collect_training(const Graph& forward, Sources& sources) {
  const auto differentiated = dag::differentiate(forward, dag::op_table());
  ASSERT_TRUE(differentiated.has_value()) << differentiated.error().message;
  collect(dag::lower(*differentiated, dag::op_table(), {.fuse_elementwise = true, .fuse_products = true}),
          sources);
}

void collect_real_model(const std::string& path, Sources& sources) {
  const auto model = test::read_packed(path);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  onnx::ImportOptions options;
  options.evaluate = evaluate_reference;
  options.training = true;
  options.batch = 8;
  const auto graph = cli::training_on_gpu(*model, options);
  ASSERT_TRUE(graph.has_value()) << path << ": " << graph.error().message;
  collect(*graph, sources);
}

// A row of layers, each with another function behind it.
Graph perceptron() {
  GraphBuilder b(dag::op_table());
  ValueId x = b.input("x", {DType::F32, {32, 50}});
  for (const OpKind kind :
       {OpKind::Relu, OpKind::Tanh, OpKind::Sigmoid, OpKind::Gelu, OpKind::Softplus, OpKind::Erf}) {
    const std::string name(to_string(kind));
    const auto w = b.initializer(name + ".w", {DType::F32, {50, 50}}, dag::InitializerRole::Parameter);
    const auto bias = b.initializer(name + ".b", {DType::F32, {50}}, dag::InitializerRole::Parameter);
    x = b.add(kind, {b.add(OpKind::Add, {b.add(OpKind::MatMul, {x, w}), bias})});
  }
  const dag::Ints axes{0, 1};
  b.output("loss", b.add(OpKind::ReduceSum, {x}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Loss);
  return b.finish();
}

// All functions of floats, one kernel each.
Graph functions(const Shape& shape) {
  GraphBuilder b(dag::op_table());
  const ValueId x = b.input("x", {DType::F32, shape}), y = b.input("y", {DType::F32, shape});
  for (const dag::OpRow& row : dag::op_table().rows()) {
    if (row.family != Family::Elementwise || row.kind == OpKind::Cast) continue;
    const std::vector<ValueId> operands = row.inputs_max == 1 ? std::vector{x} : std::vector{x, y};
    if (auto made = b.try_add(row.kind, operands))
      b.output(std::string(to_string(row.kind)), (*made)[0], OutputRole::Prediction);
  }
  const ValueId a = b.input("a", {DType::F32, {}});
  for (const OpKind kind : {OpKind::RandomUniform, OpKind::RandomNormal}) {
    const Attributes attributes{{Attr::Shape, shape}, {Attr::DType, int64_t{0}}, {Attr::Key, int64_t{3}}};
    b.output(std::string(to_string(kind)), b.add(kind, {a, a}, attributes), OutputRole::Prediction);
  }
  const Attributes dropout{{Attr::Ratio, 0.1}, {Attr::Key, int64_t{3}}};
  b.output("dropout", b.add(OpKind::Dropout, {x}, dropout), OutputRole::Prediction);
  return b.finish();
}

// Arithmetic on each dtype of whole numbers, and casts from each dtype to each, a group for each dtype.
Graph whole_numbers_and_casts() {
  constexpr DType kAll[] = {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8,  DType::U8,
                            DType::I16, DType::U16, DType::I32, DType::U32,  DType::I64, DType::Bool};
  GraphBuilder b(dag::op_table());
  for (uint32_t i = 0; i < std::size(kAll); ++i) {
    const std::string name(to_string(kAll[i]));
    const ValueId x = b.input(name, {kAll[i], {5, 8}}), y = b.input(name + " row", {kAll[i], {5, 1}});
    const auto put = [&](OpKind kind, const std::vector<ValueId>& operands,
                         const Attributes& attributes = {}) {
      const auto made = b.try_add(kind, operands, attributes);
      if (!made) return;
      b.set_group(b.graph().value((*made)[0]).producer, dag::GroupId{i});
      b.output(name + std::to_string((*made)[0].index), (*made)[0], OutputRole::Prediction);
    };
    for (const DType to : kAll) put(OpKind::Cast, {x}, {{Attr::DType, static_cast<int64_t>(to)}});
    if (!dag::is_integer(kAll[i])) continue;
    for (const dag::OpRow& row : dag::op_table().rows())
      if (row.family == Family::Elementwise)
        put(row.kind, row.inputs_max == 1 ? std::vector{x} : std::vector{x, y});
  }
  return b.finish();
}

// More elements than 32 bits count, read in every way.
Graph long_tensors() {
  GraphBuilder b(dag::op_table());
  const Shape shape{int64_t{1} << 11, 1 << 11, 1030};
  const ValueId x = b.input("x", {DType::F32, shape});
  int number = 0;
  for (const Shape& other : {Shape{}, Shape{1030}, Shape{1 << 11, 1}, Shape{1 << 11, 1, 1030}}) {
    const ValueId y = b.input("y" + std::to_string(++number), {DType::F32, other});
    b.output("z" + std::to_string(number), b.add(OpKind::Mul, {x, y}), OutputRole::Prediction);
  }
  return b.finish();
}

void expect_compiled(const Sources& sources, const std::string& architecture) {
  std::vector<KernelSource> all;
  for (const auto& [name, source] : sources) all.push_back(source);
  const auto code = compile_to_cubin(all, architecture);
  ASSERT_TRUE(code.has_value()) << code.error().message;
  const std::string_view text(code->data(), code->size());
  EXPECT_EQ(text.substr(1, 3), "ELF");
  for (const auto& [name, source] : sources) EXPECT_NE(text.find(name), std::string_view::npos) << name;
}

constexpr const char* kArchitectures[] = {"sm_75", "sm_86", "sm_89", "sm_90", "sm_120"};

TEST(Nvrtc, GroupsOfNetworksInTrainingCompileForEveryCard) {
  Sources sources;
  collect_training(perceptron(), sources);
  collect_training(test::residual_net(1, {.batch = 4, .channels = 8, .size = 32, .blocks = 4}).graph,
                   sources);
  collect_training(test::transformer(1, {.batch = 2, .sequence = 32, .width = 32, .layers = 2}).graph,
                   sources);
  ASSERT_GE(test::real_models().size(), 6u);
  for (const std::string& path : test::real_models())
    ASSERT_NO_FATAL_FAILURE(collect_real_model(path, sources));
  RecordProperty("kernels", static_cast<int>(sources.size()));
  for (const char* architecture : kArchitectures) {
    SCOPED_TRACE(architecture);
    expect_compiled(sources, architecture);
  }
}

// For the oldest and the newest: the language is one, and these are many.
TEST(Nvrtc, EveryOpCompiles) {
  Sources sources;
  for (const Shape& shape : {Shape{8, 32}, Shape{3, 7}})  // with nothing left over, and with
    ASSERT_NO_FATAL_FAILURE(collect(functions(shape), sources));
  ASSERT_NO_FATAL_FAILURE(collect(whole_numbers_and_casts(), sources));
  ASSERT_NO_FATAL_FAILURE(collect(long_tensors(), sources));
  RecordProperty("kernels", static_cast<int>(sources.size()));
  for (const char* architecture : {"sm_75", "sm_120"}) {
    SCOPED_TRACE(architecture);
    expect_compiled(sources, architecture);
  }
}

TEST(Nvrtc, WhatDoesNotCompileIsSaidWithTheCompilersWords) {
  const KernelSource wrong{"wrong", "extern \"C\" __global__ void wrong() { undeclared = 1; }", 0};
  const auto code = compile_to_cubin({&wrong, 1}, "sm_75");
  ASSERT_FALSE(code.has_value());
  EXPECT_EQ(code.error().code, ErrorCode::Internal);
  EXPECT_NE(code.error().message.find("undeclared"), std::string::npos) << code.error().message;
  const KernelSource right{"right", "extern \"C\" __global__ void right() {}", 0};
  EXPECT_FALSE(compile_to_cubin({&right, 1}, "sm_1").has_value());
  EXPECT_TRUE(compile_to_cubin({&right, 1}, "sm_75").has_value());
}

}  // namespace
}  // namespace weft::peer::cuda
