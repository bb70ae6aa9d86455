// Internal to peer/service: what a peer holds for the stage it was assigned.
#pragma once

#include <atomic>
#include <memory>

#include "peer/service/inbox.h"
#include "peer/service/peer_service.h"

namespace weft::peer {

struct PeerService::Stage {
  Stage(std::shared_ptr<const proto::AssignStage> assigned, uint64_t number)
      : assignment(assigned), generation(number), inbox(std::move(assigned)) {}

  std::shared_ptr<const proto::AssignStage> assignment;
  uint64_t generation = 0;              // the machine's
  std::shared_ptr<StageRunner> runner;  // used and destroyed on the compute thread
  // Tasks that still wait for that thread are not wanted any more.
  std::shared_ptr<std::atomic<bool>> dropped = std::make_shared<std::atomic<bool>>(false);
  Inbox inbox;
};

}  // namespace weft::peer
