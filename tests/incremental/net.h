// A language model in the making: ops by short names over a GraphBuilder, weights at random from a seed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::incremental::testing {

struct Model {
  std::shared_ptr<const dag::Graph> graph;  // canonicalised
  dag::Weights weights;
  std::string tokens = "tokens";
};

class Net {
 public:
  using V = dag::ValueId;
  // `batch`: tokens are [1, length], else [length].
  Net(int64_t length, bool batch, uint64_t seed);

  int64_t length() const { return length_; }
  V tokens() const { return tokens_; }
  dag::Shape shape(V x) const { return builder_.spec(x).shape; }
  int64_t rank(V x) const { return static_cast<int64_t>(shape(x).size()); }

  V op(dag::OpKind kind, std::vector<V> inputs, dag::Attributes attributes = {});
  std::vector<V> ops(dag::OpKind kind, std::vector<V> inputs, dag::Attributes attributes = {});
  V number(double value) { return builder_.scalar(dag::DType::F32, value); }
  V constant(dag::Tensor tensor) { return builder_.constant(std::move(tensor)); }
  // f32 of these elements.
  V constant(dag::Shape shape, const std::function<double(int64_t element)>& element);
  V weight(dag::Shape shape, double deviation = 0.3, double mean = 0);
  // An initializer with this value, or with none that anybody knows.
  V buffer(dag::Tensor tensor);
  V unknown_buffer(dag::TensorSpec spec);
  // [length, length] of f(row, key); `turned`: keys come first.
  V table(dag::DType dtype, bool turned, const std::function<double(int64_t row, int64_t key)>& f);

  V add(V a, V b) { return op(dag::OpKind::Add, {a, b}); }
  V sub(V a, V b) { return op(dag::OpKind::Sub, {a, b}); }
  V mul(V a, V b) { return op(dag::OpKind::Mul, {a, b}); }
  V div(V a, V b) { return op(dag::OpKind::Div, {a, b}); }
  V where(V condition, V yes, V no) { return op(dag::OpKind::Where, {condition, yes, no}); }
  V matmul(V a, V b, bool trans_a = false, bool trans_b = false);
  V reshape(V x, dag::Shape shape);
  V transpose(V x, dag::Ints perm);
  V swap_last(V x);
  V expand(V x, dag::Shape shape);
  V slice(V x, int64_t axis, int64_t start, int64_t size, int64_t step = 1);
  V concat(std::vector<V> parts, int64_t axis);
  V gather(V data, V indices, int64_t axis = 0);
  V softmax(V x, int64_t axis);
  V reduce(dag::OpKind kind, V x, int64_t axis, bool keeps = true);
  V cast(V x, dag::DType dtype);

  // x [.., n] times a new weight [n, columns], with a bias.
  V linear(V x, int64_t columns);
  V layer_norm(V x);

  // Spent after that. `logits`: its prediction.
  Model finish(V logits);

 private:
  std::string name() { return "w" + std::to_string(next_++); }
  int64_t length_;
  dag::GraphBuilder builder_;
  dag::Weights weights_;
  Rng rng_;
  V tokens_;
  int next_ = 0;
};

}  // namespace weft::incremental::testing
