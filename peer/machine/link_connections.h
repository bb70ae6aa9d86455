// The connections that a link knows: the first one of its session, further ones that have joined that, and
// one that is connected and has not been introduced. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "peer/machine/link_streams.h"

namespace weft::peer {

struct LinkConnections {
  std::optional<LinkChannel> up{};
  std::optional<LinkChannel> greeting{};
  LinkStreams further{};

  LinkChannel* find(uint64_t connection);  // nullptr: it is none of them
  bool is_greeting(uint64_t connection) const { return greeting && greeting->number == connection; }
  // Tensors go over it.
  bool carries(uint64_t connection) const {
    return (up && up->number == connection) || further.is_up(connection);
  }
  std::vector<uint64_t> all() const;
  // Nothing could be heard for so long before `now`, by nobody's fault.
  void excuse(Instant now, Duration deaf);
};

}  // namespace weft::peer
