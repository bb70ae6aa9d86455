#include "dag/autodiff.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace weft::dag {
namespace {

// Values whose cotangent somebody wants: those that a parameter, or a value another piece made, reaches
// through differentiable ops.
std::vector<bool> reached_by_parameters(const Graph& graph, const Border& border, const OpTable& table) {
  std::vector<bool> reached(graph.values().size(), false);
  for (const ValueId value : border.received) reached[value.index] = true;
  for (const Initializer& initializer : graph.initializers())
    if (initializer.role == InitializerRole::Parameter) reached[initializer.value.index] = true;
  for (const Op& op : graph.ops()) {
    if (table.row(op.kind).differentiability == Differentiability::Zero) continue;
    bool any = false;
    for (const ValueId input : op.inputs) any = any || (input.valid() && reached[input.index]);
    for (const ValueId output : op.outputs)
      if (any && is_float(graph.spec(output).dtype)) reached[output.index] = true;
  }
  return reached;
}

// Values that a cotangent can come back to, from the loss or from a use elsewhere.
std::vector<bool> reaching_loss(const Graph& graph, const Border& border, const OpTable& table,
                                ValueId loss) {
  std::vector<bool> reaching(graph.values().size(), false);
  if (loss.valid()) reaching[loss.index] = true;
  for (const Border::Term& term : border.terms) reaching[term.value.index] = true;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    if (table.row(op.kind).differentiability == Differentiability::Zero) continue;
    bool any = false;
    for (const ValueId output : op.outputs) any = any || reaching[output.index];
    if (any)
      for (const ValueId input : op.inputs)
        if (input.valid()) reaching[input.index] = true;
  }
  return reaching;
}

Status check_rules(const Graph& graph, const OpTable& table, const std::vector<bool>& active) {
  std::map<std::string, int> missing;
  for (const Op& op : graph.ops()) {
    if (op.inputs.empty() || table.row(op.kind).differentiability != Differentiability::Refused) continue;
    bool flows = false;
    for (const ValueId output : op.outputs) flows = flows || active[output.index];
    if (flows) ++missing[std::string(to_string(op.kind))];
  }
  if (missing.empty()) return {};
  std::string text = "no derivative for";
  for (const auto& [name, count] : missing) text += " " + name + " x" + std::to_string(count);
  return fail(ErrorCode::Unsupported, text + ": freeze the parameters before these ops, or replace the ops");
}

// The reverse walk. The forward graph is copied op for op first, so ids of ops and values stay what they
// were.
class Differentiation {
 public:
  Differentiation(const Graph& graph, const Border& border, const OpTable& table)
      : graph_(graph),
        border_(border),
        table_(table),
        copy_(graph, table),
        builder_(copy_.builder()),
        cotangents_(graph.values().size()),
        is_received_(graph.values().size(), false),
        remote_(graph.values().size()) {}

  Result<Graph> run(ValueId loss) {
    active_ = reaching_loss(graph_, border_, table_, loss);
    const std::vector<bool> reached = reached_by_parameters(graph_, border_, table_);
    for (size_t i = 0; i < active_.size(); ++i) active_[i] = active_[i] && reached[i];
    WEFT_TRY_STATUS(check_rules(graph_, table_, active_));
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) copy_.copy(OpId{i});
    copy_.copy_outputs();
    for (const auto& [name, value] : border_.sent)
      builder_.output(name, copy_.mapped(value), OutputRole::Activation);
    builder_.set_phase(Phase::Backward);
    for (const ValueId value : border_.received) is_received_[value.index] = true;
    take_in_terms();
    if (loss.valid() && active_[loss.index]) {
      builder_.set_origin(graph_.value(loss).producer);
      cotangents_[loss.index] =
          builder_.constant(from_doubles(graph_.spec(loss), std::vector<double>(1, 1.0)), "d loss");
    }
    // A piece may list its ops in another order than the whole; sums follow the whole's.
    std::vector<OpId> order;
    for (uint32_t i = static_cast<uint32_t>(graph_.ops().size()); i-- > 0;) order.push_back(OpId{i});
    std::stable_sort(order.begin(), order.end(),
                     [&](OpId a, OpId b) { return index_in_whole(a) > index_in_whole(b); });
    for (const OpId op : order) walk_back(op);
    for (const Initializer& initializer : graph_.initializers()) {
      const ValueId gradient = cotangents_[initializer.value.index];
      if (initializer.role == InitializerRole::Parameter && gradient.valid())
        builder_.output(initializer.name, gradient, OutputRole::Gradient);
    }
    return prune(copy_.finish(), table_);
  }

 private:
  struct Remote {
    Use use;
    ValueId input;
  };

  void take_in_terms() {
    for (const Border::Term& term : border_.terms) {
      builder_.set_origin(graph_.value(term.value).producer);
      remote_[term.value.index].push_back({term.use, builder_.input(term.name, graph_.spec(term.value))});
    }
    // In the order of the walk: ops from the last to the first, operands from the first on.
    for (auto& terms : remote_)
      std::stable_sort(terms.begin(), terms.end(), [](const Remote& a, const Remote& b) {
        return a.use.op != b.use.op ? a.use.op > b.use.op : a.use.operand < b.use.operand;
      });
  }

  void add_term(ValueId value, ValueId term) {
    ValueId& sum = cotangents_[value.index];
    builder_.set_origin(graph_.value(value).producer);
    sum = sum.valid() ? builder_.add(OpKind::Add, {sum, term}) : term;
  }

  // Adds the remote terms of `value` whose use stands behind the op at `index` of the whole.
  void add_remote_terms(ValueId value, int64_t index) {
    auto& terms = remote_[value.index];
    while (!terms.empty() && int64_t{terms.front().use.op} > index) {
      add_term(value, terms.front().input);
      terms.erase(terms.begin());
    }
  }

  uint32_t index_in_whole(OpId op) const {
    return border_.index_in_whole.empty() ? op.index : border_.index_in_whole[op.index];
  }

  void receive(ValueId value, ValueId term, Use use) {
    if (is_received_[value.index]) {
      builder_.output(term_name(use), term, OutputRole::Cotangent);
      return;
    }
    add_remote_terms(value, use.op);
    add_term(value, term);
  }

  void walk_back(OpId id) {
    const Op& op = graph_.op(id);
    std::vector<ValueId> output_cotangents;
    bool any_output = false;
    for (const ValueId output : op.outputs) {
      add_remote_terms(output, -1);  // all that are left: every use of this value has been passed
      output_cotangents.push_back(cotangents_[output.index]);
      any_output = any_output || output_cotangents.back().valid();
    }
    const OpRow& row = table_.row(op.kind);
    if (row.vjp == nullptr) return;
    std::vector<bool> wanted;
    bool any_input = false;
    for (const ValueId input : op.inputs) {
      wanted.push_back(input.valid() && active_[input.index]);
      any_input = any_input || wanted.back();
    }
    if (!any_output || !any_input) return;

    builder_.set_origin(id);
    VjpContext context(builder_, builder_.graph().op(id), std::move(output_cotangents));
    context.set_wanted(wanted);
    row.vjp(context);
    for (uint32_t k = 0; k < op.inputs.size(); ++k) {
      const ValueId term = context.input_cotangents()[k];
      if (!wanted[k] || !term.valid()) continue;
      WEFT_CHECK_MSG(builder_.spec(term) == graph_.spec(op.inputs[k]),
                     "a vjp returned another shape than its operand's");
      receive(op.inputs[k], term, {index_in_whole(id), k});
    }
  }

  const Graph& graph_;
  const Border& border_;
  const OpTable& table_;
  GraphCopy copy_;
  GraphBuilder& builder_;
  std::vector<ValueId> cotangents_;  // by forward value: the sum so far
  std::vector<bool> active_, is_received_;
  std::vector<std::vector<Remote>> remote_;  // by forward value: terms not yet added
};

}  // namespace

std::string term_name(const Use& use) {
  return "cotangent." + std::to_string(use.op) + "." + std::to_string(use.operand);
}

Result<Graph> differentiate(const Graph& graph, const OpTable& table) {
  const GraphOutput* loss = graph.find_output(OutputRole::Loss);
  if (!loss || graph.spec(loss->value).element_count() != 1 || !is_float(graph.spec(loss->value).dtype))
    return fail(ErrorCode::InvalidArgument,
                "the graph has no scalar float output of role loss to differentiate");
  return Differentiation(graph, {}, table).run(loss->value);
}

Result<Graph> differentiate_piece(const Graph& piece, const Border& border, const OpTable& table) {
  WEFT_CHECK(border.index_in_whole.size() == piece.ops().size());
  const GraphOutput* loss = piece.find_output(OutputRole::Loss);
  return Differentiation(piece, border, table).run(loss ? loss->value : ValueId{});
}

Graph prune(const Graph& graph, const OpTable& table) {
  std::vector<bool> needed(graph.ops().size(), false);
  for (const GraphOutput& output : graph.outputs()) needed[graph.value(output.value).producer.index] = true;
  for (const ValueId input : graph.inputs())
    needed[graph.value(input).producer.index] = true;  // the signature stays
  for (size_t i = graph.ops().size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const ValueId input : graph.ops()[i].inputs)
      if (input.valid()) needed[graph.value(input).producer.index] = true;
  }
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    if (needed[i]) copy.copy(OpId{i});
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
