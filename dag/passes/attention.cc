#include "dag/passes/attention.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "dag/autodiff.h"
#include "dag/passes/pattern.h"

namespace weft::dag {
namespace {

struct Match {
  ValueId queries, keys, values, bias, keep;
  double alpha = 1, fill = 0;
  bool trans_b = false, zero_rows = false;
};

class Finder {
 public:
  Finder(const Graph& graph, const Weights& known, int64_t scores_min)
      : graph_(graph),
        known_(known),
        scores_min_(scores_min),
        users_(graph.users()),
        is_learnt_(graph.values().size()) {
    for (const GraphOutput& output : graph.outputs()) returned_.insert(output.value);
    for (const Initializer& initializer : graph.initializers())
      if (initializer.role == InitializerRole::Parameter) is_learnt_[initializer.value.index] = true;
    for (const Op& op : graph.ops()) {
      const bool learnt = std::any_of(op.inputs.begin(), op.inputs.end(),
                                      [&](ValueId v) { return v.valid() && is_learnt_[v.index]; });
      for (const ValueId output : op.outputs) is_learnt_[output.index] = is_learnt_[output.index] || learnt;
    }
  }

  // Of the product with the values.
  std::optional<Match> match(const Op& product) const {
    if (product.kind != OpKind::MatMul || has_flag(product, Attr::TransA) || has_flag(product, Attr::TransB))
      return std::nullopt;
    const ValueId guarded = before_guard(product.inputs[0]);
    const Op* softmax = guarded.valid() ? pattern::match(graph_, guarded, OpKind::Softmax)
                                        : alone(product.inputs[0], OpKind::Softmax);
    if (!softmax || softmax->attributes.get_int(Attr::Axis) != graph_.spec(softmax->outputs[0]).rank() - 1)
      return std::nullopt;
    Match match{.queries = {}, .keys = {}, .values = product.inputs[1], .bias = {}, .keep = {}};
    match.zero_rows = guarded.valid();
    ValueId scores = softmax->inputs[0];
    take_mask(scores, match);
    take_bias(scores, match);
    take_scale(scores, match);
    const Op* first = alone(scores, OpKind::MatMul);
    if (!first || has_flag(*first, Attr::TransA)) return std::nullopt;
    match.queries = first->inputs[0], match.keys = first->inputs[1];
    match.trans_b = has_flag(*first, Attr::TransB);
    return fits(match, graph_.spec(scores)) ? std::optional(match) : std::nullopt;
  }

 private:
  static bool has_flag(const Op& op, Attr flag) { return op.attributes.get_int(flag) != 0; }

  // What makes the value, where nobody but one op reads it.
  const Op* alone(ValueId value, OpKind kind) const {
    const Op* op = pattern::match(graph_, value, kind);
    return op && users_[value.index].size() == 1 && !returned_.contains(value) ? op : nullptr;
  }
  // The number that the value always is.
  std::optional<double> number(ValueId value) const {
    if (const Op* leaf = pattern::match(graph_, value, OpKind::Initializer))
      if (const auto found = known_.find(leaf->attributes.get_string(Attr::Name)); found != known_.end())
        if (is_float(found->second.dtype()) && found->second.element_count() == 1)
          return to_doubles(found->second)[0];
    return pattern::constant_scalar(graph_, value);
  }
  bool stays(ValueId value, ValueId of) const { return graph_.spec(value) == graph_.spec(of); }

  // What Where(IsNaN(p), 0, p) guards, as exporters write it for rows of which a mask keeps nothing.
  ValueId before_guard(ValueId value) const {
    const Op* where = alone(value, OpKind::Where);
    if (!where || number(where->inputs[1]) != 0.0) return {};
    const ValueId weights = where->inputs[2];
    const Op* is_nan = alone(where->inputs[0], OpKind::IsNaN);
    if (!is_nan || is_nan->inputs[0] != weights || !stays(weights, value)) return {};
    return users_[weights.index].size() == 2 && !returned_.contains(weights) ? weights : ValueId{};
  }

  void take_mask(ValueId& scores, Match& match) const {
    const Op* where = alone(scores, OpKind::Where);
    const auto fill = where ? number(where->inputs[2]) : std::nullopt;
    if (!fill || !stays(where->inputs[1], scores)) return;
    match.keep = where->inputs[0];
    match.fill = *fill;
    scores = where->inputs[1];
  }
  // The operand that is made of a product, or of its multiple, is the scores.
  void take_bias(ValueId& scores, Match& match) const {
    const Op* add = alone(scores, OpKind::Add);
    if (!add) return;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId own = add->inputs[i], bias = add->inputs[1 - i];
      const bool is_made = alone(own, OpKind::MatMul) || alone(own, OpKind::Mul) || alone(own, OpKind::Div);
      if (!is_made || !stays(own, scores) || is_learnt_[bias.index]) continue;
      match.bias = bias;
      scores = own;
      return;
    }
  }
  void take_scale(ValueId& scores, Match& match) const {
    for (const OpKind kind : {OpKind::Mul, OpKind::Div}) {
      const Op* op = alone(scores, kind);
      if (!op) continue;
      const bool is_first = kind == OpKind::Mul && number(op->inputs[0]);
      const ValueId other = op->inputs[is_first ? 1 : 0];
      const auto factor = number(op->inputs[is_first ? 0 : 1]);
      if (!factor || !stays(other, scores)) continue;
      match.alpha = kind == OpKind::Div ? 1 / *factor : *factor;
      scores = other;
      return;
    }
  }

  bool fits(const Match& match, const TensorSpec& scores) const {
    const Shape &q = graph_.spec(match.queries).shape, &k = graph_.spec(match.keys).shape,
                &v = graph_.spec(match.values).shape;
    if (scores.dtype != DType::F32 || q.size() != k.size() || q.size() != v.size()) return false;
    const int64_t queries = scores.shape[scores.shape.size() - 2], keys = scores.shape.back();
    if (keys == 0 || queries * keys < scores_min_) return false;
    const auto leads_equal = [&](const Shape& other) {
      return std::equal(q.begin(), q.end() - 2, other.begin(), other.end() - 2);
    };
    return leads_equal(k) && leads_equal(v);
  }

  const Graph& graph_;
  const Weights& known_;
  const int64_t scores_min_;
  const std::vector<std::vector<OpId>> users_;
  std::vector<bool> is_learnt_;  // by value: a parameter is in it
  std::set<ValueId> returned_;
};

}  // namespace

Graph fuse_attention(const Graph& graph, const Weights& known, int64_t scores_min, const OpTable& table) {
  const Finder finder(graph, known, scores_min);
  GraphCopy copy(graph, table);
  bool is_changed = false;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const auto match = finder.match(op);
    if (!match) {
      copy.copy(OpId{i});
      continue;
    }
    is_changed = true;
    std::vector<ValueId> inputs;
    for (const ValueId value : {match->queries, match->keys, match->values, match->bias, match->keep})
      inputs.push_back(copy.mapped(value));
    while (!inputs.back().valid()) inputs.pop_back();
    Attributes attributes{{Attr::Alpha, match->alpha}, {Attr::TransB, int64_t{match->trans_b}}};
    if (match->keep.valid()) attributes.set(Attr::Value, match->fill);
    if (match->zero_rows) attributes.set(Attr::ZeroRows, int64_t{1});
    copy.builder().set_phase(op.phase);
    copy.builder().set_origin({});
    const ValueId result =
        copy.builder().add(OpKind::Attention, std::move(inputs), std::move(attributes), op.name);
    copy.builder().set_name(result, graph.value(op.outputs[0]).name);
    copy.map(op.outputs[0], result);
  }
  copy.copy_outputs();
  return is_changed ? prune(copy.finish(), table) : graph;
}

}  // namespace weft::dag
