// Random numbers, drawn as Dropout draws them: a function of the job's seed, the step, which node this is,
// and the element's place in the batch. A node's own `seed` is not looked at. Unlike Dropout these nodes draw
// in inference mode too.
#include <algorithm>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

// Attribute dtype, or `otherwise`.
Result<DType> dtype_attr(NodeContext& n, DType otherwise) {
  if (!n.has_attr("dtype")) return otherwise;
  const auto dtype =
      dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(n.int_attr("dtype", 0), -1, 1000)));
  if (!dtype) return n.refuse(dtype.error().code, dtype.error().message);
  return *dtype;
}

Result<Item> draw(NodeContext& n, OpKind kind, double a, double b, DType dtype, const Shape& shape) {
  if (!is_float(dtype)) return n.invalid("it would draw numbers of type " + std::string(to_string(dtype)));
  const int64_t key = n.state().draw_count++;
  return n.emit(kind, {n.scalar(dtype, a), n.scalar(dtype, b)}, {{Attr::Shape, shape}, {Attr::Key, key}});
}

Result<Item> draw_uniform(NodeContext& n, DType dtype, const Shape& shape) {
  const double low = n.float_attr("low", 0);
  return draw(n, OpKind::RandomUniform, low, n.float_attr("high", 1), dtype, shape);
}
Result<Item> draw_normal(NodeContext& n, DType dtype, const Shape& shape) {
  const double mean = n.float_attr("mean", 0);
  return draw(n, OpKind::RandomNormal, mean, n.float_attr("scale", 1), dtype, shape);
}

template <Result<Item> (*kDraw)(NodeContext&, DType, const Shape&)>
Status lower_shaped(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(0));
  if (!n.has_attr("shape")) return n.invalid("it has no attribute 'shape'");
  WEFT_TRY(const DType dtype, dtype_attr(n, DType::F32));
  return n.give(kDraw(n, dtype, n.ints_attr("shape")));
}
template <Result<Item> (*kDraw)(NodeContext&, DType, const Shape&)>
Status lower_like(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const DType dtype, dtype_attr(n, n.in(0).dtype()));
  return n.give(kDraw(n, dtype, n.in(0).shape()));
}

// 1 with probability x: a draw in [0, 1) lies below it.
Status lower_bernoulli(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  if (!is_float(x.dtype())) return n.invalid("its probabilities are " + to_string(x.spec));
  WEFT_TRY(const DType dtype, dtype_attr(n, x.dtype()));
  WEFT_TRY(const Item drawn, draw(n, OpKind::RandomUniform, 0, 1, DType::F32, x.shape()));
  WEFT_TRY(const Item probability, n.cast(x, DType::F32));
  WEFT_TRY(const Item hit, n.emit(OpKind::Less, {drawn, probability}));
  return n.give(n.cast(hit, dtype));
}

// Of logarithms of unnormalised probabilities [batch, classes]. The class whose logarithm plus a Gumbel draw
// is the largest is distributed as they say: sample_size such draws a row.
Status lower_multinomial(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t samples = n.int_attr("sample_size", 1);
  if (x.rank() != 2 || !is_float(x.dtype())) return n.invalid("x " + to_string(x.spec) + " is not a matrix");
  if (samples < 0 || samples > dag::kElementCountMax) return n.invalid("its sample_size is out of range");
  WEFT_TRY(const DType dtype, dtype_attr(n, DType::I32));
  const int64_t batch = x.shape()[0], classes = x.shape()[1];
  WEFT_TRY(Item logits, n.cast(x, DType::F32));
  WEFT_TRY(logits, n.reshape(logits, {batch, 1, classes}));
  // From above zero to below one, so that both logarithms are finite.
  WEFT_TRY(Item noise, draw(n, OpKind::RandomUniform, 0x1p-24, 1, DType::F32, {batch, samples, classes}));
  for (int times = 0; times < 2; ++times) {
    WEFT_TRY(noise, n.emit(OpKind::Log, {noise}));
    WEFT_TRY(noise, n.emit(OpKind::Neg, {noise}));
  }
  WEFT_TRY(const Item perturbed, n.emit(OpKind::Add, {logits, noise}));
  WEFT_TRY(const Item chosen,
           n.emit(OpKind::ArgMax, {perturbed}, {{Attr::Axis, int64_t{2}}, {Attr::KeepDims, int64_t{0}}}));
  return n.give(n.cast(chosen, dtype));
}

constexpr LowerRow kRandomRows[] = {
    {"RandomUniform", lower_shaped<draw_uniform>, kNoOperand},
    {"RandomNormal", lower_shaped<draw_normal>, kNoOperand},
    {"RandomUniformLike", lower_like<draw_uniform>, kNoOperand},
    {"RandomNormalLike", lower_like<draw_normal>, kNoOperand},
    {"Bernoulli", lower_bernoulli, kNoOperand},
    {"Multinomial", lower_multinomial, kNoOperand},
};

}  // namespace

std::span<const LowerRow> random_lowerings() { return kRandomRows; }

}  // namespace weft::onnx
