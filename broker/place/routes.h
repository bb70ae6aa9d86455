// How the peers of two stages that share cut edges reach each other.
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

// One connection for every two stages that share a cut edge, and for neighbours in the ring of a model that
// is served. Who can be reached is dialled; when both can, or
// neither, the earlier stage dials. Takes the place of the stages' links before; the tickets are new.
void set_links(std::vector<StageAtPeer>& stages, PlannedRun& run, const DrawSecret& draw_secret);

}  // namespace weft::broker
