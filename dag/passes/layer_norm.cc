#include <map>

#include "dag/passes/canonicalise.h"
#include "dag/passes/pattern.h"

namespace weft::dag {
namespace {

struct Match {
  ValueId x, scale, bias;
  int64_t axis = 0;
  double epsilon = 0;
};

// Trailing dims of x, kept as ones: the first of them.
std::optional<int64_t> trailing_mean(const Graph& graph, const Op& op) {
  if (op.attributes.get_int(Attr::KeepDims) == 0) return std::nullopt;
  const Ints& axes = op.attributes.get_ints(Attr::Axes);
  const int64_t rank = graph.spec(op.inputs[0]).rank();
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[axes.size() - 1 - i] != rank - 1 - static_cast<int64_t>(i)) return std::nullopt;
  if (axes.empty()) return std::nullopt;
  return axes.front();
}

// value = x - mean(x)
struct Centred {
  ValueId x;
  int64_t axis = 0;
};
std::optional<Centred> match_centred(const Graph& graph, ValueId value) {
  const Op* sub = pattern::match(graph, value, OpKind::Sub);
  if (!sub) return std::nullopt;
  const Op* mean = pattern::match(graph, sub->inputs[1], OpKind::ReduceMean);
  if (!mean || mean->inputs[0] != sub->inputs[0]) return std::nullopt;
  const auto axis = trailing_mean(graph, *mean);
  if (!axis) return std::nullopt;
  return Centred{sub->inputs[0], *axis};
}

// value = y * y or y ^ 2
ValueId match_square(const Graph& graph, ValueId value) {
  if (const Op* mul = pattern::match(graph, value, OpKind::Mul); mul && mul->inputs[0] == mul->inputs[1])
    return mul->inputs[0];
  if (const Op* pow = pattern::match(graph, value, OpKind::Pow))
    if (const auto exponent = pattern::constant_scalar(graph, pow->inputs[1]); exponent && *exponent == 2)
      return pow->inputs[0];
  return {};
}

std::optional<Match> match_core(const Graph& graph, const Op& div) {
  const auto top = match_centred(graph, div.inputs[0]);
  if (!top || graph.spec(div.outputs[0]) != graph.spec(top->x)) return std::nullopt;
  const Op* sqrt = pattern::match(graph, div.inputs[1], OpKind::Sqrt);
  const Op* add = sqrt ? pattern::match(graph, sqrt->inputs[0], OpKind::Add) : nullptr;
  const auto shifted = add ? pattern::with_scalar(graph, *add) : std::nullopt;
  const Op* mean = shifted ? pattern::match(graph, shifted->other, OpKind::ReduceMean) : nullptr;
  if (!mean || trailing_mean(graph, *mean) != top->axis) return std::nullopt;
  // Some exporters compute the difference twice.
  const auto bottom = match_centred(graph, match_square(graph, mean->inputs[0]));
  if (!bottom || bottom->x != top->x || bottom->axis != top->axis || shifted->scalar < 0) return std::nullopt;
  return Match{top->x, {}, {}, top->axis, shifted->scalar};
}

// The other operand of `op` beside `value`, when it has the normalised dims' shape and type.
ValueId affine_operand(const Graph& graph, const Op& op, ValueId value, const Match& match) {
  const Shape& x = graph.spec(match.x).shape;
  const TensorSpec wanted{graph.spec(match.x).dtype, {x.begin() + match.axis, x.end()}};
  const ValueId other = op.inputs[0] == value ? op.inputs[1] : op.inputs[0];
  return other != value && graph.spec(other) == wanted ? other : ValueId{};
}

const Op* only_user(const Graph& graph, const std::vector<std::vector<OpId>>& users, ValueId value,
                    OpKind kind) {
  if (users[value.index].size() != 1) return nullptr;
  for (const GraphOutput& output : graph.outputs())
    if (output.value == value) return nullptr;
  const Op& user = graph.op(users[value.index][0]);
  return user.kind == kind ? &user : nullptr;
}

}  // namespace

Graph fuse_layer_norm(const Graph& graph, const OpTable& table) {
  const auto users = graph.users();
  std::map<ValueId, Match> matches;  // by the value that the whole pattern computes
  for (const Op& op : graph.ops()) {
    if (op.kind != OpKind::Div) continue;
    auto match = match_core(graph, op);
    if (!match) continue;
    ValueId result = op.outputs[0];
    if (const Op* mul = only_user(graph, users, result, OpKind::Mul)) {
      match->scale = affine_operand(graph, *mul, result, *match);
      if (match->scale.valid()) result = mul->outputs[0];
    }
    const Op* add = match->scale.valid() ? only_user(graph, users, result, OpKind::Add) : nullptr;
    if (add) {
      match->bias = affine_operand(graph, *add, result, *match);
      if (match->bias.valid()) result = add->outputs[0];
    }
    matches[result] = *match;
  }

  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const auto found = op.outputs.size() == 1 ? matches.find(op.outputs[0]) : matches.end();
    if (found == matches.end()) {
      copy.copy(OpId{i});
      continue;
    }
    const Match& match = found->second;
    std::vector<ValueId> operands{copy.mapped(match.x)};
    if (match.scale.valid()) operands.push_back(copy.mapped(match.scale));
    if (match.bias.valid()) operands.push_back(copy.mapped(match.bias));
    copy.builder().set_phase(op.phase);
    copy.builder().set_origin({});
    const ValueId y = copy.builder().add(OpKind::LayerNorm, std::move(operands),
                                         {{Attr::Axis, match.axis}, {Attr::Epsilon, match.epsilon}}, op.name);
    copy.builder().set_name(y, graph.value(op.outputs[0]).name);
    copy.map(op.outputs[0], y);
  }
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
