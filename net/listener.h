// A public port. What strangers can make it do is bounded before they have shown a key: connections and
// half-open handshakes in all and from one address, bytes, time.
#pragma once

#include <functional>
#include <memory>

#include "net/connection.h"

namespace weft::net {

struct ListenLimits {
  size_t connections_max = 4096;
  size_t connections_max_per_address = 512;  // of one IPv4 address or IPv6 /64; loopback counts too
  // Half-open, in all and of one address. Beyond it the oldest makes room that has kept its slot idle: silent
  // for `silent_grace`, or not done after `slow_grace`. Of many at once that are all honest none is
  // displaced, for then none would ever be done: the newcomer is refused. In all, an address that has more
  // than the newcomer's makes room in any case.
  size_t handshakes_max = 256;
  size_t handshakes_max_per_address = 64;
  Duration silent_grace = std::chrono::milliseconds(100);
  Duration slow_grace = std::chrono::seconds(1);
  Duration handshake_deadline = std::chrono::seconds(10);
  // For the first byte, once half of either is taken.
  Duration first_byte_deadline_when_busy = std::chrono::seconds(2);
  size_t relay_pairs_max = 256;
  Duration relay_wait = std::chrono::seconds(10);  // for the second side of a ticket
  Bytes relay_buffer{1 << 20};                     // a direction, per pair
};

struct ListenOptions {
  const security::Identity* identity = nullptr;  // must outlive the listener and its connections
  ListenLimits limits{};
  // Whether a key may go on after the handshake; empty: any. A refused one is closed without a word.
  std::function<bool(const PeerId&)> admits{};
  std::optional<Shape> shape{};  // for accepted connections: a peer that emulates its link
  // When set, relay preambles are served: whether the ticket is granted. Asked once for two sides, when the
  // first shows it (and the other may be called); as often as the two lose each other and come again.
  std::function<bool(const RelayTicket&)> relay_ticket_is_granted{};
};

struct ListenStats {
  uint64_t accepted = 0, handshakes_failed = 0, refused_by_limit = 0, timed_out = 0;
  uint64_t displaced = 0;  // half-open ones that made room
  size_t open_connections = 0, open_handshakes = 0, open_relays = 0;
  uint64_t relayed_bytes = 0;
};

class Listener {
 public:
  // Port 0 takes a free one. Errors: Unavailable (in use), PermissionDenied, InvalidArgument.
  static Result<std::unique_ptr<Listener>> open(Loop& loop, const Endpoint& endpoint, ListenOptions options,
                                                std::function<void(ConnectionPtr)> on_connection);
  virtual ~Listener() = default;
  virtual Endpoint endpoint() const = 0;  // as bound
  virtual ListenStats stats() const = 0;
};

}  // namespace weft::net
