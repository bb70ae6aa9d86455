// Internal to peer/service: what a peer holds for the stage it was assigned.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "peer/machine/stage.h"
#include "peer/service/links.h"
#include "peer/service/peer_service.h"
#include "peer/service/stage_runner.h"

namespace weft::peer {

struct PeerService::Stage {
  explicit Stage(std::shared_ptr<const proto::AssignStage> assigned)
      : assignment(std::move(assigned)), machine(assignment) {}

  std::shared_ptr<const proto::AssignStage> assignment;
  StageMachine machine;
  std::unique_ptr<Links> links;
  // While loading: blobs as they come, and which are still to be asked for.
  std::map<Digest, std::vector<std::byte>> blobs;
  std::vector<Digest> to_fetch;
  size_t fetching = 0;
  uint32_t fetch_failures = 0;
  std::shared_ptr<StageRunner> runner;  // used and destroyed on the compute thread
  bool links_up = false, ready = false, failed = false;
  // What has come and was not used yet.
  std::map<MicrobatchKey, std::map<uint32_t, dag::Tensor>> tensors;  // by index in StageProgram::receives
  std::map<MicrobatchKey, BulkTransfers::Microbatch> data;
  std::vector<proto::Message> reports_waiting;

  const proto::StageProgram& program(proto::ProgramKind kind) const {
    for (const proto::StageProgram& stage : assignment->programs)
      if (stage.kind == kind) return stage;
    return assignment->programs.front();
  }
};

}  // namespace weft::peer
