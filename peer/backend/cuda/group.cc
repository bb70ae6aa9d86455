// From a group of ops to a kernel: the family's own, the host, or a sequence.
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/sequence.h"

namespace weft::peer::cuda {
namespace {

using dag::Family;
using dag::OpId;
using dag::ValueId;

constexpr int64_t kAlignment = 256;

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
  return std::any_of(request.op.inputs.begin(), request.op.inputs.end(), empty) ||
         std::any_of(request.op.outputs.begin(), request.op.outputs.end(), empty);
}

KernelResult make_lone(const KernelRequest& request) {
  if (dag::op_table().row(request.op.kind).family == Family::Leaf)
    return fail(ErrorCode::Unsupported,
                "cuda backend: " + std::string(to_string(request.op.kind)) + " is not computed");
  // Empty tensors have special cases in every family; the reference has them all.
  if (!has_empty_value(request)) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_family(request));
    if (kernel != nullptr) return kernel;
  }
  return make_fallback(request);
}

// A graph may come from outside with layouts that this backend never asked for.
Status need_plain(const dag::Graph& graph, const GroupSignature& group) {
  for (const OpId id : group.ops) {
    const dag::Op& op = graph.op(id);
    const auto blocked = [&](ValueId v) { return v.valid() && graph.value(v).layout != dag::Layout::Plain; };
    if (std::any_of(op.inputs.begin(), op.inputs.end(), blocked) ||
        std::any_of(op.outputs.begin(), op.outputs.end(), blocked))
      return fail(ErrorCode::Unsupported,
                  "cuda backend: " + std::string(to_string(op.kind)) + " on a value in a blocked layout");
  }
  return {};
}

}  // namespace

KernelResult make_group_kernel(const dag::Graph& graph, const GroupSignature& group, Device& device,
                               KernelHost& host) {
  WEFT_TRY_STATUS(need_plain(graph, group));
  const dag::Op& op = graph.op(group.ops.front());
  const KernelRequest request{graph, group, op, device, host};
  if (group.ops.size() == 1 && group.outputs.size() == op.outputs.size()) return make_lone(request);
  if (op.kind == dag::OpKind::MatMul && request.out_count() > 0) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_product_group(request));
    if (kernel != nullptr) return kernel;
  }
  const bool elementwise = std::all_of(group.ops.begin(), group.ops.end(), [&](OpId id) {
    const Family family = dag::op_table().row(graph.op(id).kind).family;
    return family == Family::Elementwise || family == Family::Random;
  });
  if (elementwise && group.ops.size() > 1 && request.out_count() > 0) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_elementwise(request));
    if (kernel != nullptr) return kernel;
  }
  return make_sequence(graph, group, kAlignment, [&](const GroupSignature& lone) {
    return make_lone({graph, lone, graph.op(lone.ops.front()), device, host});
  });
}

}  // namespace weft::peer::cuda
