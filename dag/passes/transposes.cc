#include <utility>

#include "dag/passes/canonicalise.h"

namespace weft::dag {
namespace {

// Whether the Transpose moves the innermost dim to the last but one place: its final swap can become a flag.
bool ends_in_swap(const Op& op) {
  if (op.kind != OpKind::Transpose) return false;
  const Ints& perm = op.attributes.get_ints(Attr::Perm);
  return perm.size() >= 2 && perm[perm.size() - 2] == static_cast<int64_t>(perm.size()) - 1;
}

// The operand without its final swap, in the new graph.
ValueId without_swap(GraphCopy& copy, const Op& transpose) {
  Ints perm = transpose.attributes.get_ints(Attr::Perm);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  const ValueId source = copy.mapped(transpose.inputs[0]);
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i))
      return copy.builder().add(OpKind::Transpose, {source}, {{Attr::Perm, perm}}, transpose.name);
  return source;
}

}  // namespace

Graph fuse_transposes(const Graph& graph, const OpTable& table) {
  GraphCopy copy(graph, table);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const bool swaps = op.kind == OpKind::MatMul && (ends_in_swap(graph.producer(op.inputs[0])) ||
                                                     ends_in_swap(graph.producer(op.inputs[1])));
    if (!swaps) {
      copy.copy(OpId{i});
      continue;
    }
    copy.builder().set_phase(op.phase);
    copy.builder().set_origin({});
    Attributes attributes = op.attributes;
    std::vector<ValueId> operands;
    for (size_t k = 0; k < 2; ++k) {
      const Attr flag = k == 0 ? Attr::TransA : Attr::TransB;
      const Op& producer = graph.producer(op.inputs[k]);
      if (ends_in_swap(producer)) {
        operands.push_back(without_swap(copy, producer));
        attributes.set(flag, 1 - op.attributes.get_int(flag));
      } else {
        operands.push_back(copy.mapped(op.inputs[k]));
      }
    }
    const ValueId y = copy.builder().add(OpKind::MatMul, std::move(operands), std::move(attributes), op.name);
    copy.builder().set_name(y, graph.value(op.outputs[0]).name);
    copy.map(op.outputs[0], y);
  }
  copy.copy_outputs();
  return copy.finish();
}

}  // namespace weft::dag
