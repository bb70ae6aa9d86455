// Layers that hand a state from one call to the next: linear attention, whose state is a matrix for each
// head, and the causal convolution before it, whose state is the end of its input. A call is written out step
// by step; what it begins with and ends with are ordinary operands and results.
#include <cmath>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

// ---- CausalConvWithState ----

Result<Item> silu(NodeContext& n, const Item& x) {
  WEFT_TRY(const Item gate, n.emit(OpKind::Sigmoid, {x}));
  return n.emit(OpKind::Mul, {x, gate});
}

// x [batch, channels, length] behind the state, or behind zeros: `width` places more.
Result<Item> with_past(NodeContext& n, const Item& x, size_t past, int64_t width) {
  if (width == 0 && !n.has(past)) return x;
  const Shape shape{x.shape()[0], x.shape()[1], width};
  WEFT_TRY(const Item before, n.has(past) ? n.cast(n.in(past), x.dtype()) : n.expand(n.like(x, 0), shape));
  if (before.shape() != shape)
    return n.invalid("its state is " + to_string(before.spec) + ", want " + to_string(shape));
  if (width == 0) return x;
  return n.emit(OpKind::Concat, {before, x}, {{Attr::Axis, int64_t{2}}});
}

// x, weight [channels, 1, width], bias?, past [batch, channels, width - 1]? -> y, the last width - 1 places.
Status lower_causal_conv(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item &x = n.in(0), &w = n.in(1);
  if (x.rank() != 3 || w.rank() != 3 || w.shape() != Shape{x.shape()[1], 1, w.shape()[2]} || w.shape()[2] < 1)
    return n.invalid("x " + to_string(x.spec) + " and w " + to_string(w.spec) + " do not go together");
  const std::string activation = n.string_attr("activation", "none");
  const bool gated = activation == "silu" || activation == "swish";
  if (!gated && activation != "none" && !activation.empty())
    return n.unsupported("activation '" + activation.substr(0, 32) + "'");
  const int64_t width = w.shape()[2] - 1;
  WEFT_TRY(const Item padded, with_past(n, x, 3, width));
  Items operands{padded, w};
  if (n.has(2)) operands.push_back(n.in(2));
  WEFT_TRY(Item y, n.emit(OpKind::Conv, std::move(operands),
                          {{Attr::Strides, Ints{1}},
                           {Attr::Dilations, Ints{1}},
                           {Attr::Pads, Ints{0, 0}},
                           {Attr::Groups, x.shape()[1]}}));
  if (gated) {
    WEFT_TRY(y, silu(n, y));
  }
  if (n.wants(1)) {
    WEFT_TRY(Item state, n.slice(padded, 2, padded.shape()[2] - width, width));
    WEFT_TRY(state, n.cast(state, n.has(3) ? n.in(3).dtype() : x.dtype()));
    n.out(1, std::move(state));
  }
  return n.give(std::move(y));
}

// ---- LinearAttention ----

// For each head of keys and values, in float32. What has no place for a head or a key's dim has 1 there.
struct Recurrence {
  int64_t batch = 0, steps = 0, heads = 0, group = 0, keys = 0, values = 0;
  Item q;                           // [B, T, heads, group, keys], scaled
  Item k, v;                        // [B, T, heads, 1, keys or values]
  Item state;                       // [B, heads, keys, values]
  std::optional<Item> decay, rate;  // [B, T, heads, keys or 1, 1], [B, T, heads or 1, 1, 1]
};

// Operand i [B, T, heads * each] as [B, T, heads, a, b].
Result<Item> unpacked(NodeContext& n, size_t i, const Recurrence& r, int64_t heads, int64_t a, int64_t b) {
  const Item& x = n.in(i);
  if (x.shape() != Shape{r.batch, r.steps, heads * a * b})
    return n.invalid("operand " + std::to_string(i) + " is " + to_string(x.spec) + ", want " +
                     to_string(Shape{r.batch, r.steps, heads * a * b}));
  WEFT_TRY(const Item wide, n.cast(x, DType::F32));
  return n.reshape(wide, {r.batch, r.steps, heads, a, b});
}

struct Rule {
  bool gated, delta;
};
Result<Rule> read_rule(NodeContext& n) {
  const std::string name = n.string_attr("update_rule", "gated_delta");
  const Rule rule{name == "gated" || name == "gated_delta", name == "delta" || name == "gated_delta"};
  if (!rule.gated && !rule.delta && name != "linear")
    return n.unsupported("update_rule '" + name.substr(0, 32) + "'");
  if (n.has(4) != rule.gated)
    return n.invalid("update_rule " + name + (rule.gated ? " needs a decay" : " has no decay"));
  if (n.has(5) != rule.delta)
    return n.invalid("update_rule " + name + (rule.delta ? " needs a rate" : " has no rate"));
  if (n.has(6)) return n.unsupported("an erase gate");
  return rule;
}

Status read_sizes(NodeContext& n, Recurrence& r) {
  for (size_t i = 0; i < 3; ++i)
    if (n.in(i).rank() != 3 || !is_float(n.in(i).dtype()))
      return n.invalid("operand " + std::to_string(i) + " is " + to_string(n.in(i).spec));
  const int64_t queries = n.int_attr("q_num_heads", 0);
  r.heads = n.int_attr("kv_num_heads", 0);
  r.batch = n.in(0).shape()[0];
  r.steps = n.in(0).shape()[1];
  const int64_t width = n.in(0).shape()[2], value_width = n.in(2).shape()[2];
  if (queries < 1 || r.heads < 1 || queries % r.heads != 0 || width % queries != 0 ||
      value_width % r.heads != 0)
    return n.invalid("q_num_heads " + std::to_string(queries) + " and kv_num_heads " +
                     std::to_string(r.heads) + " do not divide " + to_string(n.in(0).spec) + " and " +
                     to_string(n.in(2).spec));
  r.group = queries / r.heads;
  r.keys = width / queries;
  r.values = value_width / r.heads;
  if (r.keys < 1 || r.values < 1 || r.steps < 1) return n.invalid("it has no element");
  return {};
}

Status read_gates(NodeContext& n, const Rule& rule, Recurrence& r) {
  if (rule.gated) {
    const bool each = n.in(4).rank() == 3 && n.in(4).shape()[2] != r.heads;
    WEFT_TRY(Item decay, unpacked(n, 4, r, r.heads, each ? r.keys : 1, 1));
    WEFT_TRY(decay, n.emit(OpKind::Exp, {decay}));
    r.decay = std::move(decay);
  }
  if (rule.delta) {
    const bool shared = n.in(5).rank() == 3 && n.in(5).shape()[2] == 1;
    WEFT_TRY(Item rate, unpacked(n, 5, r, shared ? 1 : r.heads, 1, 1));
    r.rate = std::move(rate);
  }
  return {};
}

Result<Recurrence> read_recurrence(NodeContext& n) {
  Recurrence r;
  WEFT_TRY(const Rule rule, read_rule(n));
  WEFT_TRY_STATUS(read_sizes(n, r));
  WEFT_TRY_STATUS(n.attribute_status());
  const double given = n.float_attr("scale", 0);
  WEFT_TRY(r.q, unpacked(n, 0, r, r.heads, r.group, r.keys));
  const double scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(r.keys));
  WEFT_TRY(r.q, n.emit(OpKind::Mul, {r.q, n.like(r.q, scale)}));
  WEFT_TRY(r.k, unpacked(n, 1, r, r.heads, 1, r.keys));
  WEFT_TRY(r.v, unpacked(n, 2, r, r.heads, 1, r.values));
  WEFT_TRY_STATUS(read_gates(n, rule, r));
  const Shape state{r.batch, r.heads, r.keys, r.values};
  WEFT_TRY(r.state, n.has(3) ? n.cast(n.in(3), DType::F32) : n.expand(n.scalar(DType::F32, 0), state));
  if (r.state.shape() != state)
    return n.invalid("its state is " + to_string(r.state.spec) + ", want " + to_string(state));
  return r;
}

// Step t of x [B, T, ..]: without the dim of steps.
Result<Item> at_step(NodeContext& n, const Item& x, int64_t t) {
  WEFT_TRY(const Item part, n.slice(x, 1, t, 1));
  Shape shape = x.shape();
  shape.erase(shape.begin() + 1);
  return n.reshape(part, shape);
}

// The state decays, what it holds under the key is corrected towards the value, and the query reads it.
Result<Item> step(NodeContext& n, Recurrence& r, int64_t t) {
  WEFT_TRY(const Item q, at_step(n, r.q, t));
  WEFT_TRY(const Item k, at_step(n, r.k, t));
  WEFT_TRY(Item v, at_step(n, r.v, t));
  if (r.decay) {
    WEFT_TRY(const Item decay, at_step(n, *r.decay, t));
    WEFT_TRY(r.state, n.emit(OpKind::Mul, {r.state, decay}));
  }
  if (r.rate) {
    WEFT_TRY(const Item held, n.emit(OpKind::MatMul, {k, r.state}));
    WEFT_TRY(const Item rate, at_step(n, *r.rate, t));
    WEFT_TRY(v, n.emit(OpKind::Sub, {v, held}));
    WEFT_TRY(v, n.emit(OpKind::Mul, {v, rate}));
  }
  WEFT_TRY(const Item written, n.emit(OpKind::MatMul, {k, v}, {{Attr::TransA, int64_t{1}}}));
  WEFT_TRY(r.state, n.emit(OpKind::Add, {r.state, written}));
  WEFT_TRY(const Item y, n.emit(OpKind::MatMul, {q, r.state}));
  return n.reshape(y, {r.batch, 1, r.heads * r.group * r.values});
}

// query, key, value, past state?, decay?, rate? -> what the queries read, the state behind the last step.
Status lower_linear_attention(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  WEFT_TRY(Recurrence r, read_recurrence(n));
  int64_t& left = n.state().unrolled_left;
  left -= std::min(left, r.steps);
  if (left == 0)
    return n.refuse(ErrorCode::ResourceExhausted,
                    "its " + std::to_string(r.steps) + " steps would become too many ops; at most " +
                        std::to_string(n.options().limits.unrolled_node_count_max) +
                        " steps of a model are written out");
  Items parts;
  for (int64_t t = 0; t < r.steps; ++t) {
    WEFT_TRY(Item part, step(n, r, t));
    parts.push_back(std::move(part));
  }
  Item y = parts.front();
  if (parts.size() > 1) {
    WEFT_TRY(y, n.emit(OpKind::Concat, std::move(parts), {{Attr::Axis, int64_t{1}}}));
  }
  if (n.wants(1)) {
    WEFT_TRY(Item state, n.cast(r.state, n.has(3) ? n.in(3).dtype() : n.in(0).dtype()));
    n.out(1, std::move(state));
  }
  return n.give(n.cast(y, n.in(0).dtype()));
}

constexpr LowerRow kStateRows[] = {
    {"CausalConvWithState", lower_causal_conv},
    {"LinearAttention", lower_linear_attention},
};

}  // namespace

std::span<const LowerRow> state_lowerings() { return kStateRows; }

}  // namespace weft::onnx
