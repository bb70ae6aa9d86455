// The same devices where nothing that is sent takes time: what a network costs a plan shows beside it.
#pragma once

#include "plan/cluster.h"

namespace weft::plan {

ClusterView with_free_links(const ClusterView& cluster);

}  // namespace weft::plan
