#include "peer/machine/link_connections.h"

#include <algorithm>

namespace weft::peer {

LinkChannel* LinkConnections::find(uint64_t connection) {
  for (std::optional<LinkChannel>* channel : {&up, &greeting})
    if (*channel && (*channel)->number == connection) return &**channel;
  return further.find(connection);
}

std::vector<uint64_t> LinkConnections::all() const {
  std::vector<uint64_t> numbers = further.connections();
  if (greeting) numbers.insert(numbers.begin(), greeting->number);
  if (up) numbers.insert(numbers.begin(), up->number);
  return numbers;
}

void LinkConnections::excuse(Instant now, Duration deaf) {
  for (const uint64_t connection : all()) {
    LinkChannel& channel = *find(connection);
    channel.heard = std::min(now, channel.heard + deaf);
  }
}

}  // namespace weft::peer
