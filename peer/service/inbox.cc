#include "peer/service/inbox.h"

#include "base/check.h"

namespace weft::peer {

void Inbox::keep(const proto::TensorHeader& header, dag::Tensor tensor) {
  if (header.program == proto::ProgramKind::Serve) {
    tensors_[{{header.program, header.step, 0}, 0}].emplace_back(header.edge, std::move(tensor));
    return;
  }
  if (header.program == proto::ProgramKind::Agree) {
    agreed_[{header.step, header.direction}].push_back({header.edge, header.replica, std::move(tensor)});
    return;
  }
  const proto::StageProgram& program = program_of(*assignment_, header.program);
  uint32_t index = 0;
  while (program.receives[index].edge != header.edge) ++index;
  const uint32_t segment =
      program.segment_of_op[program.graph->value(program.receives[index].value).producer.index];
  tensors_[{{header.program, header.step, header.microbatch}, segment}].emplace_back(index,
                                                                                     std::move(tensor));
}

StageRunner::Inputs Inbox::take(const Task& task) {
  StageRunner::Inputs inputs;
  if (task.kind == TaskKind::Mean || task.kind == TaskKind::Agree) {
    const auto direction =
        task.kind == TaskKind::Mean ? proto::Direction::Forward : proto::Direction::Backward;
    const uint64_t before = round_of(assignment_->local->steps, task.key.step).steps_before;
    if (auto tensors = agreed_.extract({before, direction})) inputs.agreed = std::move(tensors.mapped());
    return inputs;
  }
  if (task.kind != TaskKind::Segment && task.kind != TaskKind::Pass) return inputs;
  if (auto tensors = tensors_.extract({task.key, task.segment}))
    inputs.received = std::move(tensors.mapped());
  if (const auto data = data_.find(task.key); data != data_.end()) {
    inputs.data = data->second.tensors;
    inputs.sample_position = static_cast<int64_t>(data->second.sample_position);
  }
  return inputs;
}

}  // namespace weft::peer
