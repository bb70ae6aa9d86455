// A peer that was admitted by its token and then says whatever its script says, as fast as the broker takes
// it.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "net/endpoint.h"
#include "proto/messages.h"
#include "security/token.h"

namespace weft::attacks {

struct Lies {
  proto::Role role = proto::Role::Peer;
  // Bytes that may be queued here: what the broker does not take is waited for.
  size_t ahead = 4 << 20;
  std::function<proto::Message(uint64_t number)> next{};
  std::vector<std::byte> blob{};  // put first, over each connection
  bool reads = true;              // false: what the broker sends is left unread
  bool is_fickle = false;         // each connection has a key of its own and ends once it was admitted
};

struct LiesTold {
  uint64_t messages = 0, bytes = 0, connections = 0;
};

// Comes again whenever it was thrown out, until the flag is set.
LiesTold tell(const net::Endpoint& broker, const security::Token& token, const Lies& lies,
              const std::atomic<bool>& is_over);

}  // namespace weft::attacks
