#include "peer/service/unit_problems.h"

#include <string>

#include "dag/op_table.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Graph;
using dag::GraphBuilder;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::ValueId;
using plan::Unit;
using plan::UnitRates;

// A graph under construction. Every result is kept, as a training step keeps them: what a kernel writes lies
// elsewhere than what the one before it wrote.
class Net {
 public:
  ValueId input(Shape shape) {
    return builder_.input("x" + std::to_string(inputs_++), {DType::F32, std::move(shape)});
  }
  std::vector<ValueId> add_all(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}) {
    auto made = builder_.add_all(kind, std::move(inputs), std::move(attributes));
    for (const ValueId value : made)
      builder_.output("y" + std::to_string(outputs_++), value, dag::OutputRole::Prediction);
    return made;
  }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return add_all(kind, std::move(inputs), std::move(attributes))[0];
  }
  const Shape& shape(ValueId value) { return builder_.graph().spec(value).shape; }
  GraphBuilder& builder() { return builder_; }
  Graph finish() { return builder_.finish(); }

 private:
  GraphBuilder builder_{dag::op_table()};
  int inputs_ = 0, outputs_ = 0;
};

Attributes window(int64_t pad, int64_t groups = 1) {
  return {{Attr::Strides, Ints{1, 1}},
          {Attr::Dilations, Ints{1, 1}},
          {Attr::Pads, Ints{pad, pad, pad, pad}},
          {Attr::Groups, groups}};
}
Attributes of_shape(Attributes attributes, const Shape& shape) {
  attributes.set(Attr::Shape, shape);
  return attributes;
}

// ---- memory ----

// Additions of `rows` x 1024 numbers, one by one: each reads what the one before it wrote, and something
// older.
Graph additions(int64_t rows, int count) {
  Net net;
  ValueId x = net.input({rows, 1024});
  const ValueId older = net.input({rows, 1024});
  for (int i = 0; i < count; ++i) {
    x = net.add(OpKind::Add, {x, older});
    x = net.add(OpKind::Reshape, {x}, {{Attr::Shape, Shape{rows, 1024}}});
    x = net.add(OpKind::Add, {x, older});
  }
  return net.finish();
}

Graph functions(int64_t times) {
  Net net;
  const ValueId x = net.input({192 * times, 1024});
  const Attributes by_erf{{Attr::Approximate, int64_t{0}}};
  const ValueId y = net.add(OpKind::Reshape, {net.add(OpKind::Sigmoid, {x})}, {{Attr::Shape, net.shape(x)}});
  net.add(OpKind::Gelu, {y}, by_erf);
  net.add(OpKind::GeluGrad, {x, y}, by_erf);
  net.add(OpKind::Dropout, {y}, {{Attr::Ratio, 0.1}, {Attr::Key, int64_t{1}}});
  return net.finish();
}

// Of `count` values, so that each comes from memory rather than from the run before.
Graph shapes(int64_t batch, int count) {
  Net net;
  for (int i = 0; i < count; ++i) {
    const ValueId x = net.input({batch, 64, 12, 64});
    net.add(OpKind::Transpose, {x}, {{Attr::Perm, Ints{0, 2, 1, 3}}});
    const ValueId y = net.add(OpKind::Concat, {x, x}, {{Attr::Axis, int64_t{2}}});
    net.add(OpKind::ReduceSum, {y}, {{Attr::Axes, Ints{0, 1}}, {Attr::KeepDims, int64_t{1}}});
  }
  return net.finish();
}

// ---- rows and images ----

// An image of `channels` made by a convolution with little work, so that it lies as convolutions have it.
ValueId image(Net& net, int64_t batch, int64_t channels, int64_t side) {
  return net.add(OpKind::Conv, {net.input({batch, 8, side, side}), net.input({channels, 8, 1, 1})},
                 window(0));
}

Graph normalisations(int64_t batch) {
  Net net;
  const Attributes epsilon{{Attr::Epsilon, 1e-5}};
  const ValueId x = image(net, batch, 64, 28), scale = net.input({64}), bias = net.input({64});
  const auto of_batch = net.add_all(OpKind::BatchNorm, {x, scale, bias}, epsilon);
  net.add_all(OpKind::BatchNormGrad, {of_batch[0], x, scale, of_batch[1], of_batch[2]}, epsilon);
  const ValueId rows = net.input({64 * batch, 768}), w = net.input({768}), b = net.input({768});
  const Attributes last{{Attr::Axis, int64_t{1}}};
  Attributes of_rows = last;
  of_rows.set(Attr::Epsilon, 1e-5);
  const auto normal = net.add_all(OpKind::LayerNorm, {rows, w, b}, of_rows);
  net.add_all(OpKind::LayerNormGrad, {normal[0], rows, w, normal[1], normal[2]}, last);
  return net.finish();
}

Graph pools(int64_t batch, int64_t side) {
  Net net;
  const ValueId x = image(net, batch, 64, side);
  const auto pooled =
      net.add_all(OpKind::MaxPool, {x},
                  {{Attr::Kernel, Ints{3, 3}}, {Attr::Strides, Ints{2, 2}}, {Attr::Pads, Ints{1, 1, 1, 1}}});
  net.add(OpKind::MaxPoolGrad, {pooled[0], pooled[1]}, {{Attr::Shape, net.shape(x)}});
  return net.finish();
}

// ---- multiplications ----

// A linear layer's three products.
Graph products(int64_t rows, int64_t in, int64_t out) {
  Net net;
  const ValueId x = net.input({rows, in}), w = net.input({in, out});
  const ValueId y = net.add(OpKind::MatMul, {x, w});
  net.add(OpKind::MatMul, {y, w}, {{Attr::TransB, int64_t{1}}});
  net.add(OpKind::MatMul, {x, y}, {{Attr::TransA, int64_t{1}}});
  return net.finish();
}

struct Layer {
  int64_t channels, side, kernel, groups = 1;
  Shape weights() const { return {channels, channels / groups, kernel, kernel}; }
};
// Forward, and the gradient of the input.
ValueId convolve(Net& net, ValueId x, const Layer& layer) {
  const ValueId w = net.input(layer.weights());
  const Attributes attributes = window(layer.kernel / 2, layer.groups);
  x = net.add(OpKind::Conv, {x, w}, attributes);
  return net.add(OpKind::ConvGradInput, {x, w}, of_shape(attributes, net.shape(x)));
}
void convolve_weights(Net& net, ValueId x, const Layer& layer) {
  net.add(OpKind::ConvGradWeight, {x, x}, of_shape(window(layer.kernel / 2, layer.groups), layer.weights()));
}
Graph convolutions(int64_t batch, const Layer& layer) {
  Net net;
  convolve(net, image(net, batch, layer.channels, layer.side), layer);
  return net.finish();
}
Graph weight_gradients(int64_t batch, const Layer& layer) {
  Net net;
  convolve_weights(net, image(net, batch, layer.channels, layer.side), layer);
  return net.finish();
}
Graph all_directions(int64_t batch, const Layer& layer) {
  Net net;
  ValueId x = image(net, batch, layer.channels, layer.side);
  for (int i = 0; i < 3; ++i) {
    convolve_weights(net, x, layer);
    x = convolve(net, x, layer);
  }
  return net.finish();
}

Graph parameters(int64_t elements) {
  Net net;
  const ValueId w = net.builder().initializer("w", {DType::F32, {elements}}, dag::InitializerRole::Parameter);
  net.builder().output("w", net.builder().add(OpKind::Neg, {w}), dag::OutputRole::Gradient);
  return net.finish();
}

}  // namespace

std::vector<UnitProblem> unit_problems() {
  using P = UnitProblem;
  const auto flops = &UnitRates::flops_per_second, small_flops = &UnitRates::small_flops_per_second;
  const auto bytes = &UnitRates::bytes_per_second, small_bytes = &UnitRates::small_bytes_per_second;
  const auto of_layer = [](Graph (*make)(int64_t, const Layer&), int64_t batch, Layer layer) {
    return [=](int64_t times) { return make(batch * times, layer); };
  };
  const Layer dense{64, 28, 3}, small_dense{256, 7, 3}, point{192, 28, 1}, small_point{512, 7, 1};
  const Layer depthwise{128, 28, 3, 128}, small_depthwise{512, 7, 3, 512};
  return {
      P{Unit::Elementwise, small_bytes, [](int64_t) { return additions(86, 16); }},
      P{Unit::Elementwise, bytes, [](int64_t) { return additions(2736, 1); }},
      P{Unit::Elementwise, flops, functions, true},
      P{Unit::Shape, small_bytes, [](int64_t) { return shapes(2, 20); }},
      P{Unit::Shape, bytes, [](int64_t) { return shapes(24, 1); }},
      P{Unit::MatMul, flops, [](int64_t times) { return products(256 * times, 768, 1536); }, true},
      P{Unit::MatMul, small_bytes, [](int64_t) { return products(4, 512, 512); }},
      P{Unit::MatMul, bytes, [](int64_t) { return products(4, 2048, 2048); }},
      P{Unit::Pointwise, flops, of_layer(all_directions, 1, point), true},
      P{Unit::Pointwise, small_flops, of_layer(all_directions, 2, small_point), true},
      P{Unit::Convolution, flops, of_layer(convolutions, 2, dense), true},
      P{Unit::Convolution, small_flops, of_layer(convolutions, 4, small_dense), true},
      P{Unit::ConvolutionWeights, flops, of_layer(weight_gradients, 4, dense), true},
      P{Unit::ConvolutionWeights, small_flops, of_layer(weight_gradients, 8, small_dense), true},
      P{Unit::Depthwise, flops, of_layer(all_directions, 8, depthwise), true},
      P{Unit::Depthwise, small_flops, of_layer(all_directions, 24, small_depthwise), true},
      P{Unit::Normalisation, small_bytes, [](int64_t) { return normalisations(2); }},
      P{Unit::Normalisation, bytes, [](int64_t) { return normalisations(32); }},
      P{Unit::Pooling, small_bytes, [](int64_t) { return pools(2, 28); }},
      P{Unit::Pooling, bytes, [](int64_t) { return pools(8, 112); }},
      P{Unit::Update, bytes, [](int64_t times) { return parameters(times << 20); }, true, true},
  };
}

Graph small_kernels(int64_t& count) {
  Net net;
  const ValueId x = net.input({4, 16}), w = net.input({16, 16});
  count = 0;
  for (int i = 0; i < 12; ++i) {
    const ValueId y = net.add(OpKind::MatMul, {x, w});
    net.add(OpKind::Add, {x, y});
    net.add(OpKind::ReduceSum, {y}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{1}}});
    net.add(OpKind::Transpose, {y}, {{Attr::Perm, Ints{1, 0}}});
    net.add(OpKind::Softmax, {y}, {{Attr::Axis, int64_t{1}}});
    net.add(OpKind::Concat, {x, y}, {{Attr::Axis, int64_t{1}}});
    count += 6;
  }
  return net.finish();
}

}  // namespace weft::peer
