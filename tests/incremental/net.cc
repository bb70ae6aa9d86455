#include "tests/incremental/net.h"

#include <numeric>

#include "dag/passes/canonicalise.h"

namespace weft::incremental::testing {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using V = Net::V;

Net::Net(int64_t length, bool batch, uint64_t seed)
    : length_(length), builder_(dag::op_table()), rng_(seed, 0) {
  tokens_ = builder_.input("tokens", {DType::I64, batch ? Shape{1, length} : Shape{length}});
}

V Net::op(OpKind kind, std::vector<V> inputs, dag::Attributes attributes) {
  return builder_.add(kind, std::move(inputs), std::move(attributes));
}
std::vector<V> Net::ops(OpKind kind, std::vector<V> inputs, dag::Attributes attributes) {
  return builder_.add_all(kind, std::move(inputs), std::move(attributes));
}

V Net::constant(Shape shape, const std::function<double(int64_t)>& element) {
  std::vector<double> values(static_cast<size_t>(dag::TensorSpec{DType::F32, shape}.element_count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(static_cast<int64_t>(i));
  return constant(dag::from_doubles({DType::F32, std::move(shape)}, values));
}

V Net::weight(Shape shape, double deviation, double mean) {
  Tensor tensor({DType::F32, std::move(shape)});
  for (float& value : tensor.mutable_as<float>())
    value = static_cast<float>(mean + deviation * rng_.normal());
  const std::string name = this->name();
  weights_[name] = tensor;
  return builder_.initializer(name, tensor.spec(), dag::InitializerRole::Parameter);
}

V Net::buffer(Tensor tensor) {
  const std::string name = this->name();
  weights_[name] = tensor;
  return builder_.initializer(name, tensor.spec(), dag::InitializerRole::Buffer);
}
V Net::unknown_buffer(dag::TensorSpec spec) {
  return builder_.initializer(name(), std::move(spec), dag::InitializerRole::Buffer);
}

V Net::table(DType dtype, bool turned, const std::function<double(int64_t, int64_t)>& f) {
  std::vector<double> values;
  for (int64_t i = 0; i < length_; ++i)
    for (int64_t j = 0; j < length_; ++j) values.push_back(turned ? f(j, i) : f(i, j));
  return constant(dag::from_doubles({dtype, {length_, length_}}, values));
}

V Net::matmul(V a, V b, bool trans_a, bool trans_b) {
  return op(OpKind::MatMul, {a, b}, {{Attr::TransA, int64_t{trans_a}}, {Attr::TransB, int64_t{trans_b}}});
}
V Net::reshape(V x, Shape shape) { return op(OpKind::Reshape, {x}, {{Attr::Shape, std::move(shape)}}); }
V Net::transpose(V x, Ints perm) { return op(OpKind::Transpose, {x}, {{Attr::Perm, std::move(perm)}}); }
V Net::swap_last(V x) {
  Ints perm(shape(x).size());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return transpose(x, perm);
}
V Net::expand(V x, Shape shape) { return op(OpKind::Expand, {x}, {{Attr::Shape, std::move(shape)}}); }
V Net::slice(V x, int64_t axis, int64_t start, int64_t size, int64_t step) {
  Ints sizes = shape(x), starts(sizes.size(), 0), steps(sizes.size(), 1);
  const auto at = static_cast<size_t>(axis < 0 ? axis + rank(x) : axis);
  sizes[at] = size, starts[at] = start, steps[at] = step;
  return op(OpKind::Slice, {x}, {{Attr::Starts, starts}, {Attr::Sizes, sizes}, {Attr::Steps, steps}});
}
V Net::concat(std::vector<V> parts, int64_t axis) {
  const int64_t at = axis < 0 ? axis + rank(parts[0]) : axis;
  return op(OpKind::Concat, std::move(parts), {{Attr::Axis, at}});
}
V Net::gather(V data, V indices, int64_t axis) {
  return op(OpKind::Gather, {data, indices}, {{Attr::Axis, axis}});
}
V Net::softmax(V x, int64_t axis) {
  return op(OpKind::Softmax, {x}, {{Attr::Axis, axis < 0 ? axis + rank(x) : axis}});
}
V Net::reduce(OpKind kind, V x, int64_t axis, bool keeps) {
  return op(kind, {x},
            {{Attr::Axes, Ints{axis < 0 ? axis + rank(x) : axis}}, {Attr::KeepDims, int64_t{keeps}}});
}
V Net::cast(V x, DType dtype) { return op(OpKind::Cast, {x}, {{Attr::DType, static_cast<int64_t>(dtype)}}); }

V Net::linear(V x, int64_t columns) {
  return add(matmul(x, weight({shape(x).back(), columns})), weight({columns}));
}
V Net::layer_norm(V x) {
  const int64_t width = shape(x).back();
  return op(OpKind::LayerNorm, {x, weight({width}, 0.2, 1), weight({width}, 0.1)},
            {{Attr::Axis, rank(x) - 1}, {Attr::Epsilon, 1e-5}});
}

Model Net::finish(V logits) {
  builder_.output("logits", logits, dag::OutputRole::Prediction);
  const dag::Graph graph = builder_.finish();
  return {std::make_shared<const dag::Graph>(dag::canonicalise(graph, dag::op_table()).value()),
          std::move(weights_)};
}

}  // namespace weft::incremental::testing
