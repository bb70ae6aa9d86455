#include "dag/lower.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>

#include "dag/once_a_step.h"

namespace weft::dag {
namespace {

// Bounds of one fusion group: what a kernel keeps in registers and cache.
constexpr int kGroupOpsMax = 24;
constexpr int kGroupInputsMax = 12;

// ---- layouts

// Walks the graph once, giving each value a layout and each operand a Reorder where its layout is not the
// wanted one.
class LayoutPass {
 public:
  LayoutPass(const Graph& graph, const OpTable& table, Layout blocked)
      : graph_(graph),
        table_(table),
        copy_(graph, table),
        blocked_(blocked),
        layouts_(graph.values().size(), Layout::Plain) {}

  // Without source_op and put_in.
  Lowered run() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) visit(OpId{i});
    for (const GraphOutput& output : graph_.outputs())
      copy_.builder().output(output.name, in_layout(copy_.mapped(output.value), Layout::Plain), output.role);
    Lowered lowered;
    lowered.op_of = std::move(ops_);
    for (uint32_t v = 0; v < graph_.values().size(); ++v) lowered.value_of.push_back(copy_.mapped({v}));
    lowered.graph = copy_.finish();
    return lowered;
  }

 private:
  ValueId in_layout(ValueId value, Layout layout) {
    if (!value.valid() || copy_.builder().graph().value(value).layout == layout) return value;
    auto& cached = reordered_[{value.index, layout}];
    if (!cached.valid()) {
      cached = copy_.builder().add(OpKind::Reorder, {value}, {{Attr::Layout, static_cast<int64_t>(layout)}});
      copy_.builder().set_layout(cached, layout);
    }
    return cached;
  }

  void visit(OpId id) {
    const Op& op = graph_.op(id);
    if (op.inputs.empty()) {
      copy_.copy(id);
      ops_.push_back(copy_.builder().graph().value(copy_.mapped(op.outputs[0])).producer);
      return;
    }
    LayoutContext choice(graph_, op, blocked_, layouts_, any_blocked_);
    const OpRow& row = table_.row(op.kind);
    if (blocked_ != Layout::Plain && row.layout != nullptr) row.layout(choice);
    GraphBuilder& builder = copy_.builder();
    builder.set_phase(op.phase);
    builder.set_origin(op.origin == id ? OpId{} : ops_[op.origin.index]);
    std::vector<ValueId> inputs;
    inputs.reserve(op.inputs.size());
    for (size_t i = 0; i < op.inputs.size(); ++i)
      inputs.push_back(in_layout(copy_.mapped(op.inputs[i]), choice.inputs()[i]));
    const auto outputs = builder.add_all(op.kind, std::move(inputs), op.attributes, op.name);
    ops_.push_back(builder.graph().value(outputs[0]).producer);
    for (size_t i = 0; i < outputs.size(); ++i) {
      copy_.map(op.outputs[i], outputs[i]);
      builder.set_layout(outputs[i], choice.outputs()[i]);
      builder.set_name(outputs[i], graph_.value(op.outputs[i]).name);
      layouts_[op.outputs[i].index] = choice.outputs()[i];
      any_blocked_ = any_blocked_ || choice.outputs()[i] != Layout::Plain;
    }
  }

  const Graph& graph_;
  const OpTable& table_;
  GraphCopy copy_;
  Layout blocked_;
  bool any_blocked_ = false;
  std::vector<Layout> layouts_;  // by source value
  std::vector<OpId> ops_;        // source op -> new op
  std::map<std::pair<uint32_t, Layout>, ValueId> reordered_;
};

// ---- fusion groups

// Grows groups along the topological order: of a product and what it takes in, and of elementwise ops. One of
// these joins the group of one of its operands when both have the same output shape, layout and phase, and
// when no other operand depends on that group: the group can then run as one kernel at the place of its last
// op.
class FusionPass {
 public:
  // `part_of_op`: empty, or by op; parts are never fused with each other.
  FusionPass(const Graph& graph, const OpTable& table, const BackendTraits& traits,
             std::vector<uint32_t> part_of_op)
      : graph_(graph),
        table_(table),
        traits_(traits),
        part_of_op_(std::move(part_of_op)),
        users_(graph.users()),
        group_(graph.ops().size()),
        members_(graph.ops().size()),
        inputs_(graph.ops().size()),
        runs_once_(once_a_step(graph)) {
    for (const GraphOutput& output : graph.outputs()) is_output_.insert(output.value.index);
  }

  // `value_of`: by value of the graph before.
  Graph run(std::vector<ValueId>& value_of) {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      group_[i] = i;
      members_[i] = {i};
      for (const ValueId input : graph_.ops()[i].inputs)
        if (input.valid()) inputs_[i].insert(input.index);
      if (traits_.fuse_products && joins_product(OpId{i})) continue;
      if (traits_.fuse_elementwise && fusable(OpId{i})) join_an_operand(OpId{i});
    }
    return rebuild(value_of);
  }

 private:
  bool same_part(OpId a, OpId b) const {
    return part_of_op_.empty() || part_of_op_[a.index] == part_of_op_[b.index];
  }
  void join(uint32_t head, OpId id) {
    for (const uint32_t value : inputs_[id.index]) inputs_[head].insert(value);
    members_[head].push_back(id.index);
    group_[id.index] = head;
    members_[id.index].clear();
  }

  // ---- products: MatMul, then Add of a bias along the last dim, then Relu or Gelu by tanh, each the only
  // reader of the one before, so that nothing between them is ever stored.

  bool is_of_product(uint32_t head) const { return graph_.ops()[head].kind == OpKind::MatMul; }
  bool joins_product(OpId id) {
    const Op& op = graph_.op(id);
    for (const ValueId input : op.inputs) {
      if (!input.valid()) return false;
      const uint32_t head = group_[graph_.value(input).producer.index];
      if (!is_of_product(head) || !ends_with(head, input) || !goes_on(head, op, input)) continue;
      if (users_[input.index].size() != 1 || is_output_.contains(input.index) ||
          depends_otherwise(op, head) || !same_part({head}, id) || graph_.op({head}).phase != op.phase)
        continue;
      join(head, id);
      return true;
    }
    return false;
  }
  bool ends_with(uint32_t head, ValueId value) const {
    return graph_.value(value).producer.index == members_[head].back();
  }
  // Whether `op` is what may follow `from`, the last of the group so far.
  bool goes_on(uint32_t head, const Op& op, ValueId from) const {
    const size_t length = members_[head].size();
    const TensorSpec& spec = graph_.spec(op.outputs[0]);
    if (spec != graph_.spec(from) || spec.dtype != DType::F32) return false;
    if (length == 2)
      return op.kind == OpKind::Relu ||
             (op.kind == OpKind::Gelu && op.attributes.get_int(Attr::Approximate) != 0);
    if (length != 1 || op.kind != OpKind::Add || op.inputs[0] == op.inputs[1]) return false;
    const ValueId bias = op.inputs[op.inputs[0] == from ? 1 : 0];
    return graph_.spec(bias) == TensorSpec{DType::F32, {spec.shape.back()}};
  }

  // ---- elementwise

  bool fusable(OpId id) const {
    const Op& op = graph_.op(id);
    if (!table_.row(op.kind).fusable || runs_once_[id.index]) return false;
    const auto easy = [&](ValueId v) {
      const DType dtype = graph_.spec(v).dtype;
      if (dtype == DType::F32 || dtype == DType::Bool) return true;
      // Around the products of quantised models.
      if (op.kind == OpKind::Cast) return dtype == DType::I32 || dtype == DType::I8 || dtype == DType::U8;
      return op.kind == OpKind::Add && dtype == DType::I32;
    };
    return std::all_of(op.inputs.begin(), op.inputs.end(), easy) && easy(op.outputs[0]) &&
           graph_.spec(op.outputs[0]).element_count() > 1;
  }

  void join_an_operand(OpId id) {
    const Op& op = graph_.op(id);
    for (const ValueId input : op.inputs) {
      const OpId producer = graph_.value(input).producer;
      const uint32_t candidate = group_[producer.index];
      if (candidate == id.index || !fusable(producer) || is_of_product(candidate)) continue;
      if (!same_part(producer, id)) continue;
      const Value& mine = graph_.value(op.outputs[0]);
      const Value& theirs = graph_.value(graph_.op(producer).outputs[0]);
      if (graph_.op(producer).phase != op.phase || mine.spec.shape != theirs.spec.shape ||
          mine.layout != theirs.layout)
        continue;
      if (!fits(candidate, id) || depends_otherwise(op, candidate)) continue;
      join(candidate, id);
      return;
    }
  }

  bool fits(uint32_t candidate, OpId id) const {
    if (static_cast<int>(members_[candidate].size()) >= kGroupOpsMax) return false;
    std::set<uint32_t> external = inputs_[candidate];
    external.insert(inputs_[id.index].begin(), inputs_[id.index].end());
    int count = 0;
    for (const uint32_t value : external) count += group_[graph_.value({value}).producer.index] != candidate;
    return count <= kGroupInputsMax;
  }

  // Whether an operand outside of `candidate` needs, through whatever groups, a member of `candidate`.
  bool depends_otherwise(const Op& op, uint32_t candidate) const {
    std::vector<uint32_t> open;
    std::set<uint32_t> seen;
    const uint32_t first = members_[candidate].front();  // nothing before it in the order can depend on it
    const auto push = [&](ValueId value) {
      if (!value.valid()) return;
      const uint32_t group = group_[graph_.value(value).producer.index];
      if (members_[group].back() >= first && seen.insert(group).second) open.push_back(group);
    };
    for (const ValueId input : op.inputs)
      if (group_[graph_.value(input).producer.index] != candidate) push(input);
    while (!open.empty()) {
      const uint32_t group = open.back();
      open.pop_back();
      if (group == candidate) return true;
      for (const uint32_t member : members_[group])
        for (const ValueId input : graph_.ops()[member].inputs)
          if (!input.valid() || group_[graph_.value(input).producer.index] != group) push(input);
    }
    return false;
  }

  // Emits group after group, the one whose last op stood first in the old order among those that are ready.
  Graph rebuild(std::vector<ValueId>& value_of) {
    const size_t count = graph_.ops().size();
    std::vector<std::set<uint32_t>> needs(count), users(count);
    for (uint32_t i = 0; i < count; ++i)
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid()) continue;
        const uint32_t from = group_[graph_.value(input).producer.index];
        if (from == group_[i]) continue;
        needs[group_[i]].insert(from);
        users[from].insert(group_[i]);
      }
    // An origin has to stand before its backward ops; phases already order all but what is purely backward.
    using Entry = std::pair<uint32_t, uint32_t>;  // last member, group
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    std::vector<size_t> missing(count);
    for (uint32_t g = 0; g < count; ++g) {
      missing[g] = needs[g].size();
      if (!members_[g].empty() && missing[g] == 0) ready.push({members_[g].back(), g});
    }
    GraphCopy copy(graph_, table_);
    uint32_t next_group = 0;
    while (!ready.empty()) {
      const uint32_t group = ready.top().second;
      ready.pop();
      const bool fused = members_[group].size() > 1;
      for (const uint32_t member : members_[group]) {
        copy.copy(OpId{member});
        if (fused)
          copy.builder().set_group(
              copy.builder().graph().value(copy.mapped(graph_.ops()[member].outputs[0])).producer,
              GroupId{next_group});
      }
      next_group += fused;
      for (const uint32_t user : users[group])
        if (--missing[user] == 0) ready.push({members_[user].back(), user});
    }
    copy.copy_outputs();
    for (uint32_t v = 0; v < graph_.values().size(); ++v) value_of.push_back(copy.mapped({v}));
    Graph result = copy.finish();
    WEFT_CHECK_MSG(result.ops().size() == count, "fusion groups formed a cycle");
    return result;
  }

  const Graph& graph_;
  const OpTable& table_;
  const BackendTraits& traits_;
  std::vector<uint32_t> part_of_op_;
  std::vector<std::vector<OpId>> users_;        // by value
  std::set<uint32_t> is_output_;                // values
  std::vector<uint32_t> group_;                 // op -> the op that heads its group
  std::vector<std::vector<uint32_t>> members_;  // by head, ascending
  std::vector<std::set<uint32_t>> inputs_;      // by head: values read, inside ones included
  std::vector<bool> runs_once_;                 // by op: stands apart from what runs in each microbatch
};

// By op of the lowered graph, from what is known of the source's.
void trace_back(Lowered& lowered) {
  const Graph& graph = lowered.graph;
  lowered.source_op.assign(graph.ops().size(), OpId{});
  lowered.put_in.assign(graph.ops().size(), false);
  for (uint32_t i = 0; i < lowered.op_of.size(); ++i) lowered.source_op[lowered.op_of[i].index] = OpId{i};
  // A reader may itself be a Reorder that was put in: from the last to the first.
  const auto users = graph.users();
  for (uint32_t i = static_cast<uint32_t>(graph.ops().size()); i-- > 0;) {
    if (lowered.source_op[i].valid()) continue;
    lowered.put_in[i] = true;
    const auto& readers = users[graph.ops()[i].outputs[0].index];
    if (!readers.empty()) lowered.source_op[i] = lowered.source_op[readers.front().index];
  }
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    if (!lowered.source_op[i].valid())
      lowered.source_op[i] = lowered.source_op[graph.value(graph.ops()[i].inputs[0]).producer.index];
}

// Parts of the laid-out graph: a Reorder is of the part of the op that it was put in for, the next one.
std::vector<uint32_t> parts_of(const Lowered& laid_out, std::span<const uint32_t> part_of_op) {
  if (part_of_op.empty()) return {};
  std::vector<uint32_t> parts(laid_out.graph.ops().size(),
                              *std::max_element(part_of_op.begin(), part_of_op.end()));
  for (uint32_t i = 0; i < part_of_op.size(); ++i) parts[laid_out.op_of[i].index] = part_of_op[i];
  for (size_t i = parts.size(); i-- > 1;) parts[i - 1] = std::min(parts[i - 1], parts[i]);
  return parts;
}

}  // namespace

Lowered lower_traced(const Graph& graph, const OpTable& table, const BackendTraits& traits,
                     std::span<const uint32_t> part_of_op) {
  WEFT_CHECK(part_of_op.empty() || part_of_op.size() == graph.ops().size());
  Lowered lowered = LayoutPass(graph, table, traits.convolution_layout).run();
  if (traits.fuse_elementwise || traits.fuse_products) {
    std::vector<ValueId> moved;
    Graph fused = FusionPass(lowered.graph, table, traits, parts_of(lowered, part_of_op)).run(moved);
    for (ValueId& value : lowered.value_of) value = moved[value.index];
    for (uint32_t i = 0; i < lowered.op_of.size(); ++i)
      lowered.op_of[i] = fused.value(lowered.value_of[graph.ops()[i].outputs[0].index]).producer;
    lowered.graph = std::move(fused);
  }
  trace_back(lowered);
  return lowered;
}

Graph lower(const Graph& graph, const OpTable& table, const BackendTraits& traits) {
  return lower_traced(graph, table, traits).graph;
}

Lowered as_it_is(Graph graph) {
  Lowered lowered;
  lowered.graph = std::move(graph);
  for (uint32_t i = 0; i < lowered.graph.ops().size(); ++i) lowered.op_of.push_back({i});
  for (uint32_t v = 0; v < lowered.graph.values().size(); ++v) lowered.value_of.push_back({v});
  lowered.source_op = lowered.op_of;
  lowered.put_in.assign(lowered.op_of.size(), false);
  return lowered;
}

Graph raise(const Graph& graph, const OpTable& table, std::vector<ValueId>& value_of) {
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.kind == OpKind::Reorder) {
      copy.map(op.outputs[0], copy.mapped(op.inputs[0]));
      continue;
    }
    copy.copy(OpId{i});
    for (const ValueId output : op.outputs) copy.builder().set_layout(copy.mapped(output), Layout::Plain);
    copy.builder().set_group(copy.builder().graph().value(copy.mapped(op.outputs[0])).producer, GroupId{});
  }
  copy.copy_outputs();
  value_of.clear();
  for (uint32_t v = 0; v < graph.values().size(); ++v) value_of.push_back(copy.mapped({v}));
  return copy.finish();
}

}  // namespace weft::dag
