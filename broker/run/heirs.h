// What becomes of a snapshot of replicas some of which are gone, and with them what they alone had: the
// optimizer's slots and what they owed. Pure.
#pragma once

#include <vector>

#include "broker/records.h"

namespace weft::broker {

// Of one replica alone.
bool is_own(dag::StateSlot slot);

// Those that are gone go on with the slots of the first one that is not, and owe nothing. `returns_are_lost`:
// nor do owners owe anything of the means. The snapshot says so (proto::LocalPoint). False: all are gone; it
// is as it was. REQUIRES: snapshot.local, `gone` of as many replicas as it names.
bool inherit(CheckpointCommitted& snapshot, const std::vector<bool>& gone, bool returns_are_lost);

}  // namespace weft::broker
