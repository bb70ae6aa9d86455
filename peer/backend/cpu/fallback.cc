// Ops that have no kernel of their own here, by the reference backend's arithmetic: right, and slow.
#include <cstring>

#include "peer/backend/cpu/layout.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::peer::cpu {
namespace {

using dag::Layout;
using dag::Tensor;

struct Operand {
  dag::TensorSpec spec;
  Layout layout = Layout::Plain;
  int slot = -1;  // in the signature
};

Tensor to_host(const Team& team, const LoopTable& loops, const Operand& operand, const void* data) {
  Tensor tensor(operand.spec);
  convert_layout(team, loops, operand.spec, operand.layout, data, Layout::Plain,
                 tensor.mutable_bytes().data());
  return tensor;
}

}  // namespace

KernelResult make_fallback(const KernelRequest& request) {
  std::vector<Operand> inputs, outputs;
  for (size_t i = 0; i < request.op.inputs.size(); ++i) {
    if (!request.has(i)) {
      inputs.emplace_back();
      continue;
    }
    inputs.push_back({request.in(i).spec, request.in(i).layout, request.input_slot(i)});
  }
  for (size_t i = 0; i < request.op.outputs.size(); ++i)
    outputs.push_back({request.out(i).spec, request.out(i).layout, request.output_slot(i)});
  const auto run = [op = request.op, inputs, outputs, &team = request.team,
                    &loops = request.loops](const Call& call) -> Status {
    std::vector<RefValue> values(inputs.size()), results(outputs.size());
    std::vector<const RefValue*> operands(inputs.size(), nullptr);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].slot < 0) continue;
      values[i] = ref_from_tensor(to_host(team, loops, inputs[i], call.in<std::byte>(inputs[i].slot)));
      operands[i] = &values[i];
    }
    for (size_t i = 0; i < outputs.size(); ++i) results[i].spec = outputs[i].spec;
    WEFT_TRY_STATUS(run_reference_op(op, operands, results, call.context));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].slot < 0) continue;
      const Tensor tensor = ref_to_tensor(results[i]);
      convert_layout(team, loops, outputs[i].spec, Layout::Plain, tensor.bytes().data(), outputs[i].layout,
                     call.out<std::byte>(outputs[i].slot));
    }
    return {};
  };
  return request.make("reference", run);
}

}  // namespace weft::peer::cpu
