#include "bench/wide_area/model.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "cli/plan_job.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/op_table.h"

namespace weft::bench {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::InitializerRole;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using dag::ValueId;

class Builder {
 public:
  Builder() : graph_(dag::op_table()) {}

  dag::GraphBuilder& graph() { return graph_; }
  int64_t parameters() const { return parameters_; }

  ValueId weight(const std::string& name, Shape shape) {
    const dag::TensorSpec spec{DType::F32, std::move(shape)};
    parameters_ += spec.element_count();
    return graph_.initializer(name, spec, InitializerRole::Parameter);
  }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return graph_.add(kind, std::move(inputs), std::move(attributes));
  }
  ValueId linear(const std::string& name, ValueId x, int64_t out) {
    const int64_t in = graph_.spec(x).shape.back();
    const ValueId product = add(OpKind::MatMul, {x, weight(name + ".weight", {in, out})});
    return add(OpKind::Add, {product, weight(name + ".bias", {out})});
  }
  ValueId layer_norm(const std::string& name, ValueId x) {
    const int64_t width = graph_.spec(x).shape.back();
    return add(OpKind::LayerNorm, {x, weight(name + ".weight", {width}), weight(name + ".bias", {width})},
               {{Attr::Axis, graph_.spec(x).rank() - 1}, {Attr::Epsilon, 1e-5}});
  }
  ValueId conv(const std::string& name, ValueId x, int64_t out, int64_t kernel, int64_t stride) {
    const int64_t in = graph_.spec(x).shape[1], pad = kernel / 2;
    return add(OpKind::Conv, {x, weight(name + ".weight", {out, in, kernel, kernel})},
               {{Attr::Strides, Ints{stride, stride}},
                {Attr::Dilations, Ints{1, 1}},
                {Attr::Pads, Ints{pad, pad, pad, pad}},
                {Attr::Groups, int64_t{1}}});
  }
  // Keeps running statistics, as the importer has them: new = 0.9 old + 0.1 batch.
  ValueId batch_norm(const std::string& name, ValueId x) {
    const int64_t channels = graph_.spec(x).shape[1];
    const auto outputs = graph_.add_all(
        OpKind::BatchNorm, {x, weight(name + ".weight", {channels}), weight(name + ".bias", {channels})},
        {{Attr::Epsilon, 1e-5}});
    const char* const endings[] = {".running_mean", ".running_var"};
    for (size_t i = 0; i < 2; ++i) {
      const std::string statistic = name + endings[i];
      const ValueId running =
          graph_.initializer(statistic, {DType::F32, {channels}}, InitializerRole::RunningStatistic);
      const ValueId kept = add(OpKind::Mul, {running, graph_.scalar(DType::F32, 0.9)});
      const ValueId fresh = add(OpKind::Mul, {outputs[i + 1], graph_.scalar(DType::F32, 0.1)});
      graph_.output(statistic, add(OpKind::Add, {kept, fresh}), dag::OutputRole::StateUpdate);
    }
    return outputs[0];
  }

  // With the loss, differentiated and lowered. The count is that of the published model.
  Model finish(std::string name, ValueId logits, Shape labels, int64_t axis, int64_t expected) {
    const ValueId target =
        graph_.input(std::string(dag::kTargetInput), {DType::I64, std::move(labels)}, dag::InputRole::Loss);
    const ValueId loss = add(OpKind::CrossEntropy, {logits, target},
                             {{Attr::Axis, axis}, {Attr::Reduction, std::string("mean")}});
    graph_.output("loss", loss, dag::OutputRole::Loss);
    WEFT_CHECK_MSG(parameters_ == expected, "not the published model: its parameters differ in number");
    auto whole = dag::differentiate(graph_.finish(), dag::op_table());
    WEFT_CHECK_MSG(whole.has_value(), "a model of the bench cannot be differentiated");
    Model model{.name = std::move(name), .parameters = parameters_};
    model.graph = std::move(*whole);
    model.lowered = std::make_shared<const dag::Lowered>(dag::lower_traced(
        model.graph, dag::op_table(), {.fuse_elementwise = true, .convolution_layout = dag::Layout::Plain}));
    return model;
  }

 private:
  dag::GraphBuilder graph_;
  int64_t parameters_ = 0;
};

struct GptSize {
  const char* name;
  int64_t layers, width, heads, parameters;
};

constexpr int64_t kTokens = 1024, kVocabulary = 50257;

ValueId attention(Builder& b, const std::string& name, ValueId x, const GptSize& size, ValueId causal) {
  const int64_t head = size.width / size.heads;
  const ValueId qkv = b.linear(name + ".c_attn", x, 3 * size.width);
  const auto heads = [&](int64_t part) {
    const ValueId slice = b.add(OpKind::Slice, {qkv},
                                {{Attr::Starts, Ints{0, 0, part * size.width}},
                                 {Attr::Sizes, Ints{1, kTokens, size.width}},
                                 {Attr::Steps, Ints{1, 1, 1}}});
    const ValueId split =
        b.add(OpKind::Reshape, {slice}, {{Attr::Shape, Shape{1, kTokens, size.heads, head}}});
    return b.add(OpKind::Transpose, {split}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  };
  const ValueId q = heads(0), k = heads(1), v = heads(2);
  const ValueId scale = b.graph().scalar(DType::F32, 1 / std::sqrt(static_cast<double>(head)));
  const ValueId never = b.graph().scalar(DType::F32, -std::numeric_limits<double>::infinity());
  ValueId scores = b.add(OpKind::Mul, {b.add(OpKind::MatMul, {q, k}, {{Attr::TransB, int64_t{1}}}), scale});
  scores = b.add(OpKind::Where, {causal, scores, never});
  const ValueId weights = b.add(OpKind::Softmax, {scores}, {{Attr::Axis, int64_t{3}}});
  const ValueId mixed =
      b.add(OpKind::Transpose, {b.add(OpKind::MatMul, {weights, v})}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  return b.linear(name + ".c_proj",
                  b.add(OpKind::Reshape, {mixed}, {{Attr::Shape, Shape{1, kTokens, size.width}}}),
                  size.width);
}

Model gpt(const GptSize& size, uint32_t microbatches) {
  Builder b;
  const ValueId tokens = b.graph().input("tokens", {DType::I64, {1, kTokens}});
  const ValueId wte = b.weight("wte", {kVocabulary, size.width}),
                wpe = b.weight("wpe", {kTokens, size.width});
  Tensor mask({DType::Bool, {kTokens, kTokens}});
  for (int64_t i = 0; i < kTokens; ++i)
    for (int64_t j = 0; j <= i; ++j) mask.mutable_as<uint8_t>()[static_cast<size_t>(i * kTokens + j)] = 1;
  const ValueId causal = b.graph().constant(std::move(mask));
  ValueId x = b.add(OpKind::Add, {b.add(OpKind::Gather, {wte, tokens}, {{Attr::Axis, int64_t{0}}}), wpe});
  for (int64_t layer = 0; layer < size.layers; ++layer) {
    const std::string name = "h." + std::to_string(layer);
    x = b.add(OpKind::Add, {x, attention(b, name + ".attn", b.layer_norm(name + ".ln_1", x), size, causal)});
    const ValueId hidden =
        b.add(OpKind::Gelu, {b.linear(name + ".mlp.c_fc", b.layer_norm(name + ".ln_2", x), 4 * size.width)},
              {{Attr::Approximate, int64_t{1}}});
    x = b.add(OpKind::Add, {x, b.linear(name + ".mlp.c_proj", hidden, size.width)});
  }
  const ValueId logits = b.add(OpKind::MatMul, {b.layer_norm("ln_f", x), wte}, {{Attr::TransB, int64_t{1}}});
  Model model = b.finish(size.name, logits, {1, kTokens}, 2, size.parameters);
  model.microbatches = microbatches;
  return model;
}

ValueId bottleneck(Builder& b, const std::string& name, ValueId x, int64_t width, int64_t stride) {
  const auto norm_relu = [&](const std::string& norm, ValueId value) {
    return b.add(OpKind::Relu, {b.batch_norm(norm, value)});
  };
  ValueId y = norm_relu(name + ".bn1", b.conv(name + ".conv1", x, width, 1, 1));
  y = norm_relu(name + ".bn2", b.conv(name + ".conv2", y, width, 3, stride));
  y = b.batch_norm(name + ".bn3", b.conv(name + ".conv3", y, 4 * width, 1, 1));
  const bool same = stride == 1 && b.graph().spec(x).shape[1] == 4 * width;
  const ValueId shortcut =
      same ? x
           : b.batch_norm(name + ".downsample.1", b.conv(name + ".downsample.0", x, 4 * width, 1, stride));
  return b.add(OpKind::Relu, {b.add(OpKind::Add, {y, shortcut})});
}

}  // namespace

Model gpt2_small(uint32_t microbatches) {
  return gpt({"gpt2-small", 12, 768, 12, 124'439'808}, microbatches);
}
Model gpt2_xl(uint32_t microbatches) { return gpt({"gpt2-xl", 48, 1600, 25, 1'557'611'200}, microbatches); }

Model resnet101(uint32_t microbatches) {
  constexpr int64_t kBatch = 4, kClasses = 1000;
  constexpr int64_t kBlocks[] = {3, 4, 23, 3};
  Builder b;
  ValueId x = b.graph().input("images", {DType::F32, {kBatch, 3, 224, 224}});
  x = b.add(OpKind::Relu, {b.batch_norm("bn1", b.conv("conv1", x, 64, 7, 2))});
  x = b.add(OpKind::MaxPool, {x},
            {{Attr::Kernel, Ints{3, 3}},
             {Attr::Strides, Ints{2, 2}},
             {Attr::Dilations, Ints{1, 1}},
             {Attr::Pads, Ints{1, 1, 1, 1}},
             {Attr::CeilMode, int64_t{0}}});
  for (int64_t layer = 0; layer < 4; ++layer)
    for (int64_t block = 0; block < kBlocks[layer]; ++block)
      x = bottleneck(b, "layer" + std::to_string(layer + 1) + "." + std::to_string(block), x,
                     int64_t{64} << layer, block == 0 && layer > 0 ? 2 : 1);
  const ValueId pooled =
      b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{0}}});
  Model model = b.finish("resnet101", b.linear("fc", pooled, kClasses), {kBatch}, 1, 44'549'160);
  model.microbatch_size = kBatch;
  model.microbatches = microbatches;
  return model;
}

Result<Model> model_of_job(const std::filesystem::path& path, std::span<const std::string> sets) {
  WEFT_TRY(cli::PlannedJob job, cli::open_planned_job(path, sets, {}));
  if (job.job.task != configs::Task::Train)
    return fail(ErrorCode::InvalidArgument, path.string() + ": does not train");
  Model model{.name = path.parent_path().filename().string(),
              .microbatch_size = job.job.microbatch_size,
              .microbatches = job.microbatches,
              .optimizer_slots = job.request().optimizer_slots,
              .stages = job.job.placement.stages};
  model.graph = std::move(job.graph);
  model.lowered = std::move(job.lowered.front());
  return model;
}

}  // namespace weft::bench
