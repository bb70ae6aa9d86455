#include "dag/copied_bytes.h"

namespace weft::dag {

std::vector<Bytes> copied_bytes(const Graph& training, const BesideParameter& beside,
                                std::span<const uint32_t> stage_of_op, uint32_t stages) {
  std::vector<Bytes> bytes(stages);
  for (const GraphOutput& output : training.outputs()) {
    const bool is_gradient = output.role == OutputRole::Gradient;
    if (!is_gradient && output.role != OutputRole::StateUpdate) continue;
    // A gradient is as large as its parameter, an update as what it updates, and each is made where that
    // lies.
    const uint32_t stage = stage_of_op[training.value(output.value).producer.index];
    const TensorSpec& spec = training.spec(output.value);
    bytes[stage] += spec.bytes();
    if (is_gradient) bytes[stage] += Bytes{beside.bytes(spec)};
  }
  return bytes;
}

Bytes copied_bytes(const Graph& training, const BesideParameter& beside) {
  return copied_bytes(training, beside, std::vector<uint32_t>(training.ops().size(), 0), 1).front();
}

}  // namespace weft::dag
