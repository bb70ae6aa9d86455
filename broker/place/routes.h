// How the peers of two stages that send each other tensors reach each other.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "broker/events.h"
#include "broker/run/planned_run.h"

namespace weft::broker {

struct StageAtPeer {
  Candidate peer;
  std::shared_ptr<proto::AssignStage> stage;
};

using DrawSecret = std::function<proto::Secret()>;

// One connection for every two stages that share a cut edge, for neighbours in the ring of a model that is
// served, and for a stage that owns what replicas agree about with those of the others that have it. Who can
// be reached is dialled; when both can, or neither, the earlier stage dials. Takes the place of the stages'
// links before; the tickets are new.
void set_links(std::vector<StageAtPeer>& stages, PlannedRun& run, const DrawSecret& draw_secret);

}  // namespace weft::broker
