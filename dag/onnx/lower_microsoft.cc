// Operators of the domain com.microsoft that exporters and graph optimisers write, in terms of the table's
// ops. What changes their result and is not known here is refused by name.
#include <algorithm>
#include <cmath>

#include "dag/onnx/lowering.h"
#include "dag/onnx/microsoft.h"

namespace weft::onnx {

Status need_ints(NodeContext& n, std::initializer_list<std::pair<const char*, int64_t>> neutral) {
  for (const auto& [name, value] : neutral)
    if (const int64_t given = n.int_attr(name, value); given != value)
      return n.unsupported("attribute " + std::string(name) + " = " + std::to_string(given));
  return n.attribute_status();
}

Status need_absent(NodeContext& n, std::initializer_list<std::pair<size_t, const char*>> operands) {
  for (const auto& [i, what] : operands)
    if (n.has(i)) return n.unsupported("operand " + std::to_string(i) + ", " + what);
  return {};
}

Result<Item> add_if_there(NodeContext& n, const Item& x, size_t operand) {
  if (!n.has(operand)) return x;
  return n.emit(OpKind::Add, {x, n.in(operand)});
}

namespace {

// The operator of ONNX's own that does the same, with the same attributes and operands.
Status lower_as(NodeContext& n, std::string_view op_type) {
  const LowerRow* row = find_lowering("", op_type);
  WEFT_CHECK(row != nullptr);
  return row->lower(n);
}

// ---- activations ----

Result<Item> gelu(NodeContext& n, const Item& x, bool approximate) {
  return n.emit(OpKind::Gelu, {x}, {{Attr::Approximate, int64_t{approximate}}});
}
Status lower_gelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(gelu(n, n.in(0), false));
}
Status lower_bias_gelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const Item x, add_if_there(n, n.in(0), 1));
  return n.give(gelu(n, x, false));
}
Status lower_fast_gelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const Item x, add_if_there(n, n.in(0), 1));
  return n.give(gelu(n, x, true));
}
Status lower_quick_gelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(Item gate, n.emit(OpKind::Mul, {x, n.like(x, n.float_attr("alpha", 1.702))}));
  WEFT_TRY(gate, n.emit(OpKind::Sigmoid, {gate}));
  return n.give(n.emit(OpKind::Mul, {x, gate}));
}
Status lower_bias_add(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const Item x, add_if_there(n, n.in(0), 1));
  return n.give(add_if_there(n, x, 2));
}

Result<Item> activated(NodeContext& n, const Item& x, const std::string& name) {
  if (name.empty()) return x;
  if (name == "Relu") return n.emit(OpKind::Relu, {x});
  if (name == "Sigmoid") return n.emit(OpKind::Sigmoid, {x});
  if (name == "Tanh") return n.emit(OpKind::Tanh, {x});
  if (name == "LeakyRelu") {
    const auto parameters = n.floats_attr("activation_params");
    const double slope = parameters.empty() ? n.float_attr("activation_alpha", 0.01) : parameters[0];
    WEFT_TRY(const Item negative, n.emit(OpKind::Less, {x, n.like(x, 0)}));
    WEFT_TRY(const Item scaled, n.emit(OpKind::Mul, {x, n.like(x, slope)}));
    return n.emit(OpKind::Where, {negative, scaled, x});
  }
  return n.unsupported("activation '" + name.substr(0, 32) + "'");
}

// ---- products ----

Status lower_fused_matmul(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY_STATUS(need_ints(n, {{"transBatchA", 0}, {"transBatchB", 0}}));
  const double alpha = n.float_attr("alpha", 1);
  const int64_t trans_a = n.int_attr("transA", 0) != 0;
  const int64_t trans_b = n.int_attr("transB", 0) != 0;
  WEFT_TRY(const Item y,
           n.emit(OpKind::MatMul, {n.in(0), n.in(1)}, {{Attr::TransA, trans_a}, {Attr::TransB, trans_b}}));
  if (alpha == 1) return n.give(y);
  return n.give(n.emit(OpKind::Mul, {y, n.like(y, alpha)}));
}

// `added`: the operand that is added before the activation, when there is one.
Status lower_fused(NodeContext& n, std::string_view op_type, size_t added) {
  WEFT_TRY_STATUS(lower_as(n, op_type));
  if (n.outputs().empty() || !n.outputs()[0]) return n.invalid("it has no output");
  const Item product = *n.outputs()[0];
  WEFT_TRY(const Item y, add_if_there(n, product, added));
  return n.give(activated(n, y, n.string_attr("activation", "")));
}
Status lower_fused_gemm(NodeContext& n) { return lower_fused(n, "Gemm", 3); }
Status lower_fused_conv(NodeContext& n) { return lower_fused(n, "Conv", 3); }

// ---- normalisation ----

Result<Item> layer_norm(NodeContext& n, const Item& x, size_t scale, size_t bias, double epsilon,
                        Items& statistics) {
  Items operands{x};
  for (const size_t i : {scale, bias}) {
    if (!n.has(i)) break;
    operands.push_back(n.in(i));
  }
  Items results;
  WEFT_TRY(results, n.emit_all(OpKind::LayerNorm, std::move(operands),
                               {{Attr::Axis, x.rank() - 1}, {Attr::Epsilon, epsilon}}));
  statistics = {results[1], results[2]};
  return results[0];
}

Result<double> epsilon_of(NodeContext& n, double otherwise) {
  const double epsilon = n.float_attr("epsilon", otherwise);
  if (!(epsilon >= 0)) return n.invalid("epsilon is negative");
  return epsilon;
}

// input + skip + bias, whose sum is a result too.
Result<Item> skip_sum(NodeContext& n, size_t bias) {
  if (n.in(0).rank() < 1) return n.invalid("its input is a scalar");
  WEFT_TRY(const Item sum, n.emit(OpKind::Add, {n.in(0), n.in(1)}));
  WEFT_TRY(Item biased, add_if_there(n, sum, bias));
  if (n.wants(3)) n.out(3, biased);
  return biased;
}

Status lower_skip_layer_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  WEFT_TRY(const double epsilon, epsilon_of(n, 1e-12));
  WEFT_TRY(const Item x, skip_sum(n, 4));
  Items statistics;
  WEFT_TRY(Item y, layer_norm(n, x, 2, 3, epsilon, statistics));
  for (size_t i = 0; i < 2; ++i)
    if (n.wants(1 + i)) n.out(1 + i, statistics[i]);
  return n.give(std::move(y));
}

Status rms(NodeContext& n, const Item& x, size_t scale, int64_t axis, double epsilon, size_t inverse) {
  WEFT_TRY(RmsNorm norm, rms_norm(n, x, axis, epsilon));
  if (n.wants(inverse)) n.out(inverse, norm.inverse);
  return n.give(n.emit(OpKind::Mul, {norm.y, n.in(scale)}));
}
Status lower_skip_rms_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  WEFT_TRY(const double epsilon, epsilon_of(n, 1e-12));
  WEFT_TRY(const Item x, skip_sum(n, 3));
  return rms(n, x, 2, x.rank() - 1, epsilon, 2);
}
Status lower_simplified_layer_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const double epsilon, epsilon_of(n, 1e-5));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, n.in(0).rank()));
  return rms(n, n.in(0), 1, axis, epsilon, 1);
}
Status lower_layer_norm(NodeContext& n) { return lower_as(n, "LayerNormalization"); }

Result<Item> gathered(NodeContext& n, size_t table, size_t indices) {
  return n.emit(OpKind::Gather, {n.in(table), n.in(indices)}, {{Attr::Axis, int64_t{0}}});
}

// ids, segments?, word table, position table, segment table?, scale, bias, mask?, positions?
Status lower_embed_layer_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  for (const size_t i : {0u, 2u, 3u, 5u, 6u})
    if (!n.has(i)) return n.invalid("operand " + std::to_string(i) + " is missing");
  if (n.in(0).rank() != 2 || n.in(3).rank() != 2)
    return n.invalid("its ids or positions are not of two dims");
  if (n.wants(1)) return n.unsupported("its mask index is read");
  WEFT_TRY(const double epsilon, epsilon_of(n, 1e-12));
  WEFT_TRY(Item sum, gathered(n, 2, 0));
  WEFT_TRY(Item place, n.has(8) ? gathered(n, 3, 8) : n.slice(n.in(3), 0, 0, n.in(0).shape()[1]));
  WEFT_TRY(sum, n.emit(OpKind::Add, {sum, place}));
  if (n.has(1) && n.has(4)) {
    WEFT_TRY(const Item segment, gathered(n, 4, 1));
    WEFT_TRY(sum, n.emit(OpKind::Add, {sum, segment}));
  }
  if (n.wants(2)) n.out(2, sum);
  Items statistics;
  return n.give(layer_norm(n, sum, 5, 6, epsilon, statistics));
}

constexpr LowerRow kMicrosoftRows[] = {
    {"Gelu", lower_gelu},
    {"BiasGelu", lower_bias_gelu},
    {"FastGelu", lower_fast_gelu},
    {"QuickGelu", lower_quick_gelu},
    {"BiasAdd", lower_bias_add},
    {"FusedMatMul", lower_fused_matmul},
    {"TransposeMatMul", lower_fused_matmul},
    {"FusedGemm", lower_fused_gemm},
    {"FusedConv", lower_fused_conv},
    {"SkipLayerNormalization", lower_skip_layer_norm},
    {"SkipSimplifiedLayerNormalization", lower_skip_rms_norm},
    {"SimplifiedLayerNormalization", lower_simplified_layer_norm},
    {"LayerNormalization", lower_layer_norm},
    {"EmbedLayerNormalization", lower_embed_layer_norm, operands(2, 3, 4, 5, 6)},
    {"Attention", lower_packed_attention, operands(0, 1, 2, 5)},
    {"MultiHeadAttention", lower_multi_head_attention, operands(0, 1, 2, 3, 5, 6, 7)},
    // Tables of angles are not trained.
    {"GroupQueryAttention", lower_group_query_attention, operands(0, 1, 2, 10)},
    {"RotaryEmbedding", lower_rotary, operands(0)},
};

}  // namespace

std::span<const LowerRow> microsoft_lowerings() { return kMicrosoftRows; }

}  // namespace weft::onnx
