// Ops that have no kernel here, on the host by the reference backend's arithmetic: right, and slow. Operands
// come down and results go up within the stream, so that it can be recorded like any kernel.
#include <cstring>

#include "base/check.h"
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::peer::cuda {
namespace {

using dag::Tensor;

struct Operand {
  dag::TensorSpec spec;
  int slot = -1;       // in the signature; -1: absent
  int64_t offset = 0;  // in the pinned block
};

// What one kernel needs on the host, for as long as something that was submitted uses it.
struct Desk {
  Desk(Device& device_in, const KernelRequest& request) : device(device_in), op(request.op) {
    int64_t at = align_up(sizeof(DeviceContext), 64);
    const auto add = [&](std::vector<Operand>& list, const dag::TensorSpec& spec, int slot) {
      list.push_back({spec, slot, at});
      at += align_up(spec.bytes().value, 64);
    };
    for (size_t i = 0; i < request.op.inputs.size(); ++i) {
      if (request.has(i))
        add(inputs, request.in(i).spec, request.input_slot(i));
      else
        inputs.emplace_back();
    }
    for (size_t i = 0; i < request.op.outputs.size(); ++i)
      add(outputs, request.out(i).spec, request.output_slot(i));
    bytes = {at};
  }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;
  ~Desk() {
    if (pinned != nullptr) device.deallocate_pinned(pinned);
  }

  Device& device;
  const dag::Op op;
  std::vector<Operand> inputs, outputs;
  Bytes bytes{};
  std::byte* pinned = nullptr;  // the context, then inputs and outputs
};

Tensor copied(const Operand& operand, const std::byte* pinned) {
  return Tensor(operand.spec,
                std::span(pinned + operand.offset, static_cast<size_t>(operand.spec.bytes().value)));
}

Status compute(Desk& desk) {
  DeviceContext where;
  std::memcpy(&where, desk.pinned, sizeof where);
  std::vector<RefValue> values(desk.inputs.size()), results(desk.outputs.size());
  std::vector<const RefValue*> operands(desk.inputs.size(), nullptr);
  for (size_t i = 0; i < desk.inputs.size(); ++i) {
    if (desk.inputs[i].slot < 0) continue;
    values[i] = ref_from_tensor(copied(desk.inputs[i], desk.pinned));
    operands[i] = &values[i];
  }
  for (size_t i = 0; i < desk.outputs.size(); ++i) results[i].spec = desk.outputs[i].spec;
  WEFT_TRY_STATUS(run_reference_op(desk.op, operands, results,
                                   {where.seed, where.step, where.sample_position, where.microbatch_size}));
  for (size_t i = 0; i < desk.outputs.size(); ++i) {
    const Tensor tensor = ref_to_tensor(results[i]);
    std::memcpy(desk.pinned + desk.outputs[i].offset, tensor.bytes().data(), tensor.bytes().size());
  }
  return {};
}

Status run(const std::shared_ptr<Desk>& desk, const Call& call) {
  Device& device = call.device;
  constexpr Stream kStream = Stream::Compute;
  WEFT_TRY_STATUS(device.copy_out(kStream, reinterpret_cast<const std::byte*>(call.context), desk->pinned,
                                  {sizeof(DeviceContext)}));
  for (const Operand& input : desk->inputs)
    if (input.slot >= 0 && input.spec.bytes().value > 0)
      WEFT_TRY_STATUS(device.copy_out(kStream, address(call.inputs[static_cast<size_t>(input.slot)]),
                                      desk->pinned + input.offset, input.spec.bytes()));
  WEFT_TRY_STATUS(device.call_host(kStream, [desk] { return compute(*desk); }));
  for (const Operand& output : desk->outputs)
    if (output.slot >= 0 && output.spec.bytes().value > 0)
      WEFT_TRY_STATUS(device.copy_in(kStream, desk->pinned + output.offset,
                                     address(call.outputs[static_cast<size_t>(output.slot)]),
                                     output.spec.bytes()));
  return {};
}

}  // namespace

KernelResult make_fallback(const KernelRequest& request) {
  const auto desk = std::make_shared<Desk>(request.device, request);
  WEFT_TRY(desk->pinned, request.device.allocate_pinned(desk->bytes));
  return request.make(
      "reference", [desk](const Call& call) { return run(desk, call); }, 0, {}, true);
}

}  // namespace weft::peer::cuda
