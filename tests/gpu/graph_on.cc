#include "tests/gpu/graph_on.h"

#include "peer/program.h"

namespace weft::test {
namespace {

using dag::Graph;
using dag::Tensor;
using dag::ValueId;
using peer::Backend;
using peer::View;

// The values of one run.
class Values {
 public:
  Values(Backend& backend, const Graph& graph)
      : backend_(backend), graph_(graph), memory_(graph.values().size()) {}

  View view(ValueId id) const { return {memory_[id.index].get(), 0}; }
  Result<View> take(ValueId id) {
    WEFT_TRY(memory_[id.index],
             backend_.allocate(backend_.storage_bytes(graph_.spec(id), graph_.value(id).layout)));
    return view(id);
  }
  Status put(ValueId id, const Tensor& tensor) {
    WEFT_TRY(const View target, take(id));
    return backend_.upload(tensor, target, graph_.value(id).layout);
  }
  Result<Tensor> get(ValueId id) {
    return backend_.download(view(id), graph_.spec(id), graph_.value(id).layout);
  }

 private:
  Backend& backend_;
  const Graph& graph_;
  std::vector<std::unique_ptr<peer::Memory>> memory_;
};

Status run_kernel(Backend& backend, Values& values, peer::Kernel& kernel, const peer::GroupSignature& group,
                  const peer::StepContext& context) {
  std::vector<View> in, out;
  for (const ValueId value : group.inputs) in.push_back(values.view(value));
  for (const ValueId value : group.outputs) {
    WEFT_TRY(const View taken, values.take(value));
    out.push_back(taken);
  }
  WEFT_TRY(const auto workspace, backend.allocate(kernel.workspace_bytes()));
  WEFT_TRY_STATUS(kernel.run(in, out, {workspace.get(), 0}, context));
  return backend.synchronize();  // what fails now is this kernel
}

}  // namespace

Result<GraphOn> GraphOn::make(Backend& backend, const Graph& graph, const peer::Precision& precision) {
  GraphOn made(backend, graph);
  made.groups_ = peer::group_signatures(graph);
  for (peer::GroupSignature& group : made.groups_) {
    group.precision = precision;
    WEFT_TRY(auto kernel, backend.make_kernel(graph, group));
    made.kernels_.push_back(std::move(kernel));
  }
  return made;
}

Result<std::vector<Tensor>> GraphOn::run(const std::vector<Tensor>& inputs,
                                         const std::vector<ValueId>& wanted,
                                         const peer::StepContext& context) {
  Values values(*backend_, *graph_);
  for (size_t i = 0; i < inputs.size(); ++i) WEFT_TRY_STATUS(values.put(graph_->inputs()[i], inputs[i]));
  for (const dag::Op& op : graph_->ops())
    if (op.kind == dag::OpKind::Constant) WEFT_TRY_STATUS(values.put(op.outputs[0], graph_->constant(op)));
  for (size_t g = 0; g < groups_.size(); ++g)
    WEFT_TRY_STATUS(run_kernel(*backend_, values, *kernels_[g], groups_[g], context));
  std::vector<Tensor> results;
  for (const ValueId id : wanted) {
    WEFT_TRY(Tensor value, values.get(id));
    results.push_back(std::move(value));
  }
  return results;
}

}  // namespace weft::test
