#include "tests/support/models.h"

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "dag/op_table.h"

namespace weft::test {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::GraphBuilder;
using dag::InitializerRole;
using dag::InputRole;
using dag::Ints;
using dag::OpKind;
using dag::OutputRole;
using dag::Shape;
using dag::Tensor;
using dag::ValueId;

Tensor random_tensor(uint64_t seed, uint64_t stream, Shape shape, double deviation) {
  Tensor tensor({DType::F32, std::move(shape)});
  Rng rng(seed, stream);
  for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(deviation * rng.normal());
  return tensor;
}

Tensor random_labels(uint64_t seed, uint64_t stream, Shape shape, int64_t classes) {
  Tensor tensor({DType::I64, std::move(shape)});
  Rng rng(seed, stream);
  for (int64_t& value : tensor.mutable_as<int64_t>())
    value = static_cast<int64_t>(rng.below(static_cast<uint64_t>(classes)));
  return tensor;
}

namespace {

// A builder that makes initializers together with their values.
class ModelBuilder {
 public:
  explicit ModelBuilder(uint64_t seed) : builder_(dag::op_table()), seed_(seed) {}

  ValueId weight(const std::string& name, Shape shape, double deviation, double offset = 0) {
    Tensor tensor = random_tensor(seed_, ++stream_, shape, deviation);
    for (float& value : tensor.mutable_as<float>()) value += static_cast<float>(offset);
    return initializer(name, std::move(tensor), InitializerRole::Parameter);
  }
  ValueId initializer(const std::string& name, Tensor tensor, InitializerRole role) {
    const ValueId value = builder_.initializer(name, tensor.spec(), role);
    model_.weights.emplace(name, std::move(tensor));
    return value;
  }
  ValueId input(const std::string& name, Tensor tensor, InputRole role = InputRole::Model) {
    const ValueId value = builder_.input(name, tensor.spec(), role);
    model_.inputs.emplace(name, std::move(tensor));
    return value;
  }
  uint64_t next_stream() { return ++stream_; }
  uint64_t seed() const { return seed_; }
  GraphBuilder& builder() { return builder_; }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return builder_.add(kind, std::move(inputs), std::move(attributes));
  }

  Model finish(ValueId logits, Tensor labels, int64_t axis) {
    const ValueId target = input(std::string(dag::kTargetInput), std::move(labels), InputRole::Loss);
    const ValueId loss = add(OpKind::CrossEntropy, {logits, target},
                             {{Attr::Axis, axis}, {Attr::Reduction, std::string("mean")}});
    builder_.output("loss", loss, OutputRole::Loss);
    model_.graph = builder_.finish();
    return std::move(model_);
  }

  ValueId conv(const std::string& name, ValueId x, int64_t out, int64_t kernel, int64_t stride) {
    const int64_t in = builder_.spec(x).shape[1];
    const ValueId w =
        weight(name, {out, in, kernel, kernel}, std::sqrt(2.0 / static_cast<double>(in * kernel * kernel)));
    const int64_t pad = kernel / 2;
    return add(OpKind::Conv, {x, w},
               {{Attr::Strides, Ints{stride, stride}},
                {Attr::Dilations, Ints{1, 1}},
                {Attr::Pads, Ints{pad, pad, pad, pad}},
                {Attr::Groups, int64_t{1}}});
  }

  // Normalises and keeps the running mean as an importer would: new = 0.9 old + 0.1 batch.
  ValueId batch_norm(const std::string& name, ValueId x) {
    const int64_t channels = builder_.spec(x).shape[1];
    const ValueId scale = weight(name + ".weight", {channels}, 0.1, 1.0),
                  bias = weight(name + ".bias", {channels}, 0.1);
    const auto outputs = builder_.add_all(OpKind::BatchNorm, {x, scale, bias}, {{Attr::Epsilon, 1e-5}});
    const ValueId running = initializer(name + ".running_mean", Tensor({DType::F32, {channels}}),
                                        InitializerRole::RunningStatistic);
    const ValueId kept = add(OpKind::Mul, {running, builder_.scalar(DType::F32, 0.9)});
    const ValueId fresh = add(OpKind::Mul, {outputs[1], builder_.scalar(DType::F32, 0.1)});
    builder_.output(name + ".running_mean", add(OpKind::Add, {kept, fresh}), OutputRole::StateUpdate);
    return outputs[0];
  }

  ValueId linear(const std::string& name, ValueId x, int64_t out) {
    const int64_t in = builder_.spec(x).shape.back();
    const ValueId w = weight(name + ".weight", {in, out}, 1.0 / std::sqrt(static_cast<double>(in)));
    return add(OpKind::Add, {add(OpKind::MatMul, {x, w}), weight(name + ".bias", {out}, 0.1)});
  }
  ValueId layer_norm(const std::string& name, ValueId x) {
    const int64_t width = builder_.spec(x).shape.back();
    const int64_t axis = builder_.spec(x).rank() - 1;
    return add(OpKind::LayerNorm,
               {x, weight(name + ".weight", {width}, 0.1, 1.0), weight(name + ".bias", {width}, 0.1)},
               {{Attr::Axis, axis}, {Attr::Epsilon, 1e-5}});
  }

 private:
  GraphBuilder builder_;
  Model model_;
  uint64_t seed_;
  uint64_t stream_ = 0;
};

}  // namespace

Model residual_net(uint64_t seed, const ResidualNetOptions& o) {
  ModelBuilder b(seed);
  ValueId x = b.input("x", random_tensor(seed, b.next_stream(), {o.batch, 1, o.size, o.size}));
  x = b.add(OpKind::Relu, {b.batch_norm("bn", b.conv("conv", x, o.channels, 3, 1))});
  for (int64_t i = 0; i < o.blocks; ++i) {
    const std::string name = "block" + std::to_string(i);
    const int64_t stride = i == 0 ? 1 : 2, channels = o.channels << i;
    ValueId y =
        b.add(OpKind::Relu, {b.batch_norm(name + ".bn1", b.conv(name + ".conv1", x, channels, 3, stride))});
    y = b.batch_norm(name + ".bn2", b.conv(name + ".conv2", y, channels, 3, 1));
    const ValueId shortcut =
        stride == 1 ? x : b.batch_norm(name + ".bn3", b.conv(name + ".shortcut", x, channels, 1, stride));
    x = b.add(OpKind::Relu, {b.add(OpKind::Add, {y, shortcut})});
  }
  const ValueId pooled =
      b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{0}}});
  return b.finish(b.linear("head", pooled, o.classes),
                  random_labels(seed, b.next_stream(), {o.batch}, o.classes), 1);
}

Model transformer(uint64_t seed, const TransformerOptions& o) {
  ModelBuilder b(seed);
  GraphBuilder& g = b.builder();
  const int64_t head = o.width / o.heads;
  const ValueId tokens =
      b.input("tokens", random_labels(seed, b.next_stream(), {o.batch, o.sequence}, o.vocabulary));
  const ValueId wte = b.weight("wte", {o.vocabulary, o.width}, 0.3);
  const ValueId wpe = b.weight("wpe", {o.sequence, o.width}, 0.1);
  Tensor mask({DType::Bool, {o.sequence, o.sequence}});
  for (int64_t i = 0; i < o.sequence; ++i)
    for (int64_t j = 0; j <= i; ++j) mask.mutable_as<uint8_t>()[static_cast<size_t>(i * o.sequence + j)] = 1;
  const ValueId causal = g.constant(std::move(mask));
  const ValueId minus_infinity = g.scalar(DType::F32, -std::numeric_limits<double>::infinity());
  const ValueId scale = g.scalar(DType::F32, 1.0 / std::sqrt(static_cast<double>(head)));
  int64_t key = 0;
  const auto dropout = [&](ValueId value) {
    return o.dropout > 0 ? b.add(OpKind::Dropout, {value}, {{Attr::Ratio, o.dropout}, {Attr::Key, ++key}})
                         : value;
  };
  const auto heads = [&](ValueId value) {
    const ValueId split =
        b.add(OpKind::Reshape, {value}, {{Attr::Shape, Shape{o.batch, o.sequence, o.heads, head}}});
    return b.add(OpKind::Transpose, {split}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
  };

  ValueId x =
      dropout(b.add(OpKind::Add, {b.add(OpKind::Gather, {wte, tokens}, {{Attr::Axis, int64_t{0}}}), wpe}));
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string name = "h" + std::to_string(i);
    const ValueId normed = b.layer_norm(name + ".ln1", x);
    const ValueId q = heads(b.linear(name + ".q", normed, o.width));
    const ValueId k = heads(b.linear(name + ".k", normed, o.width));
    const ValueId v = heads(b.linear(name + ".v", normed, o.width));
    ValueId scores = b.add(OpKind::Mul, {b.add(OpKind::MatMul, {q, k}, {{Attr::TransB, int64_t{1}}}), scale});
    scores = b.add(OpKind::Where, {causal, scores, minus_infinity});
    const ValueId weights = dropout(b.add(OpKind::Softmax, {scores}, {{Attr::Axis, int64_t{3}}}));
    ValueId mixed =
        b.add(OpKind::Transpose, {b.add(OpKind::MatMul, {weights, v})}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
    mixed = b.add(OpKind::Reshape, {mixed}, {{Attr::Shape, Shape{o.batch, o.sequence, o.width}}});
    x = b.add(OpKind::Add, {x, dropout(b.linear(name + ".proj", mixed, o.width))});
    const ValueId hidden =
        b.add(OpKind::Gelu, {b.linear(name + ".fc", b.layer_norm(name + ".ln2", x), 4 * o.width)},
              {{Attr::Approximate, i % 2}});
    x = b.add(OpKind::Add, {x, b.linear(name + ".out", hidden, o.width)});
  }
  const ValueId logits = b.add(OpKind::MatMul, {b.layer_norm("ln", x), wte}, {{Attr::TransB, int64_t{1}}});
  return b.finish(logits, random_labels(seed, b.next_stream(), {o.batch, o.sequence}, o.vocabulary), 2);
}

Model with_rounded_parameters(const Model& model) {
  dag::GraphCopy copy(model.graph, dag::op_table());
  std::map<uint32_t, InitializerRole> roles;
  for (const dag::Initializer& initializer : model.graph.initializers())
    roles[initializer.value.index] = initializer.role;
  for (uint32_t i = 0; i < model.graph.ops().size(); ++i) {
    copy.copy({i});
    const dag::Op& op = model.graph.ops()[i];
    if (op.kind == OpKind::Initializer && roles.at(op.outputs[0].index) == InitializerRole::Parameter)
      copy.map(op.outputs[0], copy.builder().add(OpKind::RoundToHalf, {copy.mapped(op.outputs[0])},
                                                 {{Attr::DType, static_cast<int64_t>(DType::BF16)}}));
  }
  copy.copy_outputs();
  return {copy.finish(), model.weights, model.inputs};
}

}  // namespace weft::test
