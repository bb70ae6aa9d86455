// What a broker says of one of its peers: whether it is there, how others come to it, how fast its lines are.
#pragma once

#include <string>

#include "cli/doctor/check.h"
#include "proto/users.h"

namespace weft::cli {

// `name`: the peer's, or its key, whole or the first digits as they are shown.
Checks check_peer(const std::string& name, const proto::PeerList& peers, const proto::LinkList& links,
                  const std::string& broker_software);

}  // namespace weft::cli
