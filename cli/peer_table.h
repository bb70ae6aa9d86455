// How the peers of a broker are shown: lines of a table, or events for programs. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/messages.h"

namespace weft::cli {

// Who has been gone for more than a while is left out, and counted in the last line; `all`: nobody is. What
// only an admin is told (whose stages, the broker's disk) is there where it was told.
std::vector<std::string> peer_table(const proto::PeerList& list, bool all);
std::vector<std::string> peer_events(const proto::PeerList& list);

}  // namespace weft::cli
