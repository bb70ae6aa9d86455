#include "dag/op_set.h"

#include <algorithm>

#include "dag/graph.h"

namespace weft::dag {
namespace {

// Those that the first has not. A new op is a line here, and kOpSet grows.
constexpr struct {
  OpKind kind;
  uint32_t since;
} kLater[] = {
    {OpKind::StoredMatMul, 2},
    {OpKind::StoredWeight, 2},
    {OpKind::Attention, 3},
    {OpKind::AttentionGrad, 3},
};

}  // namespace

uint32_t op_set_of(OpKind kind) {
  const auto* later =
      std::find_if(std::begin(kLater), std::end(kLater), [&](const auto& op) { return op.kind == kind; });
  return later == std::end(kLater) ? kFirstOpSet : later->since;
}

uint32_t op_set_of(const Graph& graph) { return op_set_of(newest_op(graph)); }

OpKind newest_op(const Graph& graph) {
  OpKind newest = OpKind::Input;
  for (const Op& op : graph.ops())
    if (op_set_of(op.kind) > op_set_of(newest)) newest = op.kind;
  return newest;
}

}  // namespace weft::dag
