// Which numbers replicas have that go on from where others were: state that a replica has for itself goes by
// its number, and who keeps it need not be given another's. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/groupings.h"

namespace weft::plan {

// `before`, by device: the replica in which it had a part and whose state it holds; nothing: it holds none.
using ReplicasBefore = std::vector<std::optional<uint32_t>>;

// Whether all of the devices hold the state of some replica.
bool are_there(const Group& group, const ReplicasBefore& before);
// By replica, an index into the groups: each keeps its number where it can, and the first replica holds a
// state, if any group does.
std::vector<uint32_t> places_of(const Groups& groups, const ReplicasBefore& before);

}  // namespace weft::plan
