// The relay: joins the two sides of a ticket and forwards their bytes. Internal to net/.
//   to the relay: "WEFTR1", one byte (1: the side that initiates, 0: the other), 16 bytes of ticket; nothing
//                 more until the answer
//   from it: one byte, 1, once both sides are there; then what the other side sends
#pragma once

#include <array>
#include <map>
#include <string_view>

#include "net/byte_queue.h"
#include "net/context.h"
#include "net/listener.h"
#include "net/transport.h"

namespace weft::net {

inline constexpr std::string_view kRelayMagic = "WEFTR1";
inline constexpr size_t kRelayPreambleSize = 6 + 1 + 16;
inline constexpr std::byte kRelayJoined{1};
struct RelayPreamble {
  RelayTicket ticket{};
  bool initiates = false;
  auto operator<=>(const RelayPreamble&) const = default;
};
std::array<std::byte, kRelayPreambleSize> relay_preamble(const RelayPreamble& preamble);
// Nothing unless it is exactly one.
std::optional<RelayPreamble> parse_relay_preamble(std::span<const std::byte> bytes);

class RelayPair;

// A ticket serves its two peers as often as they lose each other. The newest of each side counts: it takes
// the place of one that still waits, and a new pair that of the pair before, whose peers have left it.
class Relay {
 public:
  // `stats` must outlive this: open_relays, relayed_bytes, timed_out and refused_by_limit are kept there.
  Relay(std::shared_ptr<Context> context, const ListenLimits& limits,
        std::function<bool(const RelayTicket&)> is_granted, ListenStats& stats);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // A connection whose preamble was read. `token` is held as long as the connection is.
  void arrive(const RelayPreamble& preamble, TransportPtr transport, std::shared_ptr<void> token);

 private:
  friend class RelayPair;
  class Waiting;
  void remove_waiting(const RelayTicket& ticket);
  void remove_pair(const RelayTicket& ticket);

  const std::shared_ptr<Context> context_;
  const ListenLimits limits_;
  const std::function<bool(const RelayTicket&)> is_granted_;
  ListenStats& stats_;
  std::map<RelayTicket, std::shared_ptr<Waiting>> waiting_;
  std::map<RelayTicket, std::shared_ptr<RelayPair>> pairs_;
};

}  // namespace weft::net
