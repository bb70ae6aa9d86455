// What has come for a stage and no task has read yet. The stage's machine decides by the keys alone; the
// bytes are here and nowhere else, and each tensor of another stage is handed over once, to the segment that
// reads it. Data stays until its microbatch is finished with: several segments may read it.
#pragma once

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "peer/service/bulk.h"
#include "peer/service/stage_runner.h"

namespace weft::peer {

class Inbox {
 public:
  explicit Inbox(std::shared_ptr<const proto::AssignStage> assignment) : assignment_(std::move(assignment)) {}

  // REQUIRES: the machine has accepted it.
  void keep(const proto::TensorHeader& header, dag::Tensor tensor);
  void keep(const MicrobatchKey& key, BulkTransfers::MicrobatchData data) { data_[key] = std::move(data); }
  // All that the task reads.
  StageRunner::Inputs take(const Task& task);
  void drop(const MicrobatchKey& microbatch) { data_.erase(microbatch); }

 private:
  std::vector<AgreedShare> take_agreed(const Task& task);
  using SegmentKey = std::pair<MicrobatchKey, uint32_t>;
  std::shared_ptr<const proto::AssignStage> assignment_;
  std::map<SegmentKey, std::vector<std::pair<uint32_t, dag::Tensor>>> tensors_;  // as StageRunner::Inputs
  std::map<MicrobatchKey, BulkTransfers::MicrobatchData> data_;
  // By the steps of the run agreed before the round, and by direction.
  std::map<std::pair<uint64_t, proto::Direction>, std::vector<AgreedShare>> agreed_;
  std::map<std::pair<uint64_t, proto::Direction>, std::vector<AgreedShare>> sums_;  // likewise, by step
};

// REQUIRES: the assignment has it.
inline const proto::StageProgram& program_of(const proto::AssignStage& assignment, proto::ProgramKind kind) {
  for (const proto::StageProgram& program : assignment.programs)
    if (program.kind == kind) return program;
  return assignment.programs.front();
}

}  // namespace weft::peer
