// From a group of ops to a kernel: the family's own, the fallback, or a sequence.
#include "base/check.h"
#include "peer/backend/cpu/layout.h"
#include "peer/backend/sequence.h"

namespace weft::peer::cpu {
namespace {

using dag::Family;
using dag::OpId;
using dag::ValueId;

KernelResult make_family(const KernelRequest& request) {
  switch (dag::op_table().row(request.op.kind).family) {
    case Family::Leaf:
      return request.decline();
    case Family::Elementwise:
    case Family::Random:
      return make_elementwise(request);
    case Family::Shape:
      return make_shape(request);
    case Family::Reduction:
      return make_reduction(request);
    case Family::MatMul:
      return make_matmul(request);
    case Family::Convolution:
      return make_convolution(request);
    case Family::Normalisation:
      return make_normalisation(request);
    case Family::Softmax:
      return make_softmax(request);
    case Family::Pooling:
      return make_pooling(request);
    case Family::Sampling:
      return make_sampling(request);
    case Family::Recurrent:
      return make_recurrent(request);
  }
  return request.decline();
}

bool has_empty_value(const KernelRequest& request) {
  const auto empty = [&](ValueId v) { return v.valid() && request.graph.spec(v).element_count() == 0; };
  for (const ValueId v : request.op.inputs) {
    if (empty(v)) return true;
  }
  for (const ValueId v : request.op.outputs) {
    if (empty(v)) return true;
  }
  return false;
}

KernelResult make_lone(const KernelRequest& request) {
  if (dag::op_table().row(request.op.kind).family == Family::Leaf)
    return fail(ErrorCode::Unsupported,
                "cpu backend: " + std::string(to_string(request.op.kind)) + " is not computed");
  // Empty tensors have special cases in every family; the reference has them all.
  if (!has_empty_value(request)) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_family(request));
    if (kernel != nullptr) return kernel;
  }
  return make_fallback(request);
}

// A graph may come from outside with layouts that its values cannot have; the kernels take them for granted.
Status need_layouts(const dag::Graph& graph, const GroupSignature& group) {
  const auto check = [&](OpId id, ValueId v) -> Status {
    if (!v.valid()) return {};
    const Status good = need_layout(graph.spec(v), graph.value(v).layout);
    return good ? good : tl::unexpected(good.error().within(to_string(graph.op(id).kind)));
  };
  for (const OpId id : group.ops) {
    for (const ValueId v : graph.op(id).inputs) WEFT_TRY_STATUS(check(id, v));
    for (const ValueId v : graph.op(id).outputs) WEFT_TRY_STATUS(check(id, v));
  }
  return {};
}

}  // namespace

KernelResult make_group_kernel(const dag::Graph& graph, const GroupSignature& group, const Team& team,
                               const LoopTable& loops, bool own_convolutions) {
  const dag::Op& op = graph.op(group.ops.front());
  const KernelRequest request{graph, group, op, team, loops, own_convolutions};
  WEFT_TRY_STATUS(need_layouts(graph, group));
  if (group.ops.size() == 1 && group.outputs.size() == op.outputs.size()) return make_lone(request);
  bool elementwise = group.ops.size() > 1;
  for (const OpId id : group.ops) {
    const Family family = dag::op_table().row(graph.op(id).kind).family;
    elementwise = elementwise && (family == Family::Elementwise || family == Family::Random);
  }
  if (elementwise && graph.spec(op.outputs[0]).element_count() > 0) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_elementwise(request));
    if (kernel != nullptr) return kernel;
  }
  return make_sequence(graph, group, align_up(1), [&](const GroupSignature& lone) {
    return make_lone({graph, lone, graph.op(lone.ops.front()), team, loops, own_convolutions});
  });
}

}  // namespace weft::peer::cpu
