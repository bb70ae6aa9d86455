#include "peer/service/inbox.h"

#include <algorithm>
#include <iterator>

#include "replicas/parts.h"

namespace weft::peer {

void Inbox::keep(const proto::TensorHeader& header, dag::Tensor tensor) {
  if (header.program == proto::ProgramKind::Serve) {
    tensors_[{{header.program, header.step, 0}, 0}].emplace_back(header.edge, std::move(tensor));
    return;
  }
  if (header.program == proto::ProgramKind::Agree) {
    auto& shares = agreed_[{header.step, header.direction}];
    std::erase_if(shares, [&](const AgreedShare& earlier) {  // of another attempt
      return earlier.number == header.edge && earlier.replica == header.replica;
    });
    shares.push_back({header.edge, header.replica, std::move(tensor), header.microbatch});
    return;
  }
  if (header.program == proto::ProgramKind::Sum) {
    sums_[{header.step, header.direction}].push_back(
        {header.edge, header.replica, std::move(tensor), header.microbatch});
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

// For a mean, what it is of, of the attempt that is under way: the rest may be for one that this seat takes
// in a lost one's place. With the agreed weights the round is over.
std::vector<AgreedShare> Inbox::take_agreed(const Task& task) {
  const proto::LocalTerms& local = *assignment_->local;
  const uint64_t before = round_of(local.steps, task.key.step).steps_before;
  const auto differences = agreed_.find({before, proto::Direction::Forward});
  std::vector<AgreedShare> taken;
  const auto means = agreed_.find({before, proto::Direction::Backward});
  if (task.kind == TaskKind::Weigh) return means == agreed_.end() ? taken : means->second;
  if (task.kind == TaskKind::Agree) {
    if (differences != agreed_.end()) agreed_.erase(differences);
    if (means == agreed_.end()) return taken;
    taken = std::move(means->second);
    agreed_.erase(means);
    return taken;
  }
  if (differences == agreed_.end()) return taken;
  const auto stays = [&](const AgreedShare& share) {
    const auto tensor = std::lower_bound(local.tensors.begin(), local.tensors.end(), share.number,
                                         [](const proto::AgreedTensor& one, uint32_t number) {
                                           return replicas::is_before(one.number, number);
                                         });
    const uint32_t owner = task.left_out ? task.left_out->owner_of(tensor->owner) : tensor->owner;
    return owner != assignment_->seat.replica || share.range != task.attempt();
  };
  auto& all = differences->second;
  const auto ours = std::stable_partition(all.begin(), all.end(), stays);
  taken.assign(std::move_iterator(ours), std::move_iterator(all.end()));
  all.erase(ours, all.end());
  return taken;
}

StageRunner::Inputs Inbox::take(const Task& task) {
  StageRunner::Inputs inputs;
  if (task.kind == TaskKind::Mean || task.kind == TaskKind::Weigh || task.kind == TaskKind::Agree) {
    inputs.agreed = take_agreed(task);
    return inputs;
  }
  if (task.kind == TaskKind::Reduce || task.kind == TaskKind::Gather) {
    const auto direction =
        task.kind == TaskKind::Reduce ? proto::Direction::Forward : proto::Direction::Backward;
    if (auto sums = sums_.extract({task.key.step, direction})) inputs.agreed = std::move(sums.mapped());
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
