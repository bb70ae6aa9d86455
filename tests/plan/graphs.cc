#include "tests/plan/graphs.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/lower.h"
#include "dag/onnx/import.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/support/models.h"

namespace weft::test {

using dag::Attr;
using dag::DType;
using dag::Graph;
using dag::GraphBuilder;
using dag::InitializerRole;
using dag::Ints;
using dag::OpKind;
using dag::OutputRole;
using dag::Shape;
using dag::TensorSpec;
using dag::ValueId;

namespace {

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}

ValueId parameter(GraphBuilder& b, const std::string& name, Shape shape) {
  return b.initializer(name, {DType::F32, std::move(shape)}, InitializerRole::Parameter);
}

Graph with_loss(GraphBuilder& b, ValueId logits) {
  const ValueId target =
      b.input(std::string(dag::kTargetInput), {DType::I64, {b.spec(logits).shape[0]}}, dag::InputRole::Loss);
  b.output("loss",
           b.add(OpKind::CrossEntropy, {logits, target},
                 {{Attr::Axis, int64_t{1}}, {Attr::Reduction, std::string("mean")}}),
           OutputRole::Loss);
  return b.finish();
}

ValueId linear(GraphBuilder& b, const std::string& name, ValueId x, int64_t out) {
  const ValueId w = parameter(b, name + ".weight", {b.spec(x).shape.back(), out});
  return b.add(OpKind::Add, {b.add(OpKind::MatMul, {x, w}, {}, name), parameter(b, name + ".bias", {out})});
}

// Every layer reads the results of all layers before it.
Graph dense_net(uint64_t seed) {
  GraphBuilder b(dag::op_table());
  const int64_t growth = 16, layers = 4 + static_cast<int64_t>(seed % 4);
  std::vector<ValueId> all = {b.input("x", {DType::F32, {4, 16, 8, 8}})};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string name = "dense" + std::to_string(i);
    const ValueId joined = all.size() == 1 ? all[0] : b.add(OpKind::Concat, all, {{Attr::Axis, int64_t{1}}});
    const ValueId w = parameter(b, name + ".weight", {growth, b.spec(joined).shape[1], 3, 3});
    all.push_back(b.add(OpKind::Relu, {b.add(OpKind::Conv, {joined, w},
                                             {{Attr::Strides, Ints{1, 1}},
                                              {Attr::Dilations, Ints{1, 1}},
                                              {Attr::Pads, Ints{1, 1, 1, 1}},
                                              {Attr::Groups, int64_t{1}}},
                                             name)}));
  }
  const ValueId joined = b.add(OpKind::Concat, all, {{Attr::Axis, int64_t{1}}});
  const ValueId pooled =
      b.add(OpKind::ReduceMean, {joined}, {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{0}}});
  return with_loss(b, linear(b, "head", pooled, 10));
}

struct Example {
  dag::Graph graph;
  dag::LossSpec loss;
  TensorSpec target;
  int64_t batch;
};
Example import_example(const std::string& name, bool training) {
  const bool gpt = name == "gpt";
  const std::string folder = std::string(WEFT_SOURCE_DIR) + "/examples/" + (gpt ? "gpt" : "fashion-mnist");
  const int64_t batch = gpt ? 8 : 16;
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.batch = batch;
  options.training = training;
  if (gpt) options.input_shapes["tokens"] = {batch, 128};
  if (gpt) options.freeze = {"mask"};
  const auto model = value_or_fail(onnx::read_model(folder + "/model.onnx"));
  auto imported = value_or_fail(onnx::import_model(model, options, dag::op_table()));
  dag::LossSpec loss;
  loss.prediction = "logits";
  loss.target = "labels";
  return {value_or_fail(dag::canonicalise(imported.graph, dag::op_table())), loss,
          TensorSpec{DType::I64, gpt ? Shape{batch, 128} : Shape{batch}}, batch};
}

}  // namespace

Graph lowered(const Graph& forward, bool training) {
  const bool differentiates = training && forward.find_output(OutputRole::Loss);
  const Graph graph = differentiates ? value_or_fail(dag::differentiate(forward, dag::op_table())) : forward;
  return dag::lower(graph, dag::op_table(),
                    {.fuse_elementwise = true, .convolution_layout = dag::Layout::Blocked16});
}

Graph training_graph(const std::string& name, uint64_t seed) {
  const auto size = static_cast<int64_t>(seed % 3);
  if (name == "residual") return lowered(residual_net(seed, {.channels = 16, .blocks = 2 + size}).graph);
  if (name == "transformer") return lowered(transformer(seed, {.width = 32, .layers = 2 + size}).graph);
  if (name == "rounded")
    return lowered(
        with_rounded_parameters(transformer(seed, {.batch = 1, .width = 64, .layers = 2 + size})).graph);
  if (name == "dense") return lowered(dense_net(seed));
  const Example example = import_example(name, true);
  const dag::TermColumns columns{.target = example.target};
  return lowered(value_or_fail(dag::attach_training_loss(example.graph, {&example.loss, 1}, {&columns, 1},
                                                         /*microbatches=*/1, dag::op_table()))
                     .graph);
}

Graph evaluation_graph(const std::string& name) {
  const Example example = import_example(name, false);
  const dag::TermColumns columns{.target = example.target};
  return lowered(value_or_fail(dag::attach_evaluation_loss(example.graph, {&example.loss, 1}, {&columns, 1},
                                                           example.batch, dag::op_table())),
                 false);
}

Graph chain(uint64_t seed, int64_t layers, int64_t batch) {
  Rng rng(seed, 17);
  GraphBuilder b(dag::op_table());
  ValueId x = b.input("x", {DType::F32, {batch, 32}});
  for (int64_t i = 0; i < layers; ++i)
    x = b.add(OpKind::Relu,
              {linear(b, "layer" + std::to_string(i), x, 16 * (1 + static_cast<int64_t>(rng.below(8))))});
  return lowered(with_loss(b, linear(b, "head", x, 10)));
}

Graph frozen_below_a_head(int64_t layers, int64_t width, int64_t classes) {
  GraphBuilder b(dag::op_table());
  ValueId x = b.input("x", {DType::F32, {2, width}});
  for (int64_t i = 0; i < layers; ++i) {
    const ValueId w =
        b.initializer("layer" + std::to_string(i), {DType::F32, {width, width}}, InitializerRole::Frozen);
    x = b.add(OpKind::Relu, {b.add(OpKind::MatMul, {x, w})});
  }
  return lowered(with_loss(b, b.add(OpKind::MatMul, {x, parameter(b, "head", {width, classes})})));
}

Graph branches(uint64_t seed, int64_t layers) {
  Rng rng(seed, 18);
  GraphBuilder b(dag::op_table());
  const int64_t width = 32 * (1 + static_cast<int64_t>(rng.below(4)));
  std::vector<ValueId> made = {b.input("x", {DType::F32, {8, width}})};
  std::vector<bool> is_read = {true};
  const auto any = [&] {
    const size_t near = std::min<size_t>(made.size(), 4), at = made.size() - 1 - rng.below(near);
    is_read[at] = true;
    return made[at];
  };
  for (int64_t i = 0; i < layers; ++i) {
    ValueId x = any();
    if (rng.below(3) == 0) x = b.add(OpKind::Add, {x, any()});
    made.push_back(b.add(OpKind::Relu, {linear(b, "layer" + std::to_string(i), x, width)}));
    is_read.push_back(false);
  }
  ValueId end = made.back();
  for (size_t i = 0; i + 1 < made.size(); ++i)
    if (!is_read[i]) end = b.add(OpKind::Add, {end, made[i]});
  return lowered(with_loss(b, linear(b, "head", end, 10)));
}

Graph gpt(const GptOptions& o) {
  GraphBuilder b(dag::op_table());
  const auto norm = [&](const std::string& name, ValueId x) {
    return b.add(OpKind::LayerNorm,
                 {x, parameter(b, name + ".weight", {o.width}), parameter(b, name + ".bias", {o.width})},
                 {{Attr::Axis, int64_t{2}}, {Attr::Epsilon, 1e-5}});
  };
  const auto heads = [&](ValueId x) {
    const ValueId split =
        b.add(OpKind::Reshape, {x}, {{Attr::Shape, Shape{1, o.tokens, o.heads, o.width / o.heads}}});
    return b.add(OpKind::Transpose, {split}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  };
  const ValueId tokens = b.input("tokens", {DType::I64, {1, o.tokens}});
  const ValueId wte = parameter(b, "wte", {o.vocabulary, o.width});
  ValueId x = b.add(OpKind::Add, {b.add(OpKind::Gather, {wte, tokens}, {{Attr::Axis, int64_t{0}}}),
                                  parameter(b, "wpe", {o.tokens, o.width})});
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string name = "h" + std::to_string(i);
    const ValueId normed = norm(name + ".ln1", x);
    const ValueId scores = b.add(
        OpKind::MatMul,
        {heads(linear(b, name + ".q", normed, o.width)), heads(linear(b, name + ".k", normed, o.width))},
        {{Attr::TransB, int64_t{1}}});
    ValueId mixed = b.add(OpKind::MatMul, {b.add(OpKind::Softmax, {scores}, {{Attr::Axis, int64_t{3}}}),
                                           heads(linear(b, name + ".v", normed, o.width))});
    mixed = b.add(OpKind::Transpose, {mixed}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
    mixed = b.add(OpKind::Reshape, {mixed}, {{Attr::Shape, Shape{1, o.tokens, o.width}}});
    x = b.add(OpKind::Add, {x, linear(b, name + ".proj", mixed, o.width)});
    const ValueId hidden = linear(b, name + ".fc", norm(name + ".ln2", x), 4 * o.width);
    x = b.add(OpKind::Add, {x, linear(b, name + ".out", b.add(OpKind::Relu, {hidden}), o.width)});
  }
  const ValueId head = o.tied ? wte : parameter(b, "head", {o.vocabulary, o.width});
  const ValueId logits = b.add(OpKind::MatMul, {norm("ln", x), head}, {{Attr::TransB, int64_t{1}}}, "logits");
  const ValueId labels =
      b.input(std::string(dag::kTargetInput), {DType::I64, {1, o.tokens}}, dag::InputRole::Loss);
  b.output("loss",
           b.add(OpKind::CrossEntropy, {logits, labels},
                 {{Attr::Axis, int64_t{2}}, {Attr::Reduction, std::string("mean")}}),
           OutputRole::Loss);
  return lowered(b.finish());
}

plan::DeviceView device(std::string name, double gigaflops, std::string region, std::string fingerprint,
                        Bytes memory) {
  return {.name = std::move(name),
          .region = std::move(region),
          .rates = plan::Rates{gigaflops * 1e9, gigaflops * 1e9, gigaflops * 2e8, 2e-6},
          .memory = memory,
          .fingerprint = std::move(fingerprint)};
}

plan::ClusterView equal_devices(uint32_t count, double bytes_per_second, Duration latency) {
  std::vector<plan::DeviceView> devices;
  for (uint32_t i = 0; i < count; ++i) devices.push_back(device(std::string(1, static_cast<char>('a' + i))));
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t k = 0; k < count; ++k) cluster.set_link(i, k, {bytes_per_second, latency});
  return cluster;
}

plan::ClusterView random_cluster(Rng& rng, uint32_t count, double room) {
  std::vector<plan::DeviceView> devices;
  for (uint32_t i = 0; i < count; ++i)
    devices.push_back(device("d" + std::to_string(i), 10 + 90 * rng.uniform(),
                             "region" + std::to_string(rng.below(1 + count / 3))));
  for (uint32_t i = 0; i < count; ++i) devices[i].memory = {static_cast<int64_t>(room * (1 + i % 5 / 4.0))};
  plan::ClusterView cluster(devices);
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t k = 0; k < count; ++k) {
      const bool near = devices[i].region == devices[k].region;
      cluster.set_link(i, k,
                       {(near ? 1e8 : 1e6) * (1 + 9 * rng.uniform()),
                        Duration(static_cast<int64_t>((near ? 1e5 : 1e7) * (1 + rng.uniform())))});
    }
  for (uint32_t i = 0; i < count; ++i)
    if (rng.below(3) == 0) cluster.set_lines(i, 1e6 * (1 + 9 * rng.uniform()), 2e6 * (1 + 9 * rng.uniform()));
  return cluster;
}

Seeds seeds(uint64_t usual) {
  const char* wanted = std::getenv("WEFT_PLAN_SEEDS");
  if (wanted == nullptr) return {1, usual};
  char* end = nullptr;
  const uint64_t first = std::strtoull(wanted, &end, 10);
  return *end == '-' ? Seeds{first, std::strtoull(end + 1, nullptr, 10)} : Seeds{1, first};
}

}  // namespace weft::test
