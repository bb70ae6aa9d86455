#include <algorithm>

#include "dag/passes/canonicalise.h"

namespace weft::dag {
namespace {

bool is_identity_perm(const Ints& perm) {
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return true;
}

bool changes_nothing(const Graph& graph, const Op& op) {
  const auto all = [](const Ints& ints, int64_t value) {
    return std::all_of(ints.begin(), ints.end(), [value](int64_t i) { return i == value; });
  };
  switch (op.kind) {
    case OpKind::Reshape:
    case OpKind::Expand:
    case OpKind::Cast:
      return graph.spec(op.inputs[0]) == graph.spec(op.outputs[0]);
    case OpKind::Transpose:
      return is_identity_perm(op.attributes.get_ints(Attr::Perm));
    case OpKind::Slice:
      return graph.spec(op.inputs[0]) == graph.spec(op.outputs[0]) &&
             all(op.attributes.get_ints(Attr::Steps), 1) && all(op.attributes.get_ints(Attr::Starts), 0);
    case OpKind::Concat:
      return op.inputs.size() == 1;
    case OpKind::Pad:
      return all(op.attributes.get_ints(Attr::Pads), 0);
    default:
      return false;
  }
}

// The op's operand looked through a producer of the same kind, in the new graph.
bool merge_with_producer(GraphCopy& copy, const Op& op) {
  if (op.kind != OpKind::Reshape && op.kind != OpKind::Transpose) return false;
  GraphBuilder& builder = copy.builder();
  const ValueId operand = copy.mapped(op.inputs[0]);
  const Op inner = builder.graph().producer(operand);  // a copy: adding moves the storage
  if (inner.kind != op.kind) return false;
  const ValueId source = inner.inputs[0];
  Attributes attributes = op.attributes;
  bool nothing_left = false;
  if (op.kind == OpKind::Transpose) {
    const Ints& first = inner.attributes.get_ints(Attr::Perm);
    Ints perm;
    for (const int64_t i : op.attributes.get_ints(Attr::Perm)) perm.push_back(first[static_cast<size_t>(i)]);
    nothing_left = is_identity_perm(perm);
    attributes.set(Attr::Perm, std::move(perm));
  } else {
    nothing_left = builder.spec(source) == copy.source().spec(op.outputs[0]);
  }
  if (nothing_left) {
    copy.map(op.outputs[0], source);
    return true;
  }
  builder.set_phase(op.phase);
  builder.set_origin({});
  const ValueId merged = builder.add(op.kind, {source}, std::move(attributes), op.name);
  builder.set_name(merged, copy.source().value(op.outputs[0]).name);
  copy.map(op.outputs[0], merged);
  return true;
}

}  // namespace

Graph simplify_shapes(const Graph& graph, const OpTable& table) {
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (changes_nothing(graph, op))
      copy.map(op.outputs[0], copy.mapped(op.inputs[0]));
    else if (!merge_with_producer(copy, op))
      copy.copy(OpId{i});
  }
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
