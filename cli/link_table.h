// The links between a broker's peers, as people and programs read them.
#pragma once

#include <string>
#include <vector>

#include "proto/messages.h"

namespace weft::cli {

// A matrix of peers, or of sites where there are many; what is a guess is marked.
std::vector<std::string> link_table(const proto::LinkList& list);
// One event a line: a line of each peer, then one of each link, of peers or of sites.
std::vector<std::string> link_events(const proto::LinkList& list);

}  // namespace weft::cli
