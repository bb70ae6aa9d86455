#include <algorithm>
#include <numbers>

#include "dag/passes/canonicalise.h"
#include "dag/passes/pattern.h"

namespace weft::dag {
namespace {

// A product taken apart: a number times values. Values in `whole` are not taken apart further.
struct Product {
  double number = 1;
  std::vector<ValueId> factors;
};

void take_apart(const Graph& graph, ValueId value, const std::vector<ValueId>& whole, int depth,
                Product& product) {
  if (const auto number = pattern::constant_scalar(graph, value)) {
    product.number *= *number;
    return;
  }
  const bool stop = depth == 0 || std::find(whole.begin(), whole.end(), value) != whole.end();
  if (!stop) {
    if (const Op* mul = pattern::match(graph, value, OpKind::Mul)) {
      for (const ValueId operand : mul->inputs) take_apart(graph, operand, whole, depth - 1, product);
      return;
    }
    if (const Op* div = pattern::match(graph, value, OpKind::Div))
      if (const auto number = pattern::constant_scalar(graph, div->inputs[1]); number && *number != 0) {
        take_apart(graph, div->inputs[0], whole, depth - 1, product);
        product.number /= *number;
        return;
      }
    if (const Op* pow = pattern::match(graph, value, OpKind::Pow))
      if (const auto exponent = pattern::constant_scalar(graph, pow->inputs[1]);
          exponent && (*exponent == 2 || *exponent == 3)) {
        for (int i = 0; i < static_cast<int>(*exponent); ++i)
          take_apart(graph, pow->inputs[0], whole, depth - 1, product);
        return;
      }
  }
  product.factors.push_back(value);
}
Product take_apart(const Graph& graph, ValueId value, const std::vector<ValueId>& whole) {
  Product product;
  take_apart(graph, value, whole, 4, product);
  return product;
}

bool all_are(const std::vector<ValueId>& factors, ValueId value, size_t count) {
  return factors.size() == count &&
         std::all_of(factors.begin(), factors.end(), [&](ValueId f) { return f == value; });
}

// value = number * x for a number near `number`: x.
ValueId match_scaled(const Graph& graph, ValueId value, double number) {
  const Op& op = graph.producer(value);
  if (op.kind != OpKind::Mul && op.kind != OpKind::Div) return {};
  const auto scaled = pattern::with_scalar(graph, op);
  if (!scaled || (op.kind == OpKind::Div && op.inputs[0] != scaled->other)) return {};
  const double factor = op.kind == OpKind::Mul ? scaled->scalar : 1 / scaled->scalar;
  return pattern::is_about(factor, number) ? scaled->other : ValueId{};
}

// value = x + 0.044715 x^3, as a sum or as x (1 + 0.044715 x^2)
ValueId match_cubic(const Graph& graph, ValueId value) {
  constexpr double kCubic = 0.044715;
  if (const Op* add = pattern::match(graph, value, OpKind::Add))
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId x = add->inputs[i];
      const Product cube = take_apart(graph, add->inputs[1 - i], {x});
      if (pattern::is_about(cube.number, kCubic) && all_are(cube.factors, x, 3)) return x;
    }
  if (const Op* mul = pattern::match(graph, value, OpKind::Mul))
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId x = mul->inputs[i];
      const Op* add = pattern::match(graph, mul->inputs[1 - i], OpKind::Add);
      const auto one = add ? pattern::with_scalar(graph, *add) : std::nullopt;
      if (!one || one->scalar != 1) continue;
      const Product square = take_apart(graph, one->other, {x});
      if (pattern::is_about(square.number, kCubic) && all_are(square.factors, x, 2)) return x;
    }
  return {};
}

struct Match {
  ValueId x;
  bool tanh = false;
};

// value = 1 + erf(..x..) or 1 + tanh(..x..)
std::optional<Match> match_gate(const Graph& graph, ValueId value) {
  const Op* add = pattern::match(graph, value, OpKind::Add);
  const auto one = add ? pattern::with_scalar(graph, *add) : std::nullopt;
  if (!one || one->scalar != 1) return std::nullopt;
  if (const Op* erf = pattern::match(graph, one->other, OpKind::Erf)) {
    const ValueId x = match_scaled(graph, erf->inputs[0], std::numbers::sqrt2 / 2);
    return x.valid() ? std::optional(Match{x, false}) : std::nullopt;
  }
  if (const Op* tanh = pattern::match(graph, one->other, OpKind::Tanh)) {
    const ValueId inner = match_scaled(graph, tanh->inputs[0], std::sqrt(2 / std::numbers::pi));
    const ValueId x = inner.valid() ? match_cubic(graph, inner) : ValueId{};
    return x.valid() ? std::optional(Match{x, true}) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<Match> match_gelu(const Graph& graph, const Op& op) {
  // First find the gate, so that x is known and not taken apart itself.
  for (const ValueId factor : take_apart(graph, op.outputs[0], {}).factors) {
    const auto gate = match_gate(graph, factor);
    if (!gate || graph.spec(gate->x) != graph.spec(op.outputs[0])) continue;
    const Product product = take_apart(graph, op.outputs[0], {factor, gate->x});
    if (!pattern::is_about(product.number, 0.5) || product.factors.size() != 2) continue;
    const bool both =
        std::find(product.factors.begin(), product.factors.end(), gate->x) != product.factors.end() &&
        std::find(product.factors.begin(), product.factors.end(), factor) != product.factors.end();
    if (both) return gate;
  }
  return std::nullopt;
}

}  // namespace

Graph fuse_gelu(const Graph& graph, const OpTable& table) {
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const bool product = op.kind == OpKind::Mul || op.kind == OpKind::Div;
    const auto match = product ? match_gelu(graph, op) : std::nullopt;
    if (!match) {
      copy.copy(OpId{i});
      continue;
    }
    copy.builder().set_phase(op.phase);
    copy.builder().set_origin({});
    const ValueId y = copy.builder().add(OpKind::Gelu, {copy.mapped(match->x)},
                                         {{Attr::Approximate, int64_t{match->tanh}}}, op.name);
    copy.builder().set_name(y, graph.value(op.outputs[0]).name);
    copy.map(op.outputs[0], y);
  }
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
