#include "plan/shared_slots.h"

#include <algorithm>

#include "plan/pipeline.h"

namespace weft::plan {

using dag::GraphOutput;
using dag::OutputRole;

SharedSlots::SharedSlots(const PlanRequest& pipeline, uint32_t slots_among,
                         std::span<const Plan* const> plans) {
  const auto& devices = pipeline.cluster.devices();
  planned_.assign(devices.size(), 0);
  room_.assign(devices.size(), 0);
  const dag::BesideParameter part{
      .slots = pipeline.optimizer_slots, .type = pipeline.slot_type, .among = slots_among};
  for (const GraphOutput& output : pipeline.graph->outputs()) {
    if (output.role != OutputRole::Gradient) continue;
    const int64_t bytes = bytes_beside(pipeline.graph->spec(output.value), part);
    const uint32_t op = pipeline.graph->value(output.value).producer.index;
    for (const Plan* plan : plans) planned_[plan->stages[plan->stage_of_op[op]].devices.front()] += bytes;
  }
  for (const Plan* plan : plans)
    for (const StagePlan& stage : plan->stages) {
      const uint32_t d = stage.devices.front();
      const DeviceView& device = devices[d];
      const int64_t free = device.memory.value - stage.memory.value;
      // Where the host's memory is the device's, the copy of the state lies there, too.
      room_[d] = planned_[d] + (device.host_memory.value == 0
                                    ? (free - stage.host_memory.value) / 2
                                    : std::min(free, device.host_memory.value - stage.host_memory.value));
    }
}

std::vector<int64_t> SharedSlots::owned(std::span<const AgreedLoad> tensors) const {
  std::vector<int64_t> owned(planned_.size(), 0);
  for (const AgreedLoad& tensor : tensors) owned[tensor.devices[tensor.owner]] += tensor.kept.value;
  return owned;
}

bool SharedSlots::fit(std::span<const AgreedLoad> tensors) const {
  const std::vector<int64_t> owned = this->owned(tensors);
  for (size_t device = 0; device < owned.size(); ++device)
    if (owned[device] > room_[device]) return false;
  return true;
}

void SharedSlots::settle(std::span<const AgreedLoad> tensors, std::vector<Plan>& plans) const {
  const std::vector<int64_t> owned = this->owned(tensors);
  for (Plan& plan : plans)
    for (StagePlan& stage : plan.stages) {
      const uint32_t device = stage.devices.front();
      for (Bytes* bytes : {&stage.persistent, &stage.memory, &stage.host_memory})
        bytes->value += owned[device] - planned_[device];
    }
}

}  // namespace weft::plan
