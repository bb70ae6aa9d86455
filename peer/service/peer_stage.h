// Internal to peer/service: what a peer holds for the stage it was assigned.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "peer/service/peer_service.h"

namespace weft::peer {

struct PeerService::Stage {
  Stage(std::shared_ptr<const proto::AssignStage> assigned, uint64_t number)
      : assignment(std::move(assigned)), generation(number) {}

  std::shared_ptr<const proto::AssignStage> assignment;
  uint64_t generation = 0;  // the machine's
  std::unique_ptr<Links> links;
  std::shared_ptr<StageRunner> runner;  // used and destroyed on the compute thread
  // Tasks that still wait for that thread are not wanted any more.
  std::shared_ptr<std::atomic<bool>> dropped = std::make_shared<std::atomic<bool>>(false);
  // What has come and was not used yet.
  std::map<MicrobatchKey, std::map<uint32_t, dag::Tensor>> tensors;  // by index in StageProgram::receives
  std::map<MicrobatchKey, BulkTransfers::Microbatch> data;

  const proto::StageProgram& program(proto::ProgramKind kind) const {
    for (const proto::StageProgram& stage : assignment->programs)
      if (stage.kind == kind) return stage;
    return assignment->programs.front();
  }
};

}  // namespace weft::peer
